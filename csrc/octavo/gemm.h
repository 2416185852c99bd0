// The linear operator: y = x * weight^T (+ bias) over packed weights, and row look-up.
//
// An output element has the same bits for any number of rows, any thread count and any tier: the
// inputs are never split, and groups are added in order.
#pragma once

#include "gemm_float.h"
#include "gemm_kernel.h"
#include "pool.h"
#include "quads.h"
#include "quantize.h"
#include "simd.h"

namespace octavo::OCTAVO_TIER {

// Blocks per pass for a lone row, which reads spread codes once: as few as keep loads in flight.
constexpr int64_t lone_pass_blocks = 4;

struct TileKernels {
  TileKernel by_rows[max_tile_rows];
};

template <class Format>
TileKernels tile_kernels() {
  if constexpr (max_tile_rows == 6) {
    return {{tile_kernel<1, Format>, tile_kernel<2, Format>, tile_kernel<3, Format>,
             tile_kernel<4, Format>, tile_kernel<5, Format>, tile_kernel<6, Format>}};
  } else if constexpr (max_tile_rows == 4) {
    return {{tile_kernel<1, Format>, tile_kernel<2, Format>, tile_kernel<3, Format>,
             tile_kernel<4, Format>}};
  } else {
    return {{tile_kernel<1, Format>}};
  }
}

template <int Bits>
TileKernels kernels_for_nibbles(const PanelFormat& format) {
  if (format.group == 16) {
    return format.affine ? tile_kernels<CodeFormat<Bits, 16, true, 15>>()
                         : tile_kernels<CodeFormat<Bits, 16, false, 15>>();
  }
  return format.affine ? tile_kernels<CodeFormat<Bits, 32, true, 15>>()
                       : tile_kernels<CodeFormat<Bits, 32, false, 15>>();
}

// Codes of 5 and 6 bits, spread to a byte each.
inline TileKernels kernels_for_spread_planes(const PanelFormat& format) {
  if (format.group == 16) return tile_kernels<CodeFormat<8, 16, false, 63>>();
  return format.affine ? tile_kernels<CodeFormat<8, 32, true, 31>>()
                       : tile_kernels<CodeFormat<8, 32, false, 31>>();
}

// The same for a lone row and codes as the panel has them.
inline TileKernels kernels_for_planes(const PanelFormat& format) {
  if (format.group == 16) return {{tile_kernel<1, CodeFormat<6, 16, false, 63>>}};
  return format.affine ? TileKernels{{tile_kernel<1, CodeFormat<5, 32, true, 31>>}}
                       : TileKernels{{tile_kernel<1, CodeFormat<5, 32, false, 31>>}};
}

// `spread` says that the kernel sees what spread_codes makes of the codes.
inline TileKernels kernels_for(const PanelFormat& format, bool spread) {
  if (format.largest_code <= 15) {
    return spread ? kernels_for_nibbles<8>(format) : kernels_for_nibbles<4>(format);
  }
  if (format.largest_code > 63) {
    if constexpr (widens_bytes) {
      if (spread) return tile_kernels<CodeFormat<16, 32, false, 255>>();
    }
    return tile_kernels<CodeFormat<8, 32, false, 255>>();
  }
  if constexpr (reads_planes) {
    if (!spread) return kernels_for_planes(format);
  }
  return kernels_for_spread_planes(format);
}

// Rows of the next tile: full tiles, but no single row left over where two tiles can share.
inline int64_t next_tile_rows(int64_t left, int64_t most) {
  if (left <= most) return left;
  if (left < 2 * most) return (left + 1) / 2;
  return most;
}

// From how many rows on codes are spread: nibbles and bytes once it pays, planes always or for more
// than a row.
inline int64_t first_spread_rows(const PackedWeight& weight) {
  constexpr int64_t never = INT64_MAX, wide_rows = 16;
  switch (weight.format.storage) {
    case Storage::Codes4: return weight.knobs.spread_rows;
    case Storage::Codes8: return widens_bytes ? wide_rows : never;
    default: return reads_planes ? 2 : 1;
  }
}

// sums [rows][32] = term rows [first, first + rows) * panel.
inline void integer_panel(const PackedWeight& weight, const uint8_t* panel,
                          const ActivationBuffer& buffer, int64_t first, int64_t rows,
                          float* sums) {
  alignas(64) uint8_t spread_space[pass_bytes];
  const Storage storage = weight.format.storage;
  const bool spread = rows >= first_spread_rows(weight);
  const TileKernels kernels = kernels_for(weight.format, spread);
  const int64_t blocks = weight.width / block_inputs;
  const int64_t widest = rows <= most_paired_rows ? 2 : max_tile_rows;
  const int64_t most = weight.knobs.tile_rows < widest ? weight.knobs.tile_rows : widest;
  const int64_t tiles = (rows + most - 1) / most;
  const int block_lines = static_cast<int>((weight.block_bytes + 63) / 64);
  // A lone row reads ahead in its own stream; more rows leave time to fetch the next panel, a
  // share of it per tile.
  const int lines = rows == 1 ? block_lines : static_cast<int>((block_lines + tiles - 1) / tiles);
  for (int64_t i = 0; i < rows * panel_channels; ++i) sums[i] = 0.0f;
  const int spread_stride = spread ? spread_bytes(storage) : spread_block_bytes;
  const int64_t pass = rows > 1 ? pass_bytes / spread_stride : spread ? lone_pass_blocks : blocks;
  for (int64_t block = 0; block < blocks; block += pass) {
    const int64_t count = blocks - block < pass ? blocks - block : pass;
    const uint8_t* scales = panel + static_cast<size_t>(block) * weight.block_bytes;
    const uint8_t* codes = scales + weight.scales_bytes;
    if (spread) spread_codes(storage, codes, weight.block_bytes, count, spread_space);
    const uint8_t* ahead =
        scales + (rows == 1 ? size_t(weight.knobs.prefetch_bytes) : weight.panel_bytes);
    int lines_left = block_lines;
    for (int64_t row = 0; row < rows;) {
      const int64_t tile = next_tile_rows(rows - row, most);
      TileArguments a;
      a.scales = scales;
      a.scales_stride = weight.block_bytes;
      a.codes = spread ? spread_space : codes;
      a.codes_stride = spread ? size_t(spread_stride) : weight.block_bytes;
      a.blocks = count;
      a.activations =
          buffer.codes + (first + row) * buffer.codes_stride + block * block_inputs;
      a.activations_stride = buffer.codes_stride;
      a.groups = buffer.groups + (first + row) * buffer.groups_stride + block;
      a.groups_stride = buffer.groups_stride;
      a.zero_point = weight.format.zero_point;
      a.sums = sums + row * panel_channels;
      a.prefetch = ahead;
      a.prefetch_lines = lines_left < lines ? lines_left : lines;
      kernels.by_rows[tile - 1](a);
      ahead += static_cast<size_t>(count) * a.prefetch_lines * 64;
      lines_left -= a.prefetch_lines;
      row += tile;
    }
  }
}

// Offers channels [channel, channel + count) of a row to what the worker keeps of it.
inline void offer_logits(TopLogits& top, simd::F16 value, int64_t channel, int count) {
  uint32_t lanes = simd::not_less(value, simd::set1(top.bound)) & ((1u << count) - 1);
  if (lanes == 0) return;
  float logits[16];
  simd::store(logits, value);
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    keep_logit(top, logits[lane], static_cast<int32_t>(channel + lane));
  }
}

