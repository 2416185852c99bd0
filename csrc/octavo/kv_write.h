// The write of K and V of a batch's tokens into their pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "octavo/attention_types.h"
#include "octavo/chunk.h"
#include "octavo/kv_codes.h"
#include "octavo/pool.h"
#include "octavo/quads.h"
#include "octavo/simd.h"

namespace octavo {
namespace OCTAVO_TIER {

// K and V of one head of one token into a page's halves, whose elements are `Element`.
template <class Element>
inline void write_head(const KvCache& cache, const float* k, const float* v, int slot,
                       uint8_t* key_half, uint8_t* value_half) {
  const int head_dim = cache.geometry.head_dim, page_tokens = cache.geometry.page_tokens;
  Element* keys = reinterpret_cast<Element*>(key_half);
  Element* values = reinterpret_cast<Element*>(value_half) + size_t(slot) * head_dim;
  alignas(64) Element row[kMostHeadDim];
  if constexpr (std::is_same<Element, int8_t>::value) {
    cache.scales(key_half)[slot] = quantize_head(k, head_dim, row).scale;
    cache.scales(value_half)[slot] = quantize_head(v, head_dim, values).scale;
  } else {
    for (int d = 0; d < head_dim; d += 16) {
      store_element(row + d, simd::load(k + d));
      store_element(values + d, simd::load(v + d));
    }
  }
  for (int quad = 0; quad < head_dim / 4; ++quad) {
    memcpy(keys + (size_t(quad) * page_tokens + slot) * 4, row + 4 * quad, 4 * sizeof(Element));
  }
}

template <class Element>
inline void write_kv_as(Pool& pool, const KvWriteCall& call) {
  const KvCache& cache = *call.cache;
  const int kv_heads = cache.geometry.kv_heads, head_dim = cache.geometry.head_dim;
  const size_t width = size_t(kv_heads) * head_dim;
  pool.parallel_for(call.tokens, row_chunk(width), [&](size_t begin, size_t end, int) {
    for (size_t token = begin; token < end; ++token) {
      for (int head = 0; head < kv_heads; ++head) {
        const size_t offset = token * width + size_t(head) * head_dim;
        write_head<Element>(cache, call.k + offset, call.v + offset, call.slots[token],
                            cache.keys(call.pages[token], call.layer, head),
                            cache.values(call.pages[token], call.layer, head));
      }
    }
  });
}

inline void write_kv(Pool& pool, const KvWriteCall& call) {
  switch (call.cache->geometry.format) {
    case KvFormat::Fp16: return write_kv_as<Half>(pool, call);
    case KvFormat::Fp32: return write_kv_as<float>(pool, call);
    case KvFormat::Int8: return write_kv_as<int8_t>(pool, call);
  }
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
