// The products of attention: one tile of 64 tokens against a few query rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "octavo/kv.h"
#include "octavo/quads.h"
#include "octavo/registers.h"
#include "octavo/simd.h"

namespace octavo {
namespace OCTAVO_TIER {

constexpr int kTileTokens = 64;
constexpr int kSegmentTokens = 512;
constexpr int kGroupTokens = 16;

// Rows that share every load of K and V, and the registers of K or V they are multiplied with at a
// time: as many sums as the tier has registers for, and no fewer than hide the latency of an fma.
constexpr int kMaxRows = 6;
#if defined(OCTAVO_TIER_AVX2)
constexpr int block_registers(int rows) { return rows == 1 ? 8 : rows < 4 ? 4 : 2; }
// Values have no pairs of registers to keep together, so four rows can take three.
constexpr int narrow_registers(int rows) { return rows == 4 ? 3 : block_registers(rows); }
#else
constexpr int block_registers(int) { return 4; }
constexpr int narrow_registers(int rows) { return block_registers(rows); }
#endif
// Heads whose values of a tile stay in the nearest cache over all passes, which lines shared by two
// passes rely on.
constexpr int kNarrowHeadDim = 64;

// The next of `left` rows that go through a tile together. Two even parts beat a full block and a
// remainder (7 = 4 + 3, not 6 + 1).
constexpr int rows_together(int left) {
  return left <= kMaxRows ? left : left < 2 * kMaxRows ? (left + 1) / 2 : kMaxRows;
}

// A task's rows: query tokens x heads of one kv head, token-major; row r sees [low[r], high[r]).
// Queries are scaled; over an int8 cache they are codes.
struct RowBlock {
  // One part after the other of rows that go together, [head_dim / 4][rows of the part][4]: a
  // product reads them in this order.
  const float* q;
  const int8_t* codes;  // the same shape, a scale and a sum of the codes a row
  const float* scales;
  const int32_t* sums;
  const int* low;
  const int* high;
  int rows;
};

// Up to 64 tokens of one head as groups of 16; only groups [first, last) are set. Codes have
// scales, [16] a group.
template <class Key, class Value>
struct Tile {
  const Key* keys[kTileTokens / kGroupTokens];
  const Value* values[kTileTokens / kGroupTokens];
  const float* key_scales[kTileTokens / kGroupTokens];
  const float* value_scales[kTileTokens / kGroupTokens];
  size_t key_stride;  // elements from one quad to the next
  int first;
  int last;

  static constexpr bool coded = std::is_same<Key, int8_t>::value;
  bool has(int group) const { return group >= first && group < last; }
};

template <class Element>
OCTAVO_INLINE void prefetch(const Element* begin, size_t count) {
  const char* ahead = reinterpret_cast<const char*>(begin);
  for (size_t byte = 0; byte < count * sizeof(Element); byte += 64) {
    __builtin_prefetch(ahead + byte, 0, 2);
  }
}

// Asks for a part of the next keys in step `quad` of a group's product. Two groups take turns, so
// that the lines of a page are asked for in the order of their addresses, as memory likes it.
template <class Tile>
OCTAVO_INLINE void fetch_keys(const Tile& next, int group, int quad, int quads) {
  const int step = group % 2 * quads + quad, source = group / 2 * 2 + step % 2;
  if (next.has(source)) prefetch(next.keys[source] + step / 2 * next.key_stride, kGroupTokens * 4);
}

// One step of a register block: sum[r][v] += x[r] * y[v]. The smaller side stays in registers while
// the other one streams by, so that sums, one side and one more register are all that live.
template <int Rows, int Registers, class LoadRow, class LoadColumn>
OCTAVO_INLINE void multiply_block(const LoadRow& load_row, const LoadColumn& load_column,
                                  Register (&sum)[Rows][Registers]) {
  if constexpr (Rows >= Registers) {
    Register column[Registers];
OCTAVO_UNROLL
    for (int v = 0; v < Registers; ++v) column[v] = load_column(v);
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Register x = load_row(r);
OCTAVO_UNROLL
      for (int v = 0; v < Registers; ++v) sum[r][v] = multiply_add(x, column[v], sum[r][v]);
    }
  } else {
    Register x[Rows];
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) x[r] = load_row(r);
OCTAVO_UNROLL
    for (int v = 0; v < Registers; ++v) {
      const Register column = load_column(v);
OCTAVO_UNROLL
      for (int r = 0; r < Rows; ++r) sum[r][v] = multiply_add(x[r], column, sum[r][v]);
    }
  }
}

