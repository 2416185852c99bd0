// Integer micro-kernels: a few term rows times one panel over a run of blocks.
//
// Every tier performs the same float operations per output element, in this order, for each group
// of inputs: i = exact integer sum of (code - zero_point) * activation;
// f = fma(float(i) * row scale, d, f); affine formats then f = fma(m, scaled sum of the row, f).
#pragma once

#include "gemm_types.h"
#include "simd.h"

namespace octavo::OCTAVO_TIER {

// What a kernel needs to know of a format at compile time. `Bits` = 8: a byte a code; 4: two codes
// a byte; 5 and 6: that with bit planes, see panel.h; 16: two bytes a code, see gemm_unpack.h.
template <int Bits, int Group, bool Affine, int LargestCode>
struct CodeFormat {
  static constexpr bool packed = Bits < 8;
  static constexpr bool wide = Bits == 16;
  static constexpr int plane_bits = packed ? Bits - 4 : 0;
  static constexpr int group = Group;
  static constexpr bool affine = Affine;
  static constexpr int largest_code = LargestCode;
  static constexpr int groups = block_inputs / Group;
  static constexpr int group_scales_bytes = (Affine ? 2 : 1) * panel_channels * 2;
};

struct TileArguments {
  // Scales and codes of the first block, with their distance to the next block's.
  const uint8_t* scales;
  size_t scales_stride;
  const uint8_t* codes;
  size_t codes_stride;
  int64_t blocks;
  const int8_t* activations;
  int64_t activations_stride;
  const ActivationGroup* groups;
  int64_t groups_stride;
  int zero_point;
  // [rows][32] partial results, read and written.
  float* sums;
  // Lines of memory needed soon, spread over the blocks.
  const uint8_t* prefetch;
  int prefetch_lines;
};

using TileKernel = void (*)(const TileArguments&);

template <class Format>
OCTAVO_INLINE const int16_t* pair_sums(const ActivationGroup& group, int part) {
  return group.pair_sums[Format::group == block_inputs ? 2 : part];
}

template <class Format>
OCTAVO_INLINE int32_t code_sum(const ActivationGroup& group, int part) {
  const int16_t* sums = pair_sums<Format>(group, part);
  return sums[0] + sums[1];
}

template <class Format>
OCTAVO_INLINE float scaled_code_sum(const ActivationGroup& group, int part) {
  if constexpr (Format::group == block_inputs) return group.scaled_sum;
  return group.scale * static_cast<float>(code_sum<Format>(group, part));
}

// What a pass over the blocks fetches. Each of several passes has its share: memory that is all
// wanted in the first one stands idle in the others.
struct Prefetch {
  const uint8_t* begin;
  int block_lines;
  int lines;

  OCTAVO_INLINE Prefetch(const TileArguments& a, int pass, int passes) {
    const int first = a.prefetch_lines * pass / passes;
    begin = a.prefetch + static_cast<size_t>(first) * 64;
    block_lines = a.prefetch_lines;
    lines = a.prefetch_lines * (pass + 1) / passes - first;
  }

  OCTAVO_INLINE void fetch(int64_t block) const {
    if (lines == 0) return;
    const uint8_t* line = begin + static_cast<size_t>(block) * block_lines * 64;
    for (int i = 0; i < lines; ++i) __builtin_prefetch(line + i * 64, 0, 2);
  }
};

}  // namespace octavo::OCTAVO_TIER

#if defined(OCTAVO_TIER_AVX2)
#include "gemm_kernel_avx2.h"
#else
#include "gemm_kernel_generic.h"
#endif