// Finishes `rows` rows of a panel and puts them where they belong; `terms` sums make one row.
inline void store_panel(const LinearTarget& target, int64_t panel, const float* sums, int64_t terms,
                        int64_t first_row, int64_t rows, int worker) {
  const simd::F16 tensor_scale = simd::set1(target.weight->tensor_scale);
  const LogitSink* sink = target.sink;
  for (int half = 0; half < 2; ++half) {
    const int64_t channel = panel * panel_channels + 16 * half;
    const int64_t left = target.weight->channels - channel;
    if (left <= 0) return;
    const int count = static_cast<int>(left < 16 ? left : 16);
    const bool biased = target.bias != nullptr;
    const simd::F16 bias = biased ? simd::load_partial(target.bias + channel, count) : simd::zero();
    for (int64_t row = 0; row < rows; ++row) {
      const float* sum = sums + row * terms * panel_channels + 16 * half;
      simd::F16 value = simd::load(sum);
      if (terms == 2) value = simd::add(value, simd::load(sum + panel_channels));
      value = simd::mul(value, tensor_scale);
      if (biased) value = simd::add(value, bias);
      if (target.softcap > 0.0f) value = cap(value, target.softcap);
      int64_t slot = first_row + row;
      if (sink != nullptr) {
        TopLogits& top = sink->tops[static_cast<size_t>(worker) * sink->rows + slot];
        slot = sink->slots[slot];
        if (slot < 0) {
          offer_logits(top, value, channel, count);
          continue;
        }
      }
      const int64_t place = slot * target.ldy + channel;
      if (target.residual != nullptr) value = simd::add(take(target.residual + place, count), value);
      put(target.y + place, value, count);
    }
  }
}

// One panel of one weight for one block of rows.
inline void linear_task(const LinearTarget& target, const ActivationBuffer& buffer, int64_t panel,
                        int64_t first_term, int64_t term_count, int64_t terms, int worker) {
  alignas(64) float sums[most_block_rows * panel_channels];
  const PackedWeight& weight = *target.weight;
  const uint8_t* data = weight.data + static_cast<size_t>(panel) * weight.panel_bytes;
  const int64_t first_row = first_term / terms;
  const int64_t rows = term_count / terms;
  if (weight.scales_bytes == 0 || buffer.mode == Activations::Fp32) {
    float_panel(weight, data, buffer.x + first_row * buffer.ldx, buffer.ldx, rows, sums);
    store_panel(target, panel, sums, 1, first_row, rows, worker);
  } else {
    integer_panel(weight, data, buffer, first_term, term_count, sums);
    store_panel(target, panel, sums, terms, first_row, rows, worker);
  }
}