// scores[r][t] = q[r] . k[t] for the groups [first, last): four chains over the quads' lanes,
// joined by quad_sum. `next` is the tile to come, or null.
template <int Rows, class Tile>
inline void float_scores(const float* q, int head_dim, const Tile& tile, int first, int last,
                         const Tile* next, float* scores) {
  constexpr int kTogether = block_registers(Rows), kRegisters = 4 * kGroupTokens / kRegisterLanes;
  constexpr int kPasses = kRegisters / kTogether;
  for (int group = first; group < last; ++group) {
    Register halves[Rows][kRegisters / 2];
    for (int begin = 0; begin < kRegisters; begin += kTogether) {
      Register chain[Rows][kTogether];
OCTAVO_UNROLL
      for (int r = 0; r < Rows; ++r) {
OCTAVO_UNROLL
        for (int v = 0; v < kTogether; ++v) chain[r][v] = zero_register();
      }
      const float* queries = q;
      const auto* keys = tile.keys[group] + begin * kRegisterLanes;
      // Each pass asks for its share, in every kPasses-th step.
      int ahead = begin / kTogether * (head_dim / 4 / kPasses);
      for (int d = 0; d < head_dim; d += 4, queries += 4 * Rows, keys += tile.key_stride) {
        if (next != nullptr && d % (4 * kPasses) == 0) {
          fetch_keys(*next, group, ahead++, head_dim / 4);
        }
        multiply_block<Rows, kTogether>(
            [&](int r) { return repeat_quad(queries + 4 * r); },
            [&](int v) { return load_register(keys + v * kRegisterLanes); }, chain);
      }
OCTAVO_UNROLL
      for (int r = 0; r < Rows; ++r) {
OCTAVO_UNROLL
        for (int v = 0; v < kTogether; v += 2) {
          halves[r][(begin + v) / 2] = neighbour_sums(chain[r][v], chain[r][v + 1]);
        }
      }
    }
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      simd::store(scores + r * kTileTokens + group * kGroupTokens, quad_sum(halves[r]));
    }
  }
}

// The same over codes: exact integer sums, then float(sum) * query scale * key scale.
template <int Rows, class Tile>
inline void code_scores(const RowBlock& block, int row, int head_dim, const Tile& tile, int first,
                        int last, const Tile* next, float* scores) {
  const int8_t* codes = block.codes + size_t(row) * head_dim;
  for (int group = first; group < last; ++group) {
    simd::I16 sum[Rows];
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) sum[r] = signed_dot_start(block.sums[row + r]);
    const auto* keys = tile.keys[group];
    if (next != nullptr && next->has(group)) {
      prefetch(next->key_scales[group], kGroupTokens);
      prefetch(next->value_scales[group], kGroupTokens);
    }
    for (int d = 0; d < head_dim; d += 4, keys += tile.key_stride) {
      if (next != nullptr) fetch_keys(*next, group, d / 4, head_dim / 4);
      const simd::Bytes k = simd::load_bytes(reinterpret_cast<const uint8_t*>(keys));
OCTAVO_UNROLL
      for (int r = 0; r < Rows; ++r) {
        sum[r] = signed_dot(sum[r], k, simd::load_quad(codes + d * Rows + 4 * r));
      }
    }
    const simd::F16 key_scale = simd::load(tile.key_scales[group]);
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const simd::F16 scaled = simd::mul(simd::to_float(sum[r]), simd::set1(block.scales[row + r]));
      simd::store(scores + r * kTileTokens + group * kGroupTokens, simd::mul(scaled, key_scale));
    }
  }
}

