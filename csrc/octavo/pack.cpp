#include "pack.h"

#include <atomic>
#include <cmath>
#include <cstring>

#include "dequant.h"
#include "fp16.h"

namespace octavo {
namespace {

using common::float_to_fp16;

constexpr int channel_stride_codes8 = 4;
constexpr int half_bytes = 64;

struct Source {
  const uint8_t* rows;
  size_t row_bytes;
  const BlockFormat* format;
};

// Codes of one channel's 32 inputs into its places in a block. `codes` points at the block's codes.
void place_codes(Storage storage, const uint8_t* source, int channel, uint8_t* codes) {
  uint8_t* place = codes + channel / 16 * half_bytes + channel % 16 * channel_stride_codes8;
  if (storage == Storage::Codes8) {
    for (int step = 0; step < 8; ++step) {
      std::memcpy(place + step * step_bytes, source + 4 * step, 4);
    }
    return;
  }
  for (int step = 0; step < 4; ++step) {
    for (int b = 0; b < 4; ++b) {
      place[step * step_bytes + b] = static_cast<uint8_t>((source[4 * step + b] & 15) |
                                                          (source[16 + 4 * step + b] << 4));
    }
  }
  const int plane_bits = code_bits(storage) - 4;
  if (plane_bits == 0) return;
  uint8_t* planes = place + nibble_plane_bytes;
  const int plane_steps = 8 / plane_bits;
  for (int b = 0; b < 4; ++b) {
    for (int first = 0; first < 8; first += plane_steps, planes += step_bytes) {
      unsigned bits = 0;
      for (int s = 0; s < plane_steps; ++s) {
        bits |= static_cast<unsigned>(source[4 * (first + s) + b] >> 4) << s * plane_bits;
      }
      planes[b] = static_cast<uint8_t>(bits);
    }
    planes = place + nibble_plane_bytes;
  }
}

void place_fp16(uint8_t* place, float value) {
  const uint16_t half = float_to_fp16(value);
  std::memcpy(place, &half, sizeof half);
}

void pack_code_row(const Source& source, const PackedWeight& weight, float factor, int64_t row,
                   uint8_t* panel) {
  const PanelFormat& format = weight.format;
  const int channel = static_cast<int>(row % panel_channels);
  const int groups = block_inputs / format.group;
  const int row_of_scales = format.affine ? 4 * panel_channels : 2 * panel_channels;
  uint8_t codes[largest_block_elements];
  float scales[largest_block_elements / 16];
  float minimums[largest_block_elements / 16];
  const uint8_t* block = source.rows + static_cast<size_t>(row) * source.row_bytes;
  uint8_t* out = panel;
  for (int64_t k = 0; k < weight.width; k += source.format->block_elements) {
    source.format->decode(block, codes, scales, minimums);
    block += source.format->block_bytes;
    for (int part = 0; part < source.format->block_elements / block_inputs; ++part) {
      for (int g = 0; g < groups; ++g) {
        uint8_t* place = out + g * row_of_scales + 2 * channel;
        place_fp16(place, scales[part * groups + g] * factor);
        if (format.affine) {
          place_fp16(place + 2 * panel_channels, minimums[part * groups + g] * factor);
        }
      }
      place_codes(format.storage, codes + part * block_inputs, channel, out + weight.scales_bytes);
      out += weight.block_bytes;
    }
  }
}

void pack_float_row(const Source& source, const PackedWeight& weight, int64_t row, uint8_t* panel) {
  const size_t element_bytes = static_cast<size_t>(source.format->block_bytes);
  const uint8_t* from = source.rows + static_cast<size_t>(row) * source.row_bytes;
  uint8_t* to = panel + static_cast<size_t>(row % panel_channels) * element_bytes;
  for (int64_t k = 0; k < weight.width; ++k) {
    std::memcpy(to, from, element_bytes);
    from += element_bytes;
    to += element_bytes * panel_channels;
  }
}

// Largest finite |scale| and |minimum| of a row.
float largest_scale(const Source& source, int64_t width, int64_t row) {
  uint8_t codes[largest_block_elements];
  float scales[largest_block_elements / 16];
  float minimums[largest_block_elements / 16] = {};
  const BlockFormat& format = *source.format;
  const int groups = format.block_elements / format.panel.group;
  const uint8_t* block = source.rows + static_cast<size_t>(row) * source.row_bytes;
  float largest = 0.0f;
  for (int64_t k = 0; k < width; k += format.block_elements, block += format.block_bytes) {
    format.decode(block, codes, scales, minimums);
    for (int g = 0; g < groups; ++g) {
      const float a = std::fabs(scales[g]);
      const float b = std::fabs(minimums[g]);
      if (a > largest && std::isfinite(a)) largest = a;
      if (b > largest && std::isfinite(b)) largest = b;
    }
  }
  return largest;
}

// The power of two that brings the largest scale of the tensor into [2^9, 2^10): far from the
// subnormals of fp16 and from its overflow.
float scale_factor(Pool& pool, const Source& source, int64_t channels, int64_t width) {
  std::atomic<float> largest{0.0f};
  pool.parallel_for(channels, panel_channels, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float found = largest_scale(source, width, row);
      float seen = largest.load(std::memory_order_relaxed);
      while (found > seen && !largest.compare_exchange_weak(seen, found)) {
      }
    }
  });
  const float value = largest.load();
  return value > 0.0f ? std::ldexp(1.0f, 9 - std::ilogb(value)) : 1.0f;
}

