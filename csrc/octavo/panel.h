// How a weight matrix [channels, width] lies in memory once it is packed.
//
// A panel is 32 output channels by the whole width, one contiguous stream of blocks of 32 inputs:
//   codes   per group of `group` inputs: 32 fp16 scales d, then (affine) 32 fp16 minimums m;
//           then the codes of the block. Weight = d * (code - zero_point), or d * code + m.
//           8 bit: byte (step, half, lane, b) is channel 16 * half + lane, input 4 * step + b,
//           in this order (64 bytes a step and half). 4 bit: the same for steps 0..3 in the low
//           nibbles; step + 4 in the high ones. 5 and 6 bit: the low 4 bits like this, then planes
//           of the high bits: a byte (half, lane, b) has those of steps 0..7, the first step in its
//           lowest bits (6 bit: a second plane for the steps 4..7).
//   floats  [input][32 channels], the last block shorter when the width is no multiple of 32.
// Codes are unsigned and activations signed, which is what the dot-product instructions want.
// Missing channels of the last panel are zero.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

constexpr int panel_channels = 32;
constexpr int block_inputs = 32;

enum class Storage : uint8_t { Codes4, Codes5, Codes6, Codes8, Float16, BFloat16, Float32 };

// Bits of a code, 0 for floats.
constexpr int code_bits(Storage storage) {
  switch (storage) {
    case Storage::Codes4: return 4;
    case Storage::Codes5: return 5;
    case Storage::Codes6: return 6;
    case Storage::Codes8: return 8;
    default: return 0;
  }
}

// The low 4 bits of a block's codes, which the planes of 5- and 6-bit codes follow.
constexpr int nibble_plane_bytes = block_inputs * panel_channels / 2;
// A byte (half, lane, b) for all channels: one step of 8-bit codes, or a plane.
constexpr int step_bytes = 4 * panel_channels;

struct PanelFormat {
  Storage storage;
  bool affine;
  uint8_t group;
  uint8_t zero_point;
  // Bound of the codes; smaller ones allow cheaper integer kernels without VNNI.
  uint8_t largest_code;
};

constexpr int32_t most_block_rows = 96;

// How a product with one weight is cut up. No choice changes a bit of the result, so they may be
// measured on a machine and kept, see compute/kernels/cpu/tuning.py.
struct LinearKnobs {
  // Most rows of a micro-kernel's tile; the tier may have fewer, above all where there are few rows.
  int32_t tile_rows = 8;
  // Term rows that go through a panel before the next panel is read.
  int32_t block_rows = most_block_rows;
  // From this many rows on, unpacking a panel of 4-bit codes once beats unpacking it per row tile.
  int32_t spread_rows = 24;
  // Parts that the panels are shared out in.
  int32_t chunks_per_thread = 2;
  // How far a lone row reads ahead in its own stream.
  int32_t prefetch_bytes = 4096;

  constexpr bool valid() const {
    return tile_rows >= 1 && tile_rows <= 64 && block_rows >= 2 && block_rows <= most_block_rows &&
           block_rows % 2 == 0 && spread_rows >= 1 && chunks_per_thread >= 1 &&
           chunks_per_thread <= 1024 && prefetch_bytes >= 0 && prefetch_bytes <= (1 << 20);
  }
};

// A packed matrix: a view of memory that an Arena owns.
struct PackedWeight {
  PanelFormat format;
  int64_t channels;
  int64_t width;
  int64_t panels;
  size_t panel_bytes;
  // Bytes of a block, and of the scales in front of its codes.
  size_t block_bytes;
  size_t scales_bytes;
  // Power of two taken out of d and m so that they fit fp16 well; every result is multiplied by it.
  float tensor_scale;
  const uint8_t* data;
  LinearKnobs knobs;
};

}  // namespace octavo