template <int Rows, class Tile>
inline void tile_scores(const RowBlock& block, int row, int head_dim, const Tile& tile, int first,
                        int last, const Tile* next, float* scores) {
  if constexpr (Tile::coded) {
    code_scores<Rows>(block, row, head_dim, tile, first, last, next, scores);
  } else {
    float_scores<Rows>(block.q + size_t(row) * head_dim, head_dim, tile, first, last, next, scores);
  }
}

// The columns [column, column + Registers * lanes) of tile_values.
template <int Rows, int Registers, class Tile>
inline void value_columns(const float* weights, int begin, int end, const Tile& tile,
                          const Tile* next, int head_dim, int column, float* output) {
  constexpr int kWidth = Registers * kRegisterLanes;
  Register sum[Rows][Registers];
OCTAVO_UNROLL
  for (int r = 0; r < Rows; ++r) {
OCTAVO_UNROLL
    for (int v = 0; v < Registers; ++v) {
      sum[r][v] = load_register(output + size_t(r) * head_dim + column + v * kRegisterLanes);
    }
  }
  for (int t = begin; t < end;) {
    const int group = t / kGroupTokens;
    const int stop = (group + 1) * kGroupTokens < end ? (group + 1) * kGroupTokens : end;
    const size_t offset = size_t(t % kGroupTokens) * head_dim + column;
    const auto* values = tile.values[group] + offset;
    // Also in the order of addresses: whole tokens, though this one is read in columns.
    const int done = column * kTileTokens + group * kGroupTokens * kWidth;
    const int ahead_group = done / (kGroupTokens * head_dim);
    const bool fetch = next != nullptr && next->has(ahead_group);
    const auto* ahead =
        fetch ? next->values[ahead_group] + done % (kGroupTokens * head_dim) : values;
    for (; t < stop; ++t, values += head_dim, ahead += kWidth) {
      if (fetch) prefetch(ahead, kWidth);
      multiply_block<Rows, Registers>(
          [&](int r) { return repeat(weights[r * kTileTokens + t]); },
          [&](int v) { return load_register(values + v * kRegisterLanes); }, sum);
    }
  }
OCTAVO_UNROLL
  for (int r = 0; r < Rows; ++r) {
OCTAVO_UNROLL
    for (int v = 0; v < Registers; ++v) {
      store_register(output + size_t(r) * head_dim + column + v * kRegisterLanes, sum[r][v]);
    }
  }
}

// All of the columns from `column` on that `Registers` registers cut evenly; returns the next one.
template <int Rows, int Registers, class Tile>
inline int value_block(const float* weights, int begin, int end, const Tile& tile,
                       const Tile* next, int head_dim, int column, float* output) {
  constexpr int kWidth = Registers * kRegisterLanes;
  for (; column + kWidth <= head_dim; column += kWidth) {
    value_columns<Rows, Registers>(weights, begin, end, tile, next, head_dim, column, output);
  }
  return column;
}

// Pages lie scattered, so the hardware does not foresee the next tile; asking for it evenly while
// this one is computed hides its latency (at once it would stall).
//
// output[r] += sum over tokens [begin, end) of weights[r][t] * v[t], in token order.
template <int Rows, class Tile>
inline void tile_values(const float* weights, int begin, int end, const Tile& tile,
                        const Tile* next, int head_dim, float* output) {
  if (begin >= end) return;
  const auto take = [&](auto registers, int column) {
    return value_block<Rows, registers>(weights, begin, end, tile, next, head_dim, column, output);
  };
  int column = 0;
  if (head_dim <= kNarrowHeadDim) {
    column = take(std::integral_constant<int, narrow_registers(Rows)>(), column);
  }
  column = take(std::integral_constant<int, block_registers(Rows)>(), column);
  take(std::integral_constant<int, 1>(), column);
}

// Weights of codes take in the codes' scales.
template <class Tile>
inline void scale_weights(float* weights, int begin, int end, const Tile& tile) {
  for (int g = begin / kGroupTokens; g * kGroupTokens < end; ++g) {
    float* group = weights + g * kGroupTokens;
    simd::store(group, simd::mul(simd::load(group), simd::load(tile.value_scales[g])));
  }
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
