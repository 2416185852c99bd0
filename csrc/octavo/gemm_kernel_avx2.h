// Integer micro-kernel for AVX2 without VNNI.
//
// maddubs adds two products u8 * s8 with 16-bit saturation, so the way to an exact sum depends on
// the largest code. With a zero point in the middle of the codes, the sum of a whole group about it
// fits 16 bits: 8 steps of 2 products of at most 16 * 127, or the 4 steps of a group of 16 with
// codes up to 63. Sums of 16 bits wrap around, so only the last one has to fit. Without a zero point
// eight steps fit for codes up to 15, four up to 31. Full bytes (zero point 128) become signed and
// lend their sign to the activation, whose pair sums then stay below 2 * 128 * 127; where many rows
// share the work, they and the activations are widened to 16 bits, which saves that step a product.
#pragma once

#include <immintrin.h>

#include "gemm_kernel.h"
#include "gemm_unpack.h"

namespace octavo::OCTAVO_TIER {

// Six rows of two registers of channels: 12 sums and what makes them fill the 16 registers.
constexpr int max_tile_rows = 6;
// Few rows wait for the memory. Tiles of two take all channels of a block in one pass, line after
// line, larger ones every second line in each of two passes, which the processor fetches later.
constexpr int64_t most_paired_rows = 8;
// A lone row takes the bits out of their planes as it goes.
constexpr bool reads_planes = true;

template <class Format>
constexpr bool signed_codes = Format::largest_code > 63 && !Format::wide;

// Sums of 16 bits start with what the zero point takes away, and the code's distance to it counts.
template <class Format>
constexpr bool centred = !Format::affine && !signed_codes<Format> && !Format::wide;

OCTAVO_INLINE __m256i load_codes(const uint8_t* codes, int step, int column) {
  return _mm256_load_si256(
      reinterpret_cast<const __m256i*>(codes + step * step_bytes + column * 32));
}

// The bits of `step` out of the planes of 8 channels, moved to bit 4 of each byte.
template <int Bits>
OCTAVO_INLINE __m256i load_plane_bits(const uint8_t* planes, int step, int column) {
  constexpr int steps = 8 / Bits;
  const __m256i plane = load_codes(planes, step / steps, column);
  const int shift = 4 - step % steps * Bits;
  // What crosses into a neighbouring byte falls to the mask.
  const __m256i moved =
      shift >= 0 ? _mm256_slli_epi16(plane, shift) : _mm256_srli_epi16(plane, -shift);
  return _mm256_and_si256(moved, _mm256_set1_epi8(Bits == 1 ? 0x10 : 0x30));
}

// 8 channels of one step; `column` counts registers of 8 channels from `codes` on.
template <class Format>
OCTAVO_INLINE __m256i load_column(const uint8_t* codes, int step, int column) {
  if constexpr (Format::packed) {
    const __m256i both = load_codes(codes, step & 3, column);
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i low = _mm256_and_si256(step < 4 ? both : _mm256_srli_epi16(both, 4), mask);
    if constexpr (Format::plane_bits == 0) {
      return low;
    } else {
      const uint8_t* planes = codes + nibble_plane_bytes;
      return _mm256_or_si256(low, load_plane_bits<Format::plane_bits>(planes, step, column));
    }
  } else {
    return load_codes(codes, step, column);
  }
}

OCTAVO_INLINE __m256i load_four(const int8_t* activations) {
  int32_t four;
  __builtin_memcpy(&four, activations, sizeof four);
  return _mm256_set1_epi32(four);
}

// 8 fp16 scales or minimums.
OCTAVO_INLINE __m256 load_scales(const uint8_t* scales) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(scales)));
}

// Integer addition is associative, and GCC would make a tree of a chain of sums, with every product
// alive and spilled. An empty statement that "changes" the sum keeps the chain.
OCTAVO_INLINE void keep_order(__m256i& sum) { asm("" : "+x"(sum)); }

// Steps whose pair sums may be added in 16 bits before they are widened.
template <class Format>
constexpr int steps_in_16_bits() {
  if constexpr (signed_codes<Format>) {
    return 1;
  } else {
    constexpr int steps = Format::group / 4;
    constexpr int largest = centred<Format> ? (Format::largest_code + 1) / 2 : Format::largest_code;
    constexpr int fit = 32767 / (2 * 127 * largest);
    static_assert(fit >= steps || (!centred<Format> && fit >= 4), "a sum does not fit 16 bits");
    return fit >= steps ? steps : 4;
  }
}

