// Codes of a panel spread to a byte each, in the order of 8-bit panels.
#pragma once

#include "panel.h"
#include "simd.h"

namespace octavo::OCTAVO_TIER {

// Bytes of a block's codes once they are spread.
constexpr int spread_block_bytes = block_inputs * panel_channels;

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

// Spreads the codes of `blocks` blocks, `stride` bytes apart. Not for 8-bit codes.
inline void spread_codes(Storage storage, const uint8_t* codes, size_t stride, int64_t blocks,
                         uint8_t* out) {
  switch (storage) {
    case Storage::Codes5: return spread_blocks<1>(codes, stride, blocks, out);
    case Storage::Codes6: return spread_blocks<2>(codes, stride, blocks, out);
    default: return spread_blocks<0>(codes, stride, blocks, out);
  }
}

}  // namespace octavo::OCTAVO_TIER
