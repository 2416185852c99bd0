// Element-wise operators over [rows, width] matrices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/chunk.h"
#include "octavo/pool.h"
#include "octavo/quads.h"
#include "octavo/simd.h"

namespace octavo {
namespace OCTAVO_TIER {

// Runs `body(i, n)` over [0, total) in vectors of 16 lanes, the last of n <= 16; threads take runs.
template <class Body>
inline void for_each_vector(Pool& pool, size_t total, Body body) {
  const size_t vectors = (total + 15) / 16;
  pool.parallel_for(vectors, row_chunk(16), [=](size_t begin, size_t end, int) {
    for (size_t vector = begin; vector < end; ++vector) {
      const size_t i = vector * 16;
      body(i, total - i < 16 ? int(total - i) : 16);
    }
  });
}

inline void add(Pool& pool, const float* a, const float* b, size_t total, float* out) {
  for_each_vector(pool, total, [=](size_t i, int n) {
    put(out + i, simd::add(take(a + i, n), take(b + i, n)), n);
  });
}

// out = gate / (1 + exp(-gate)) * up
inline void silu_mul(Pool& pool, const float* gate, const float* up, size_t total, float* out) {
  for_each_vector(pool, total, [=](size_t i, int n) {
    const simd::F16 x = take(gate + i, n);
    put(out + i, simd::mul(simd::mul(x, sigmoid(x)), take(up + i, n)), n);
  });
}

// The tanh form of gelu, by 0.5 (1 + tanh(z)) = sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3).
inline void gelu_mul(Pool& pool, const float* gate, const float* up, size_t total, float* out) {
  for_each_vector(pool, total, [=](size_t i, int n) {
    const simd::F16 x = take(gate + i, n);
    const simd::F16 cube = simd::mul(simd::mul(x, x), simd::mul(x, simd::set1(0.044715f)));
    const simd::F16 z = simd::mul(simd::set1(1.5957691216057308f), simd::add(x, cube));
    put(out + i, simd::mul(simd::mul(x, sigmoid(z)), take(up + i, n)), n);
  });
}

// x = c tanh(x / c) in place.
inline void softcap(Pool& pool, float* x, size_t total, float c) {
  for_each_vector(pool, total, [=](size_t i, int n) { put(x + i, cap(take(x + i, n), c), n); });
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