PackedWeight plan(const BlockFormat& format, int64_t channels, int64_t width) {
  PackedWeight weight{};
  weight.format = format.panel;
  weight.channels = channels;
  weight.width = width;
  weight.panels = (channels + panel_channels - 1) / panel_channels;
  weight.tensor_scale = 1.0f;
  if (format.decode == nullptr) {
    weight.block_bytes = size_t{block_inputs} * panel_channels * format.block_bytes;
    weight.panel_bytes = static_cast<size_t>(width) * panel_channels * format.block_bytes;
    return weight;
  }
  const size_t scales = size_t{block_inputs} / format.panel.group * (format.panel.affine ? 2 : 1);
  weight.scales_bytes = scales * panel_channels * sizeof(uint16_t);
  weight.block_bytes = weight.scales_bytes + size_t{block_inputs} * panel_channels *
                                                 code_bits(format.panel.storage) / 8;
  weight.panel_bytes = static_cast<size_t>(width / block_inputs) * weight.block_bytes;
  return weight;
}

}  // namespace

size_t row_bytes(int ggml_type, int64_t width) {
  const BlockFormat* format = find_block_format(ggml_type);
  if (format == nullptr || width <= 0 || width % format->block_elements != 0) return 0;
  return static_cast<size_t>(width / format->block_elements) * format->block_bytes;
}

PackStatus pack(Pool& pool, Arena& arena, const void* rows, size_t bytes, int ggml_type,
                int64_t channels, int64_t width, PackedWeight& packed) {
  const BlockFormat* format = find_block_format(ggml_type);
  if (format == nullptr) return PackStatus::UnknownType;
  const Source source{static_cast<const uint8_t*>(rows), row_bytes(ggml_type, width), format};
  if (source.row_bytes == 0 || channels <= 0) return PackStatus::BadShape;
  if (bytes / source.row_bytes != static_cast<size_t>(channels) || bytes % source.row_bytes != 0) {
    return PackStatus::WrongSize;
  }
  PackedWeight weight = plan(*format, channels, width);
  float factor = 1.0f;
  if (format->folded_scales) {
    factor = scale_factor(pool, source, channels, width);
    weight.tensor_scale = 1.0f / factor;
  }
  uint8_t* data =
      static_cast<uint8_t*>(arena.allocate(static_cast<size_t>(weight.panels) * weight.panel_bytes));
  pool.parallel_for(weight.panels, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin * panel_channels; row < end * panel_channels && row < channels; ++row) {
      uint8_t* panel = data + static_cast<size_t>(row / panel_channels) * weight.panel_bytes;
      if (format->decode == nullptr) {
        pack_float_row(source, weight, row, panel);
      } else {
        pack_code_row(source, weight, factor, row, panel);
      }
    }
  });
  weight.data = data;
  packed = weight;
  return PackStatus::Ok;
}

}  // namespace octavo
