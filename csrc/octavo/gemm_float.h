// Float micro-kernel: weights widened to fp32 once per block of 32 inputs, then FMA.
//
// Per output element f = fma(x[k], w[k], f) with k rising; w = fma(code, d, m) for quantised
// formats, m = -zero_point * d where there is no minimum.
#pragma once

#include "gemm_types.h"
#include "gemm_unpack.h"
#include "simd.h"

namespace octavo::OCTAVO_TIER {

#if defined(OCTAVO_TIER_AVX512)
constexpr int max_float_rows = 6;
#elif defined(OCTAVO_TIER_AVX2)
constexpr int max_float_rows = 3;
#else
constexpr int max_float_rows = 1;
#endif

// Lanes hold four codes; writes the floats of one byte position to row `b` of [4][32].
template <int Byte>
OCTAVO_INLINE void widen_byte(simd::I16 four, simd::F16 d, simd::F16 m, float* out) {
  const simd::I16 code = simd::bit_and(simd::shift_right<8 * Byte>(four), simd::set1_int(255));
  simd::store(out + Byte * panel_channels, simd::fma(simd::to_float(code), d, m));
}

// A block of codes to w [32 inputs][32 channels].
inline void widen_codes(const PackedWeight& weight, const uint8_t* block, float* w) {
  const PanelFormat& format = weight.format;
  alignas(64) uint8_t spread[spread_block_bytes];
  const uint8_t* codes = block + weight.scales_bytes;
  if (format.storage != Storage::Codes8) {
    spread_codes(format.storage, codes, 0, 1, spread);
    codes = spread;
  }
  for (int step = 0; step < block_inputs / 4; ++step) {
    const int part = step * 4 / format.group;
    const uint16_t* scales =
        reinterpret_cast<const uint16_t*>(block) + part * panel_channels * (format.affine ? 2 : 1);
    for (int half = 0; half < 2; ++half) {
      const simd::I16 four = simd::as_int(simd::load_bytes(codes + (step * 2 + half) * 64));
      const simd::F16 d = simd::load_fp16(scales + 16 * half);
      const simd::F16 m =
          format.affine ? simd::load_fp16(scales + panel_channels + 16 * half)
                        : simd::mul(d, simd::set1(-static_cast<float>(format.zero_point)));
      float* out = w + step * 4 * panel_channels + 16 * half;
      widen_byte<0>(four, d, m, out);
      widen_byte<1>(four, d, m, out);
      widen_byte<2>(four, d, m, out);
      widen_byte<3>(four, d, m, out);
    }
  }
}

// `inputs` rows of a float panel to w [inputs][32 channels].
inline void widen_floats(Storage storage, const uint8_t* rows, int inputs, float* w) {
  const int vectors = inputs * (panel_channels / 16);
  for (int i = 0; i < vectors; ++i) {
    const uint16_t* small = reinterpret_cast<const uint16_t*>(rows) + 16 * i;
    const float* wide = reinterpret_cast<const float*>(rows) + 16 * i;
    simd::store(w + 16 * i, storage == Storage::Float32   ? simd::load(wide)
                            : storage == Storage::Float16 ? simd::load_fp16(small)
                                                          : simd::load_bf16(small));
  }
}

// sums [Rows][32] += x [Rows][inputs] * w [inputs][32].
template <int Rows>
OCTAVO_INLINE void float_tile(const float* x, int64_t ldx, const float* w, int inputs,
                              float* sums) {
  simd::F16 f[Rows][2];
  for (int r = 0; r < Rows; ++r) {
    f[r][0] = simd::load(sums + r * panel_channels);
    f[r][1] = simd::load(sums + r * panel_channels + 16);
  }
  for (int k = 0; k < inputs; ++k) {
    const simd::F16 w0 = simd::load(w + k * panel_channels);
    const simd::F16 w1 = simd::load(w + k * panel_channels + 16);
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const simd::F16 value = simd::set1(x[r * ldx + k]);
      f[r][0] = simd::fma(value, w0, f[r][0]);
      f[r][1] = simd::fma(value, w1, f[r][1]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    simd::store(sums + r * panel_channels, f[r][0]);
    simd::store(sums + r * panel_channels + 16, f[r][1]);
  }
}

// sums [rows][32] = x [rows][width] * panel.
inline void float_panel(const PackedWeight& weight, const uint8_t* panel, const float* x,
                        int64_t ldx, int64_t rows, float* sums) {
  alignas(64) float w[block_inputs * panel_channels];
  for (int64_t i = 0; i < rows * panel_channels; ++i) sums[i] = 0.0f;
  const uint8_t* block = panel;
  for (int64_t k = 0; k < weight.width; k += block_inputs, block += weight.block_bytes) {
    const int64_t left = weight.width - k;
    const int inputs = static_cast<int>(left < block_inputs ? left : block_inputs);
    if (weight.scales_bytes > 0) {
      widen_codes(weight, block, w);
    } else {
      widen_floats(weight.format.storage, block, inputs, w);
    }
    int64_t row = 0;
    for (; row + max_float_rows <= rows; row += max_float_rows) {
      float_tile<max_float_rows>(x + row * ldx + k, ldx, w, inputs, sums + row * panel_channels);
    }
    for (; row < rows; ++row) {
      float_tile<1>(x + row * ldx + k, ldx, w, inputs, sums + row * panel_channels);
    }
  }
}

}  // namespace octavo::OCTAVO_TIER
