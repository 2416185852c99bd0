// Activations to signed 8-bit codes in groups of 32.
//
// A group's scale is amax / 127 and its codes round(x * (127 / amax)) to nearest even, so that
// codes stay within +-127. A group with a NaN or infinity gets NaN as scale and zero codes: the
// row's results become NaN and no other row notices. A group below 2^-100 counts as zero, for its
// reciprocal would overflow.
#pragma once

#include "gemm_types.h"
#include "pool.h"
#include "simd.h"

namespace octavo::OCTAVO_TIER {

constexpr float smallest_amax = 0x1p-100f;

// All ones in the lanes i with i % 4 < 2.
alignas(64) constexpr int32_t first_pair_lanes[16] = {-1, -1, 0, 0, -1, -1, 0, 0,
                                                      -1, -1, 0, 0, -1, -1, 0, 0};

OCTAVO_INLINE void store_pair_sums(int32_t first, int32_t all, int16_t (&sums)[2]) {
  sums[0] = static_cast<int16_t>(first);
  sums[1] = static_cast<int16_t>(all - first);
}

struct GroupValues {
  simd::F16 low, high;
};

// Quantises one group and returns what the codes leave over, x - scale * code.
OCTAVO_INLINE GroupValues quantize_group(GroupValues x, int8_t* codes, ActivationGroup* group) {
  const simd::F16 magnitude = simd::max(simd::abs(x.low), simd::abs(x.high));
  const float amax = simd::reduce_max(magnitude);
  // 0 for finite values, else NaN: max may lose a NaN, this sum cannot.
  const simd::F16 zero = simd::zero();
  const float poison =
      simd::reduce_add(simd::add(simd::mul(x.low, zero), simd::mul(x.high, zero)));
  const bool usable = amax >= smallest_amax && poison == 0.0f;
  const float inverse = usable ? 127.0f / amax : 0.0f;
  const float scale = usable ? amax / 127.0f : 0.0f + poison;
  const simd::F16 factor = simd::set1(inverse);
  const simd::I16 nothing = simd::zero_int();
  const simd::I16 low = usable ? simd::to_int(simd::mul(x.low, factor)) : nothing;
  const simd::I16 high = usable ? simd::to_int(simd::mul(x.high, factor)) : nothing;
  simd::store_int8(codes, low);
  simd::store_int8(codes + 16, high);
  const int32_t low_sum = simd::reduce_add(low);
  const int32_t high_sum = simd::reduce_add(high);
  const simd::I16 first_pairs = simd::load_int(first_pair_lanes);
  const int32_t low_first = simd::reduce_add(simd::bit_and(low, first_pairs));
  const int32_t high_first = simd::reduce_add(simd::bit_and(high, first_pairs));
  group->scale = scale;
  group->scaled_sum = scale * static_cast<float>(low_sum + high_sum);
  store_pair_sums(low_first, low_sum, group->pair_sums[0]);
  store_pair_sums(high_first, high_sum, group->pair_sums[1]);
  store_pair_sums(low_first + high_first, low_sum + high_sum, group->pair_sums[2]);
  const simd::F16 step = simd::set1(scale);
  return {simd::fnma(step, simd::to_float(low), x.low),
          simd::fnma(step, simd::to_float(high), x.high)};
}

// One row of `width` floats to its term row, or to its two term rows with Int8x2; codes and groups
// of the second follow at the strides. The tail of the last group is zero.
inline void quantize_row(const float* x, int64_t width, bool second_term, int8_t* codes,
                         int64_t codes_stride, ActivationGroup* groups, int64_t groups_stride) {
  for (int64_t k = 0, g = 0; k < width; k += block_inputs, ++g) {
    GroupValues values;
    if (width - k >= block_inputs) {
      values = {simd::load(x + k), simd::load(x + k + 16)};
    } else {
      const int count = static_cast<int>(width - k);
      values.low = simd::load_partial(x + k, count);
      values.high = count > 16 ? simd::load_partial(x + k + 16, count - 16) : simd::zero();
    }
    const GroupValues rest = quantize_group(values, codes + k, groups + g);
    if (second_term) {
      quantize_group(rest, codes + codes_stride + k, groups + groups_stride + g);
    }
  }
}

// Where the codes and groups of x [rows, width], rows ldx apart, lie. The workspace must hold
// activation_bytes(rows, width, mode).
inline void lay_out_activations(const float* x, int64_t ldx, int64_t rows, int64_t width,
                                Activations mode, ActivationBuffer& buffer) {
  buffer.mode = mode;
  buffer.x = x;
  buffer.ldx = ldx;
  buffer.rows = rows;
  buffer.width = width;
  if (mode == Activations::Fp32) return;
  buffer.term_rows = (mode == Activations::Int8x2 ? 2 : 1) * rows;
  buffer.codes_stride = codes_stride_bytes(width);
  buffer.groups_stride = padded_width(width) / block_inputs;
  buffer.codes = static_cast<int8_t*>(buffer.memory);
  buffer.groups = reinterpret_cast<ActivationGroup*>(buffer.codes +
                                                     buffer.term_rows * buffer.codes_stride);
}

// Quantises `width` floats of a row from column `column` on, whole groups or up to the row's end, to
// their place in a buffer that is laid out.
inline void quantize_columns(const float* x, int64_t row, int64_t column, int64_t width,
                             const ActivationBuffer& buffer) {
  const bool second_term = buffer.mode == Activations::Int8x2;
  const int64_t term_row = second_term ? 2 * row : row;
  quantize_row(x, width, second_term, buffer.codes + term_row * buffer.codes_stride + column,
               buffer.codes_stride,
               buffer.groups + term_row * buffer.groups_stride + column / block_inputs,
               buffer.groups_stride);
}

// Fills the buffer from rows of x which `make_row(row)` writes just before they are read.
template <class MakeRow>
OCTAVO_INLINE void prepare_made_rows(Pool& pool, const float* x, int64_t ldx, int64_t rows,
                                     int64_t width, Activations mode, ActivationBuffer& buffer,
                                     const MakeRow& make_row) {
  lay_out_activations(x, ldx, rows, width, mode, buffer);
  // Below some ten thousand values a row costs less than waking the workers.
  const int64_t values_per_chunk = 8192;
  const int64_t chunk = width < values_per_chunk ? values_per_chunk / width : 1;
  pool.parallel_for(rows, chunk, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      make_row(row);
      if (mode == Activations::Fp32) continue;
      quantize_columns(x + row * ldx, row, 0, width, buffer);
    }
  });
}

inline void prepare_activations(Pool& pool, const float* x, int64_t ldx, int64_t rows,
                                int64_t width, Activations mode, ActivationBuffer& buffer) {
  if (mode == Activations::Fp32) return lay_out_activations(x, ldx, rows, width, mode, buffer);
  prepare_made_rows(pool, x, ldx, rows, width, mode, buffer, [](int64_t) {});
}

}  // namespace octavo::OCTAVO_TIER
