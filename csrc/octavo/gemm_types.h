// Values that the linear operator exchanges with its callers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "panel.h"
#include "tier.h"
#include "top_logits.h"

namespace octavo {

// Int8: one signed 8-bit term per activation, a scale per 32. Int8x2: a second term for what the
// first left over, error like fp16 at twice the arithmetic. Fp32: weights widened, no rounding.
enum class Activations { Int8, Int8x2, Fp32 };

// What 32 quantised activations need besides their codes. x ~ scale * code.
struct ActivationGroup {
  float scale;
  // scale * (sum of all codes), for minimums.
  float scaled_sum;
  // For zero points: sums of the codes k with k % 4 < 2 and of the others, out of the codes 0..15,
  // 16..31 and all.
  int16_t pair_sums[3][2];
};

// Activations of one call, ready for every weight of the same width. Row r of x is term row r, or
// with Int8x2 term rows 2r (first term) and 2r + 1 (second). Float weights read x itself, which
// must stay unchanged until the last `linear`.
struct ActivationBuffer {
  // Workspace of the caller, 64-byte aligned, at least activation_bytes(...).
  void* memory;
  size_t memory_bytes;

  Activations mode;
  const float* x;
  int64_t ldx;
  int64_t rows;
  int64_t width;
  int64_t term_rows;
  int8_t* codes;
  // Bytes between the codes of two term rows, see codes_stride_bytes.
  int64_t codes_stride;
  ActivationGroup* groups;
  int64_t groups_stride;
};

// One weight of a call: y[r][n] = tensor_scale * (x[r] . w[n]) + bias[n] + residual[r][n], rows of
// y and of the residual ldy apart; with a softcap c > 0 then c * tanh(y / c).
struct LinearTarget {
  const PackedWeight* weight;
  // May be null.
  const float* bias;
  float* y;
  int64_t ldy;
  // May be null or y itself.
  const float* residual = nullptr;
  float softcap = 0.0f;
  // If not null, rows may go elsewhere than to y.
  const LogitSink* sink = nullptr;
};

OCTAVO_INLINE int64_t padded_width(int64_t width) {
  return (width + block_inputs - 1) / block_inputs * block_inputs;
}

// Bytes between two term rows of codes: an odd number of cache lines, for the rows of a tile would
// share a few sets of the first-level cache if a power of two lay between them.
OCTAVO_INLINE int64_t codes_stride_bytes(int64_t width) {
  constexpr int64_t line_bytes = 64;
  return ((width + line_bytes - 1) / line_bytes | 1) * line_bytes;
}

// Workspace for at most `max_rows` rows of at most `max_width` values.
OCTAVO_INLINE size_t activation_bytes(int64_t max_rows, int64_t max_width, Activations mode) {
  if (mode == Activations::Fp32) return 0;
  const size_t terms = mode == Activations::Int8x2 ? 2 : 1;
  const size_t groups = static_cast<size_t>(padded_width(max_width) / block_inputs);
  const size_t row =
      static_cast<size_t>(codes_stride_bytes(max_width)) + groups * sizeof(ActivationGroup);
  return terms * static_cast<size_t>(max_rows) * row;
}

}  // namespace octavo
