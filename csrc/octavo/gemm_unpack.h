// Codes of a panel spread to a byte each, in the order of 8-bit panels; 8-bit codes to two bytes.
#pragma once

#include "panel.h"
#include "simd.h"

namespace octavo::OCTAVO_TIER {

// Bytes of a block's codes once they are spread.
constexpr int spread_block_bytes = block_inputs * panel_channels;
constexpr int wide_block_bytes = 2 * spread_block_bytes;
// Spread codes of a pass, which stay in the first-level cache over all row tiles.
constexpr int pass_bytes = 16 << 10;

#if defined(OCTAVO_TIER_AVX2)
// With 16 bits a product of full bytes needs no care for their signs.
constexpr bool widens_bytes = true;

// Signed bytes, four a lane of 32 bits, as 16-bit pairs: bytes 0 and 2, and bytes 1 and 3.
struct WordPairs {
  __m256i even, odd;
};

OCTAVO_INLINE WordPairs widen_bytes(__m256i fours) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(fours, 8), 8), _mm256_srai_epi16(fours, 8)};
}

// Codes about their zero point of 128, a block as [step][even, odd][32 channels].
inline void widen_blocks(const uint8_t* codes, size_t stride, int64_t blocks, uint8_t* out) {
  for (int64_t block = 0; block < blocks; ++block, codes += stride) {
    for (int step = 0; step < block_inputs / 4; ++step, out += 2 * step_bytes) {
OCTAVO_UNROLL
      for (int byte = 0; byte < step_bytes; byte += 32) {
        const __m256i code = _mm256_load_si256(
            reinterpret_cast<const __m256i*>(codes + step * step_bytes + byte));
        const WordPairs words = widen_bytes(_mm256_xor_si256(code, _mm256_set1_epi8(-128)));
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + byte), words.even);
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + step_bytes + byte), words.odd);
      }
    }
  }
}
#else
constexpr bool widens_bytes = false;
#endif

// The bits of `step` out of a plane with `Bits` bits a code, moved to bit 4 of each byte.
template <int Bits, int Step>
OCTAVO_INLINE simd::I16 plane_bits(const uint8_t* planes, int half) {
  constexpr int steps = 8 / Bits;
  constexpr int shift = 4 - Step % steps * Bits;
  const simd::I16 plane =
      simd::as_int(simd::load_bytes(planes + (Step / steps * 2 + half) * 64));
  // What crosses into a neighbouring byte falls to the mask.
  const simd::I16 moved = shift >= 0 ? simd::shift_left<(shift > 0 ? shift : 0)>(plane)
                                     : simd::shift_right<(shift < 0 ? -shift : 0)>(plane);
  return simd::bit_and(moved, simd::set1_int(Bits == 1 ? 0x10101010 : 0x30303030));
}

template <int PlaneBits, int Step>
OCTAVO_INLINE void spread_step(const uint8_t* codes, uint8_t* out) {
  for (int half = 0; half < 2; ++half) {
    const simd::Bytes both = simd::load_bytes(codes + (Step % 4 * 2 + half) * 64);
    simd::Bytes code = Step < 4 ? simd::low_nibbles(both) : simd::high_nibbles(both);
    if constexpr (PlaneBits > 0) {
      const simd::I16 high = plane_bits<PlaneBits, Step>(codes + nibble_plane_bytes, half);
      code = simd::as_bytes(simd::add(simd::as_int(code), high));
    }
    simd::store_bytes(out + (Step * 2 + half) * 64, code);
  }
}

template <int PlaneBits>
OCTAVO_INLINE void spread_blocks(const uint8_t* codes, size_t stride, int64_t blocks,
                                 uint8_t* out) {
  for (int64_t block = 0; block < blocks; ++block, codes += stride, out += spread_block_bytes) {
    spread_step<PlaneBits, 0>(codes, out);
    spread_step<PlaneBits, 1>(codes, out);
    spread_step<PlaneBits, 2>(codes, out);
    spread_step<PlaneBits, 3>(codes, out);
    spread_step<PlaneBits, 4>(codes, out);
    spread_step<PlaneBits, 5>(codes, out);
    spread_step<PlaneBits, 6>(codes, out);
    spread_step<PlaneBits, 7>(codes, out);
  }
}

// What a block takes when codes of a storage are spread.
constexpr int spread_bytes(Storage storage) {
  return widens_bytes && storage == Storage::Codes8 ? wide_block_bytes : spread_block_bytes;
}

// Spreads the codes of `blocks` blocks, `stride` bytes apart. 8-bit codes only if the tier widens
// them.
inline void spread_codes(Storage storage, const uint8_t* codes, size_t stride, int64_t blocks,
                         uint8_t* out) {
  switch (storage) {
    case Storage::Codes5: return spread_blocks<1>(codes, stride, blocks, out);
    case Storage::Codes6: return spread_blocks<2>(codes, stride, blocks, out);
#if defined(OCTAVO_TIER_AVX2)
    case Storage::Codes8: return widen_blocks(codes, stride, blocks, out);
#endif
    default: return spread_blocks<0>(codes, stride, blocks, out);
  }
}

}  // namespace octavo::OCTAVO_TIER
