// Element-wise operators over [rows, width] matrices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/chunk.h"
#include "octavo/pool.h"
#include "octavo/quads.h"
#include "octavo/quantize.h"
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

// gate / (1 + exp(-gate)) * up
struct Silu {
  OCTAVO_INLINE static simd::F16 apply(simd::F16 gate, simd::F16 up) {
    return simd::mul(simd::mul(gate, sigmoid(gate)), up);
  }
};

// gelu(gate) * up in the tanh form, by 0.5 (1 + tanh(z)) = sigmoid(2 z),
// z = sqrt(2 / pi) (x + 0.044715 x^3).
struct Gelu {
  OCTAVO_INLINE static simd::F16 apply(simd::F16 gate, simd::F16 up) {
    const simd::F16 cube =
        simd::mul(simd::mul(gate, gate), simd::mul(gate, simd::set1(0.044715f)));
    const simd::F16 z = simd::mul(simd::set1(1.5957691216057308f), simd::add(gate, cube));
    return simd::mul(simd::mul(gate, sigmoid(z)), up);
  }
};

template <class Gate>
inline void gate_mul(Pool& pool, const float* gate, const float* up, size_t total, float* out) {
  for_each_vector(pool, total, [=](size_t i, int n) {
    put(out + i, Gate::apply(take(gate + i, n), take(up + i, n)), n);
  });
}

// gate_mul, and prepare_activations of the result, in one pass.
template <class Gate>
inline void gate_mul_prepare(Pool& pool, const float* gate, const float* up, size_t rows,
                             size_t width, float* out, Activations mode,
                             ActivationBuffer& buffer) {
  const int64_t stride = int64_t(width);
  prepare_made_rows(pool, out, stride, int64_t(rows), stride, mode, buffer, [=](int64_t row) {
    const size_t begin = size_t(row) * width, end = begin + width;
    for (size_t i = begin; i < end; i += 16) {
      const int n = end - i < 16 ? int(end - i) : 16;
      put(out + i, Gate::apply(take(gate + i, n), take(up + i, n)), n);
    }
  });
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