// A block for the `Columns` registers of 8 channels that the pointers start at.
struct BlockPointers {
  const uint8_t* scales;
  const uint8_t* codes;
  const int8_t* x;
  int64_t x_stride;
  const ActivationGroup* groups;
  float* sums;
};

// words = -zero point * the row's sums of code pairs.
template <int Rows, int Columns, class Format>
OCTAVO_INLINE void start_sums(const TileArguments& a, const BlockPointers& p, int part,
                              __m256i (&words)[Rows][Columns]) {
  const __m256i factor = _mm256_set1_epi16(static_cast<int16_t>(-a.zero_point));
OCTAVO_UNROLL
  for (int r = 0; r < Rows; ++r) {
    int32_t two;
    __builtin_memcpy(&two, pair_sums<Format>(p.groups[r * a.groups_stride], part), sizeof two);
    const __m256i start = _mm256_mullo_epi16(_mm256_set1_epi32(two), factor);
OCTAVO_UNROLL
    for (int c = 0; c < Columns; ++c) words[r][c] = start;
  }
}

template <int Rows, int Columns, class Format>
OCTAVO_INLINE void integer_sums(const TileArguments& a, const BlockPointers& p, int part,
                                __m256i (&sums)[Rows][Columns]) {
  constexpr int steps = Format::group / 4;
  constexpr int run = steps_in_16_bits<Format>();
  const __m256i ones = _mm256_set1_epi16(1);
OCTAVO_UNROLL
  for (int first = 0; first < steps; first += run) {
    __m256i words[Rows][Columns];
    if constexpr (centred<Format>) start_sums<Rows, Columns, Format>(a, p, part, words);
OCTAVO_UNROLL
    for (int s = 0; s < run; ++s) {
      const int ordinal = first + s;
      // Packed codes of the steps s and s + 4 share their bytes: take them one after the other.
      const int step = steps == 8 && Format::packed ? (ordinal & 1) * 4 + ordinal / 2
                                                    : part * steps + ordinal;
      __m256i w[Columns];
      __m256i magnitude[Columns];
OCTAVO_UNROLL
      for (int c = 0; c < Columns; ++c) {
        w[c] = load_column<Format>(p.codes, step, c);
        if constexpr (signed_codes<Format>) {
          w[c] = _mm256_xor_si256(w[c], _mm256_set1_epi8(-128));
          magnitude[c] = _mm256_abs_epi8(w[c]);
        }
      }
OCTAVO_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const __m256i four = load_four(p.x + r * p.x_stride + step * 4);
OCTAVO_UNROLL
        for (int c = 0; c < Columns; ++c) {
          __m256i product;
          if constexpr (signed_codes<Format>) {
            product = _mm256_maddubs_epi16(magnitude[c], _mm256_sign_epi8(four, w[c]));
          } else {
            product = _mm256_maddubs_epi16(w[c], four);
          }
          words[r][c] = s == 0 && !centred<Format> ? product : _mm256_add_epi16(words[r][c], product);
          keep_order(words[r][c]);
        }
      }
    }
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) {
OCTAVO_UNROLL
      for (int c = 0; c < Columns; ++c) {
        const __m256i wide = _mm256_madd_epi16(words[r][c], ones);
        sums[r][c] = first == 0 ? wide : _mm256_add_epi32(sums[r][c], wide);
        keep_order(sums[r][c]);
      }
    }
  }
}

// The same over codes and activations of 16 bits: activations of a block are [even, odd][step].
template <int Rows, int Columns>
OCTAVO_INLINE void wide_sums(const BlockPointers& p, __m256i (&sums)[Rows][Columns]) {
OCTAVO_UNROLL
  for (int r = 0; r < Rows; ++r) {
OCTAVO_UNROLL
    for (int c = 0; c < Columns; ++c) sums[r][c] = _mm256_setzero_si256();
  }
#pragma GCC unroll 16
  for (int pair = 0; pair < block_inputs / 2; ++pair) {
    const int8_t* x = p.x + pair % 2 * block_inputs + pair / 2 * 4;
    __m256i w[Columns];
OCTAVO_UNROLL
    for (int c = 0; c < Columns; ++c) w[c] = load_codes(p.codes, pair, c);
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const __m256i two = load_four(x + r * p.x_stride);
OCTAVO_UNROLL
      for (int c = 0; c < Columns; ++c) {
        sums[r][c] = _mm256_add_epi32(sums[r][c], _mm256_madd_epi16(w[c], two));
        keep_order(sums[r][c]);
      }
    }
  }
}

