// RMS norm of whole rows or of each head in a row.
#pragma once

#include <cstddef>

#include "octavo/chunk.h"
#include "octavo/pool.h"
#include "octavo/quantize.h"
#include "octavo/simd.h"

namespace octavo {
namespace OCTAVO_TIER {

// Sum of squares in a fixed order: vector i goes to chain i mod 4, then the chains in pairs, then
// the lanes by simd::reduce_add.
inline float sum_of_squares(const float* x, size_t width) {
  simd::F16 chain[4] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
  const size_t whole = width / 16 * 16;
  for (size_t i = 0; i < whole; i += 16) {
    const simd::F16 value = simd::load(x + i);
    chain[(i / 16) % 4] = simd::fma(value, value, chain[(i / 16) % 4]);
  }
  if (whole < width) {
    const simd::F16 value = simd::load_partial(x + whole, int(width - whole));
    chain[(whole / 16) % 4] = simd::fma(value, value, chain[(whole / 16) % 4]);
  }
  return simd::reduce_add(
      simd::add(simd::add(chain[0], chain[1]), simd::add(chain[2], chain[3])));
}

// out = (x * r) * weight with r = 1 / sqrt(mean(x^2) + eps). `out` may be `x`.
inline void rms_norm_row(const float* x, const float* weight, float eps, size_t width, float* out) {
  const float mean = sum_of_squares(x, width) / float(width);
  const simd::F16 scale = simd::set1(1.0f / __builtin_sqrtf(mean + eps));
  size_t i = 0;
  for (; i + 16 <= width; i += 16) {
    simd::store(out + i,
                simd::mul(simd::mul(simd::load(x + i), scale), simd::load(weight + i)));
  }
  if (i < width) {
    const int rest = int(width - i);
    simd::store_partial(out + i,
                        simd::mul(simd::mul(simd::load_partial(x + i, rest), scale),
                                  simd::load_partial(weight + i, rest)),
                        rest);
  }
}

// x and out are [rows, heads * width]; the weight has `width` elements.
inline void rms_norm(Pool& pool, const float* x, const float* weight, float eps, size_t rows,
                     size_t heads, size_t width, float* out) {
  const size_t total = rows * heads;
  pool.parallel_for(total, row_chunk(width), [=](size_t begin, size_t end, int) {
    for (size_t row = begin; row < end; ++row) {
      rms_norm_row(x + row * width, weight, eps, width, out + row * width);
    }
  });
}

// rms_norm of whole rows, and prepare_activations of the result, in one pass.
inline void rms_norm_prepare(Pool& pool, const float* x, const float* weight, float eps,
                             size_t rows, size_t width, float* out, Activations mode,
                             ActivationBuffer& buffer) {
  const int64_t stride = int64_t(width);
  prepare_made_rows(pool, out, stride, int64_t(rows), stride, mode, buffer, [=](int64_t row) {
    rms_norm_row(x + row * stride, weight, eps, width, out + row * stride);
  });
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
