// Integer micro-kernel over the abstract vector: all 32 channels of a panel in registers.
//
// With AVX-512 VNNI a dot product of unsigned weights and signed activations is one instruction;
// the zero point costs nothing because it enters as the accumulator's start value.
#pragma once

#include "gemm_kernel.h"

namespace octavo::OCTAVO_TIER {

#if defined(OCTAVO_TIER_AVX512)
constexpr int max_tile_rows = 6;
#else
constexpr int max_tile_rows = 1;
#endif
// All rows of a tile take a block in one pass, so wider tiles only save work.
constexpr int64_t most_paired_rows = 0;
constexpr bool reads_planes = false;

template <class Format>
OCTAVO_INLINE simd::Bytes load_codes(const uint8_t* codes, int step, int half) {
  if constexpr (Format::packed) {
    const simd::Bytes both = simd::load_bytes(codes + ((step & 3) * 2 + half) * 64);
    return step < 4 ? simd::low_nibbles(both) : simd::high_nibbles(both);
  } else {
    return simd::load_bytes(codes + (step * 2 + half) * 64);
  }
}

template <int Rows, class Format>
OCTAVO_INLINE void integer_sums(const TileArguments& a, const uint8_t* codes, int64_t block,
                                int part, simd::I16 (&sums)[Rows][2]) {
OCTAVO_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const int32_t sum = Format::affine ? 0 : code_sum<Format>(a.groups[r * a.groups_stride + block],
                                                              part);
    sums[r][0] = sums[r][1] = simd::set1_int(-a.zero_point * sum);
  }
  constexpr int steps = Format::group / 4;
OCTAVO_UNROLL
  for (int s = 0; s < steps; ++s) {
    // Packed codes of the steps s and s + 4 share their bytes: take them one after the other.
    const int step = steps == 8 ? (s & 1) * 4 + s / 2 : part * steps + s;
    const simd::Bytes w0 = load_codes<Format>(codes, step, 0);
    const simd::Bytes w1 = load_codes<Format>(codes, step, 1);
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const simd::Quad x = simd::load_quad(a.activations + r * a.activations_stride +
                                           block * block_inputs + step * 4);
      sums[r][0] = simd::dot_accumulate(sums[r][0], w0, x);
      sums[r][1] = simd::dot_accumulate(sums[r][1], w1, x);
    }
  }
}

template <int Rows, class Format>
void tile_kernel(const TileArguments& a) {
  simd::F16 f[Rows][2];
  for (int r = 0; r < Rows; ++r) {
    f[r][0] = simd::load(a.sums + r * panel_channels);
    f[r][1] = simd::load(a.sums + r * panel_channels + 16);
  }
  const uint8_t* scales = a.scales;
  const uint8_t* codes = a.codes;
  const Prefetch ahead(a, 0, 1);
  for (int64_t block = 0; block < a.blocks; ++block) {
    ahead.fetch(block);
    for (int part = 0; part < Format::groups; ++part) {
      simd::I16 sums[Rows][2];
      integer_sums<Rows, Format>(a, codes, block, part, sums);
      const uint16_t* d = reinterpret_cast<const uint16_t*>(scales +
                                                            part * Format::group_scales_bytes);
      const simd::F16 d0 = simd::load_fp16(d);
      const simd::F16 d1 = simd::load_fp16(d + 16);
OCTAVO_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const simd::F16 scale = simd::set1(a.groups[r * a.groups_stride + block].scale);
        f[r][0] = simd::fma(simd::mul(simd::to_float(sums[r][0]), scale), d0, f[r][0]);
        f[r][1] = simd::fma(simd::mul(simd::to_float(sums[r][1]), scale), d1, f[r][1]);
      }
      if constexpr (Format::affine) {
        const simd::F16 m0 = simd::load_fp16(d + panel_channels);
        const simd::F16 m1 = simd::load_fp16(d + panel_channels + 16);
OCTAVO_UNROLL
        for (int r = 0; r < Rows; ++r) {
          const simd::F16 sum = simd::set1(
              scaled_code_sum<Format>(a.groups[r * a.groups_stride + block], part));
          f[r][0] = simd::fma(m0, sum, f[r][0]);
          f[r][1] = simd::fma(m1, sum, f[r][1]);
        }
      }
    }
    scales += a.scales_stride;
    codes += a.codes_stride;
  }
  for (int r = 0; r < Rows; ++r) {
    simd::store(a.sums + r * panel_channels, f[r][0]);
    simd::store(a.sums + r * panel_channels + 16, f[r][1]);
  }
}

}  // namespace octavo::OCTAVO_TIER
