// The inner kernels of attention: one tile of 64 tokens against a few query rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "octavo/kv.h"
#include "octavo/quads.h"
#include "octavo/simd.h"

namespace octavo {
namespace OCTAVO_TIER {

constexpr int kTileTokens = 64;
constexpr int kSegmentTokens = 512;
constexpr int kGroupTokens = 16;

// Rows that share every load of K and V; bounded by the registers of the tier.
constexpr int kMaxRows = 6;
#if defined(OCTAVO_TIER_AVX512)
constexpr int key_vectors(int) { return 4; }
constexpr int value_vectors(int) { return 4; }
#else
constexpr int key_vectors(int rows) { return rows == 1 ? 4 : rows < 4 ? 2 : 1; }
constexpr int value_vectors(int rows) { return rows == 1 ? 4 : rows < 4 ? 2 : 1; }
#endif

// A task's rows: query tokens x heads of one kv head, token-major; row r sees [low[r], high[r]).
// Queries are scaled; over an int8 cache they are codes.
struct RowBlock {
  const float* q;  // [rows][head_dim]
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

// scores[r][t] = q[r] . k[t]: four chains over the quads' lanes, joined by quad_sum. `next` is the
// tile to come, or null.
template <int Rows, class Tile>
inline void float_scores(const float* q, int head_dim, const Tile& tile, const Tile* next,
                         float* scores) {
  constexpr int kVectors = key_vectors(Rows);
  for (int group = tile.first; group < tile.last; ++group) {
    simd::F16 parts[Rows][4];
    for (int half = 0; half < 4; half += kVectors) {
      simd::F16 chain[Rows][kVectors];
OCTAVO_UNROLL
      for (int r = 0; r < Rows; ++r) {
OCTAVO_UNROLL
        for (int v = 0; v < kVectors; ++v) chain[r][v] = simd::zero();
      }
      const auto* keys = tile.keys[group] + 16 * half;
      const bool fetch = next != nullptr && half == 0 && next->has(group);
      for (int d = 0; d < head_dim; d += 4, keys += tile.key_stride) {
        if (fetch) prefetch(next->keys[group] + d / 4 * next->key_stride, kGroupTokens * 4);
        simd::F16 k[kVectors];
OCTAVO_UNROLL
        for (int v = 0; v < kVectors; ++v) k[v] = load_element(keys + 16 * v);
OCTAVO_UNROLL
        for (int r = 0; r < Rows; ++r) {
          const simd::F16 x = broadcast_quad(q + size_t(r) * head_dim + d);
OCTAVO_UNROLL
          for (int v = 0; v < kVectors; ++v) chain[r][v] = simd::fma(x, k[v], chain[r][v]);
        }
      }
OCTAVO_UNROLL
      for (int r = 0; r < Rows; ++r) {
OCTAVO_UNROLL
        for (int v = 0; v < kVectors; ++v) parts[r][half + v] = chain[r][v];
      }
    }
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      simd::store(scores + r * kTileTokens + group * kGroupTokens,
                  quad_sum(parts[r][0], parts[r][1], parts[r][2], parts[r][3]));
    }
  }
}

// The same over codes: exact integer sums, then float(sum) * query scale * key scale.
template <int Rows, class Tile>
inline void code_scores(const RowBlock& block, int row, int head_dim, const Tile& tile,
                        const Tile* next, float* scores) {
  const int8_t* codes = block.codes + size_t(row) * head_dim;
  for (int group = tile.first; group < tile.last; ++group) {
    simd::I16 sum[Rows];
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) sum[r] = signed_dot_start(block.sums[row + r]);
    const auto* keys = tile.keys[group];
    const bool fetch = next != nullptr && next->has(group);
    if (fetch) prefetch(next->key_scales[group], kGroupTokens);
    for (int d = 0; d < head_dim; d += 4, keys += tile.key_stride) {
      if (fetch) prefetch(next->keys[group] + d / 4 * next->key_stride, kGroupTokens * 4);
      const simd::Bytes k = simd::load_bytes(reinterpret_cast<const uint8_t*>(keys));
OCTAVO_UNROLL
      for (int r = 0; r < Rows; ++r) {
        sum[r] = signed_dot(sum[r], k, simd::load_quad(codes + size_t(r) * head_dim + d));
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
inline void tile_scores(const RowBlock& block, int row, int head_dim, const Tile& tile,
                        const Tile* next, float* scores) {
  if constexpr (Tile::coded) {
    code_scores<Rows>(block, row, head_dim, tile, next, scores);
  } else {
    float_scores<Rows>(block.q + size_t(row) * head_dim, head_dim, tile, next, scores);
  }
}

template <int Rows, int Vectors, class Tile>
inline void value_columns(const float* weights, int begin, int end, const Tile& tile,
                          const Tile* next, int head_dim, int column, float* output) {
  simd::F16 sum[Rows][Vectors];
OCTAVO_UNROLL
  for (int r = 0; r < Rows; ++r) {
OCTAVO_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      sum[r][v] = simd::load(output + size_t(r) * head_dim + column + 16 * v);
    }
  }
  for (int t = begin; t < end; ++t) {
    const int group = t / kGroupTokens;
    const size_t offset = size_t(t % kGroupTokens) * head_dim + column;
    if (next != nullptr && next->has(group)) prefetch(next->values[group] + offset, 16 * Vectors);
    const auto* row = tile.values[group] + offset;
    simd::F16 value[Vectors];
OCTAVO_UNROLL
    for (int v = 0; v < Vectors; ++v) value[v] = load_element(row + 16 * v);
OCTAVO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const simd::F16 weight = simd::set1(weights[r * kTileTokens + t]);
OCTAVO_UNROLL
      for (int v = 0; v < Vectors; ++v) sum[r][v] = simd::fma(weight, value[v], sum[r][v]);
    }
  }
OCTAVO_UNROLL
  for (int r = 0; r < Rows; ++r) {
OCTAVO_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      simd::store(output + size_t(r) * head_dim + column + 16 * v, sum[r][v]);
    }
  }
}

// Pages lie scattered, so the hardware does not foresee the next tile; asking for it evenly while
// this one is computed hides its latency (at once it would stall).
//
// output[r] += sum over tokens [begin, end) of weights[r][t] * v[t], in token order.
template <int Rows, class Tile>
inline void tile_values(const float* weights, int begin, int end, const Tile& tile,
                        const Tile* next, int head_dim, float* output) {
  if (begin >= end) return;
  constexpr int kVectors = value_vectors(Rows);
  int column = 0;
  for (; column + 16 * kVectors <= head_dim; column += 16 * kVectors) {
    value_columns<Rows, kVectors>(weights, begin, end, tile, next, head_dim, column, output);
  }
  for (; column < head_dim; column += 16) {
    value_columns<Rows, 1>(weights, begin, end, tile, next, head_dim, column, output);
  }
}

// Weights of codes take in the codes' scales.
template <class Tile>
inline void scale_weights(float* weights, int begin, int end, const Tile& tile) {
  for (int g = begin / kGroupTokens; g * kGroupTokens < end; ++g) {
    float* group = weights + g * kGroupTokens;
    simd::store(group, simd::mul(simd::load(group), simd::load(tile.value_scales[g])));
  }
}

inline float exp_scalar(float x) { return first_lane(simd::exp(simd::set1(x))); }

// Turns scores [begin, end) of one row into softmax weights relative to the row's running maximum.
inline void soften_row(float* scores, int begin, int end, float softcap, int head_dim,
                       float* maximum, float* sum, float* output) {
  const simd::F16 lowest = simd::set1(-__builtin_inff());
  simd::F16 highest = lowest;
  const int first = begin / kGroupTokens, last = (end + kGroupTokens - 1) / kGroupTokens;
  for (int g = first; g < last; ++g) {
    simd::F16 score = simd::load(scores + g * kGroupTokens);
    if (softcap > 0.0f) {
      score = cap(score, softcap);
      simd::store(scores + g * kGroupTokens, score);
    }
    highest = simd::max(highest, select_span(begin - g * kGroupTokens, end - g * kGroupTokens,
                                             score, lowest));
  }
  const float tile_maximum = simd::reduce_max(highest);
  if (tile_maximum > *maximum) {
    if (*maximum != -__builtin_inff()) {
      const float correction = exp_scalar(*maximum - tile_maximum);
      const simd::F16 factor = simd::set1(correction);
      for (int d = 0; d < head_dim; d += 16) {
        simd::store(output + d, simd::mul(simd::load(output + d), factor));
      }
      *sum *= correction;
    }
    *maximum = tile_maximum;
  }
  const simd::F16 base = simd::set1(*maximum);
  simd::F16 total = simd::zero();
  for (int g = first; g < last; ++g) {
    const simd::F16 score = simd::load(scores + g * kGroupTokens);
    const simd::F16 weight =
        select_span(begin - g * kGroupTokens, end - g * kGroupTokens,
                    simd::exp(simd::sub(score, base)), simd::zero());
    total = simd::add(total, weight);
    simd::store(scores + g * kGroupTokens, weight);
  }
  *sum += simd::reduce_add(total);
}

// Softmax state of the rows of a task: maxima [rows], sums [rows], outputs [rows][head_dim].
struct State {
  float* maximum;
  float* sum;
  float* output;
};

inline void clear_state(const State& state, int rows, int head_dim) {
  for (int r = 0; r < rows; ++r) {
    state.maximum[r] = -__builtin_inff();
    state.sum[r] = 0.0f;
  }
  memset(state.output, 0, sizeof(float) * size_t(rows) * head_dim);
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
