// Rotary position embedding (Su et al. 2021) from tables made once a step.
#pragma once

#include <cstddef>
#include <cstring>

#include "octavo/chunk.h"
#include "octavo/pool.h"
#include "octavo/quads.h"
#include "octavo/rope_types.h"
#include "octavo/simd.h"

namespace octavo {
namespace OCTAVO_TIER {

// Pairs (i, i + dims / 2); `table` holds cos[dims / 2], then sin[dims / 2].
inline void rotate_halves(const float* x, const float* table, int dims, float* out) {
  const int half = dims / 2;
  for (int i = 0; i < half; i += 16) {
    const int n = half - i < 16 ? half - i : 16;
    const simd::F16 cosine = take(table + i, n), sine = take(table + half + i, n);
    const simd::F16 low = take(x + i, n), high = take(x + half + i, n);
    put(out + i, simd::fma(low, cosine, simd::neg(simd::mul(high, sine))), n);
    put(out + half + i, simd::fma(high, cosine, simd::mul(low, sine)), n);
  }
}

// Pairs (2i, 2i + 1); `table` holds each cos twice [dims], then -sin, sin of each pair [dims].
inline void rotate_neighbours(const float* x, const float* table, int dims, float* out) {
  for (int i = 0; i < dims; i += 16) {
    const int n = dims - i < 16 ? dims - i : 16;
    const simd::F16 value = take(x + i, n);
    put(out + i, simd::fma(value, take(table + i, n),
                           simd::mul(swap_pairs(value), take(table + dims + i, n))), n);
  }
}

// x and out are [tokens, heads * head_dim]; `out` may be `x`.
inline void rope(Pool& pool, const RopeCall& call) {
  const size_t width = size_t(call.heads) * call.head_dim;
  pool.parallel_for(call.tokens, row_chunk(width), [&](size_t begin, size_t end, int) {
    for (size_t token = begin; token < end; ++token) {
      const float* table = call.table + token * call.table_stride;
      for (int head = 0; head < call.heads; ++head) {
        const size_t offset = token * width + size_t(head) * call.head_dim;
        const float* x = call.x + offset;
        float* out = call.out + offset;
        if (call.interleaved) {
          rotate_neighbours(x, table, call.dims, out);
        } else {
          rotate_halves(x, table, call.dims, out);
        }
        if (out != x && call.dims < call.head_dim) {
          memcpy(out + call.dims, x + call.dims, sizeof(float) * (call.head_dim - call.dims));
        }
      }
    }
  });
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
