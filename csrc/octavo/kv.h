// The paged KV cache as kernels see it: page-major bytes, addressed by page, layer and head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/tier.h"

namespace octavo {

// Int8: signed codes within +-127, and a float scale for each token's K and V of each head.
enum class KvFormat : int32_t { Fp16 = 0, Fp32 = 1, Int8 = 2 };

OCTAVO_INLINE size_t kv_element_bytes(KvFormat format) {
  return format == KvFormat::Int8 ? 1 : format == KvFormat::Fp16 ? 2 : 4;
}
OCTAVO_INLINE size_t kv_scale_bytes(KvFormat format) {
  return format == KvFormat::Int8 ? sizeof(float) : 0;
}

// Layers share out the pages of a cache in groups of equal size: where a layer lies.
struct KvPlace {
  int32_t group;
  int32_t index;  // in a page of the group
};

// Shape of one cache, `layers` being those of a group. A page is [layer][kv head][K quads | K scales | V | V scales]: K as quads
// [head_dim / 4][page_tokens][4], V as [page_tokens][head_dim], scales [page_tokens] if the format
// has them.
struct KvGeometry {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  KvFormat format = KvFormat::Fp16;

  // K alone or V alone, of one head of one layer of a page.
  OCTAVO_INLINE size_t code_bytes() const {
    return size_t(head_dim) * page_tokens * kv_element_bytes(format);
  }
  // The same with scales.
  OCTAVO_INLINE size_t half_bytes() const {
    return code_bytes() + page_tokens * kv_scale_bytes(format);
  }
  OCTAVO_INLINE size_t page_bytes() const { return 2 * half_bytes() * kv_heads * layers; }
};

struct KvCache {
  KvGeometry geometry;
  uint8_t* base = nullptr;
  int32_t pages = 0;

  OCTAVO_INLINE uint8_t* keys(int32_t page, int32_t layer, int32_t kv_head) const {
    const size_t head = size_t(layer) * geometry.kv_heads + kv_head;
    return base + size_t(page) * geometry.page_bytes() + head * 2 * geometry.half_bytes();
  }
  OCTAVO_INLINE uint8_t* values(int32_t page, int32_t layer, int32_t kv_head) const {
    return keys(page, layer, kv_head) + geometry.half_bytes();
  }
  // Scales of what keys() or values() returned.
  OCTAVO_INLINE float* scales(uint8_t* half) const {
    return reinterpret_cast<float*>(half + geometry.code_bytes());
  }
};

// Page sizes the kernels take; a 16-token group never crosses a page.
OCTAVO_INLINE bool is_page_size(int64_t tokens) {
  return tokens == 16 || tokens == 32 || tokens == 64 || tokens == 128 || tokens == 256;
}

constexpr int kMostHeadDim = 256;

OCTAVO_INLINE bool is_head_dim(int64_t head_dim) {
  return head_dim >= 16 && head_dim <= kMostHeadDim && head_dim % 16 == 0;
}

}  // namespace octavo
