// Tiles over the pages of a cache: as stored, or widened to floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "octavo/attention_tile.h"
#include "octavo/attention_types.h"

namespace octavo {
namespace OCTAVO_TIER {

template <class Element>
inline Tile<Element, Element> page_tile(const AttentionCall& call, const int32_t* table,
                                        int kv_head, int start, int begin, int end) {
  Tile<Element, Element> tile;
  const KvCache& cache = *call.cache;
  const int page_tokens = cache.geometry.page_tokens;
  tile.key_stride = size_t(page_tokens) * 4;
  tile.first = (begin - start) / kGroupTokens;
  tile.last = (end - start + kGroupTokens - 1) / kGroupTokens;
  for (int group = tile.first; group < tile.last; ++group) {
    const int token = start + group * kGroupTokens;
    const int32_t page = table[size_t(token / page_tokens) * call.page_stride];
    const size_t offset = size_t(token % page_tokens);
    uint8_t* keys = cache.keys(page, call.layer, kv_head);
    uint8_t* values = cache.values(page, call.layer, kv_head);
    tile.keys[group] = reinterpret_cast<const Element*>(keys) + offset * 4;
    tile.values[group] = reinterpret_cast<const Element*>(values) + offset * call.head_dim;
    if constexpr (Tile<Element, Element>::coded) {
      tile.key_scales[group] = cache.scales(keys) + offset;
      tile.value_scales[group] = cache.scales(values) + offset;
    }
  }
  return tile;
}

// Keys of codes are multiplied as codes, others as floats.
template <class Element>
using WideTile = Tile<std::conditional_t<Tile<Element, Element>::coded, Element, float>, float>;

// Widens a tile to float once for many row blocks; `buffer` holds 2 * 64 * head_dim floats.
// `tokens` is the number of tile tokens that were written.
template <class Element>
inline WideTile<Element> widen_tile(const Tile<Element, Element>& tile, int head_dim, int tokens,
                                    float* buffer) {
  WideTile<Element> wide;
  wide.first = tile.first;
  wide.last = tile.last;
  constexpr bool coded = Tile<Element, Element>::coded;
  wide.key_stride = coded ? tile.key_stride : size_t(kTileTokens) * 4;
  float* values = buffer + size_t(kTileTokens) * head_dim;
  for (int group = tile.first; group < tile.last; ++group) {
    if constexpr (coded) {
      wide.keys[group] = tile.keys[group];
      wide.key_scales[group] = tile.key_scales[group];
      wide.value_scales[group] = tile.value_scales[group];
    } else {
      float* keys = buffer + group * kGroupTokens * 4;
      for (int quad = 0; quad < head_dim / 4; ++quad) {
        for (int v = 0; v < 4; ++v) {
          simd::store(keys + quad * wide.key_stride + 16 * v,
                      load_element(tile.keys[group] + quad * tile.key_stride + 16 * v));
        }
      }
      wide.keys[group] = keys;
    }
    wide.values[group] = values + size_t(group) * kGroupTokens * head_dim;
    const int left = tokens - group * kGroupTokens;
    const int count = (left < kGroupTokens ? left : kGroupTokens) * head_dim;
    for (int i = 0; i < count; i += 16) {
      simd::store(values + size_t(group) * kGroupTokens * head_dim + i,
                  load_element(tile.values[group] + i));
    }
  }
  return wide;
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
