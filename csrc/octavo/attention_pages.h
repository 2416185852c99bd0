// Tiles over the pages of a cache.
#pragma once

#include <cstddef>
#include <cstdint>

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

// Asks for all of a tile at once.
template <class Element>
inline void fetch_tile(const Tile<Element, Element>& tile, int head_dim) {
  for (int group = tile.first; group < tile.last; ++group) {
    for (int quad = 0; quad < head_dim / 4; ++quad) {
      prefetch(tile.keys[group] + quad * tile.key_stride, kGroupTokens * 4);
    }
    prefetch(tile.values[group], size_t(kGroupTokens) * head_dim);
    if constexpr (Tile<Element, Element>::coded) {
      prefetch(tile.key_scales[group], kGroupTokens);
      prefetch(tile.value_scales[group], kGroupTokens);
    }
  }
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
