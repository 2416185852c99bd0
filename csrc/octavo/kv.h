// The paged KV cache as kernels see it: page-major bytes, addressed by page, layer and head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/tier.h"

namespace octavo {

enum class KvFormat : int32_t { Fp16 = 0, Fp32 = 1 };

OCTAVO_INLINE size_t kv_element_bytes(KvFormat format) { return format == KvFormat::Fp16 ? 2 : 4; }

// Shape of one cache. A page is [layer][kv head][K quads | V]: K as quads
// [head_dim / 4][page_tokens][4], V as [page_tokens][head_dim].
struct KvGeometry {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  KvFormat format = KvFormat::Fp16;

  OCTAVO_INLINE size_t half_bytes() const {  // K alone or V alone, of one head of one layer of a page
    return size_t(head_dim) * page_tokens * kv_element_bytes(format);
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
};

// Page sizes the kernels take; a 16-token group never crosses a page.
OCTAVO_INLINE bool is_page_size(int64_t tokens) {
  return tokens == 16 || tokens == 32 || tokens == 64 || tokens == 128 || tokens == 256;
}

OCTAVO_INLINE bool is_head_dim(int64_t head_dim) {
  return head_dim >= 16 && head_dim <= 256 && head_dim % 16 == 0;
}

}  // namespace octavo