// Several weights over the same activations in one parallel region (q/k/v, gate/up). Every weight
// must have the buffer's width.
inline void linear(Pool& pool, const LinearTarget* targets, int count,
                   const ActivationBuffer& buffer) {
  const int64_t terms = buffer.mode == Activations::Int8x2 ? 2 : 1;
  const int64_t term_rows = buffer.rows * terms;
  const LinearKnobs& knobs = targets[0].weight->knobs;
  const int64_t block_rows = knobs.block_rows;
  const int64_t row_blocks = (term_rows + block_rows - 1) / block_rows;
  int64_t panels = 0;
  for (int i = 0; i < count; ++i) panels += targets[i].weight->panels;
  const int64_t chunk = panels / (knobs.chunks_per_thread * pool.threads());
  pool.parallel_for(row_blocks * panels, chunk > 1 ? chunk : 1,
                    [&](int64_t begin, int64_t end, int worker) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task / panels * block_rows;
      const int64_t left = term_rows - first;
      int64_t panel = task % panels;
      const LinearTarget* target = targets;
      while (panel >= target->weight->panels) panel -= (target++)->weight->panels;
      linear_task(*target, buffer, panel, first, left < block_rows ? left : block_rows, terms,
                  worker);
    }
  });
}

inline void linear(Pool& pool, const PackedWeight& weight, const ActivationBuffer& buffer,
                   const float* bias, float* y, int64_t ldy) {
  const LinearTarget target{&weight, bias, y, ldy};
  linear(pool, &target, 1, buffer);
}

// One code out of the codes of a block, see panel.h.
inline int code_at(Storage storage, const uint8_t* codes, int input, int channel) {
  const int step = input / 4;
  const uint8_t* place = codes + channel * 4 + input % 4;
  if (storage == Storage::Codes8) return place[step * step_bytes];
  const int low = (place[step % 4 * step_bytes] >> step / 4 * 4) & 15;
  const int plane_bits = code_bits(storage) - 4;
  if (plane_bits == 0) return low;
  const int plane_steps = 8 / plane_bits;
  const int byte = place[nibble_plane_bytes + step / plane_steps * step_bytes];
  return low | ((byte >> step % plane_steps * plane_bits) & ((1 << plane_bits) - 1)) << 4;
}

// One weight row out of its panel: out[k] = ((d * code + m) * tensor_scale) * scale.
inline void embed_row(const PackedWeight& weight, int64_t token, float scale, float* out) {
  const PanelFormat& format = weight.format;
  const int channel = static_cast<int>(token % panel_channels);
  const uint8_t* panel =
      weight.data + static_cast<size_t>(token / panel_channels) * weight.panel_bytes;
  if (weight.scales_bytes == 0) {
    for (int64_t k = 0; k < weight.width; ++k) {
      const int64_t i = k * panel_channels + channel;
      const float value = format.storage == Storage::Float32
                              ? reinterpret_cast<const float*>(panel)[i]
                              : format.storage == Storage::Float16
                                    ? fp16_to_float(reinterpret_cast<const uint16_t*>(panel)[i])
                                    : bf16_to_float(reinterpret_cast<const uint16_t*>(panel)[i]);
      out[k] = value * scale;
    }
    return;
  }
  for (int64_t k = 0; k < weight.width; ++k) {
    const uint8_t* block = panel + static_cast<size_t>(k / block_inputs) * weight.block_bytes;
    const int input = static_cast<int>(k % block_inputs);
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(block) +
                             input / format.group * panel_channels * (format.affine ? 2 : 1);
    const int code = code_at(format.storage, block + weight.scales_bytes, input, channel);
    const float d = fp16_to_float(scales[channel]);
    const float m = format.affine ? fp16_to_float(scales[panel_channels + channel])
                                  : d * -static_cast<float>(format.zero_point);
    const float value = __builtin_fmaf(static_cast<float>(code), d, m);
    out[k] = (value * weight.tensor_scale) * scale;
  }
}

// out [rows][width] = weight[tokens[r]] * scale, rows ldo apart. Tokens must lie in [0, channels).
inline void embed_rows(Pool& pool, const PackedWeight& weight, const int32_t* tokens, int64_t rows,
                       float scale, float* out, int64_t ldo) {
  pool.parallel_for(rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      embed_row(weight, tokens[row], scale, out + row * ldo);
    }
  });
}

}  // namespace octavo::OCTAVO_TIER