// Registers hold the integer sums; the float sums stay in memory (first-level cache), for both do
// not fit 16 registers.
template <int Rows, int Columns, class Format>
OCTAVO_INLINE void add_group(const TileArguments& a, const BlockPointers& p, int part) {
  __m256i sums[Rows][Columns];
  if constexpr (Format::wide) {
    wide_sums<Rows, Columns>(p, sums);
  } else {
    integer_sums<Rows, Columns, Format>(a, p, part, sums);
  }
  const uint8_t* d = p.scales + part * Format::group_scales_bytes;
  __m256 scale[Columns];
  __m256 minimum[Columns];
OCTAVO_UNROLL
  for (int c = 0; c < Columns; ++c) {
    scale[c] = load_scales(d + 16 * c);
    if constexpr (Format::affine) minimum[c] = load_scales(d + 2 * panel_channels + 16 * c);
  }
OCTAVO_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const ActivationGroup& group = p.groups[r * a.groups_stride];
    const __m256 row_scale = _mm256_set1_ps(group.scale);
    float* out = p.sums + r * panel_channels;
OCTAVO_UNROLL
    for (int c = 0; c < Columns; ++c) {
      const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[r][c]), row_scale);
      __m256 f = _mm256_fmadd_ps(scaled, scale[c], _mm256_loadu_ps(out + 8 * c));
      if constexpr (Format::affine) {
        const __m256 scaled_sum = _mm256_set1_ps(scaled_code_sum<Format>(group, part));
        f = _mm256_fmadd_ps(minimum[c], scaled_sum, f);
      }
      _mm256_storeu_ps(out + 8 * c, f);
    }
  }
}

// The activations of a tile over the blocks of a pass, 16 bits each.
template <int Rows>
struct WideActivations {
  static constexpr int block_bytes = 2 * block_inputs;
  alignas(64) int8_t rows[Rows][pass_bytes / wide_block_bytes * block_bytes];
};

template <int Rows>
OCTAVO_INLINE void widen_activations(const TileArguments& a, WideActivations<Rows>* wide) {
  for (int r = 0; r < Rows; ++r) {
    const int8_t* x = a.activations + r * a.activations_stride;
    for (int64_t block = 0; block < a.blocks; ++block, x += block_inputs) {
      const WordPairs words = widen_bytes(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
      __m256i* to = reinterpret_cast<__m256i*>(wide->rows[r] + block * wide->block_bytes);
      _mm256_store_si256(to, words.even);
      _mm256_store_si256(to + 1, words.odd);
    }
  }
}

// The tile with activations `x` of `block_bytes` a block.
template <int Rows, class Format>
OCTAVO_INLINE void run_tile(const TileArguments& a, const int8_t* x, int64_t x_stride,
                            int block_bytes) {
  // Signed codes need their magnitudes and every activation's sign besides.
  constexpr int columns = Rows <= 2 ? 4 : signed_codes<Format> && Rows > 4 ? 1 : 2;
  for (int column = 0; column < 4; column += columns) {
    BlockPointers p{a.scales + 16 * column, a.codes + 32 * column, x, x_stride, a.groups,
                    a.sums + 8 * column};
    const Prefetch ahead(a, column / columns, 4 / columns);
    for (int64_t block = 0; block < a.blocks; ++block) {
      ahead.fetch(block);
      for (int part = 0; part < Format::groups; ++part) {
        add_group<Rows, columns, Format>(a, p, part);
      }
      p.scales += a.scales_stride;
      p.codes += a.codes_stride;
      p.x += block_bytes;
      ++p.groups;
    }
  }
}

template <int Rows, class Format>
void tile_kernel(const TileArguments& a) {
  if constexpr (Format::wide) {
    WideActivations<Rows> wide;
    widen_activations(a, &wide);
    run_tile<Rows, Format>(a, wide.rows[0], sizeof wide.rows[0], wide.block_bytes);
  } else {
    run_tile<Rows, Format>(a, a.activations, a.activations_stride, block_inputs);
  }
}

}  // namespace octavo::OCTAVO_TIER
