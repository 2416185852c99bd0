// The inner kernels of attention: one tile of 64 tokens against a few query rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "octavo/kv.h"
#include "octavo/quads.h"
#include "octavo/simd.h"

namespace octavo {
namespace OCTAVO_TIER {

constexpr int kTileTokens = 64;
constexpr int kSegmentTokens = 512;
constexpr int kGroupTokens = 16;

// Rows that share every load of K and V; bounded by the registers of the tier.
#if defined(OCTAVO_TIER_AVX512)
constexpr int kMaxRows = 6;
constexpr int key_vectors(int) { return 4; }
constexpr int value_vectors(int) { return 4; }
#else
constexpr int kMaxRows = 4;
constexpr int key_vectors(int rows) { return rows == 1 ? 4 : rows < 4 ? 2 : 1; }
constexpr int value_vectors(int rows) { return rows == 1 ? 4 : rows < 4 ? 2 : 1; }
#endif

// Up to 64 tokens of one head as groups of 16; only groups [first, last) are set.
template <class Element>
struct Tile {
  const Element* keys[kTileTokens / kGroupTokens];
  const Element* values[kTileTokens / kGroupTokens];
  size_t key_stride;  // elements from one quad to the next
  int first;
  int last;
};

// scores[r][t] = q[r] . k[t]: four chains over the quads' lanes, joined by quad_sum. `next` is the
// tile to come, or null.
template <int Rows, class Element>
inline void tile_scores(const float* q, int head_dim, const Tile<Element>& tile,
                        const Tile<Element>* next, float* scores) {
  constexpr int kVectors = key_vectors(Rows);
  for (int group = tile.first; group < tile.last; ++group) {
    simd::F16 parts[Rows][4];
    for (int half = 0; half < 4; half += kVectors) {
      simd::F16 chain[Rows][kVectors];
      for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < kVectors; ++v) chain[r][v] = simd::zero();
      }
      const Element* keys = tile.keys[group] + 16 * half;
      const bool fetch = next != nullptr && half == 0 && group >= next->first && group < next->last;
      for (int d = 0; d < head_dim; d += 4, keys += tile.key_stride) {
        if (fetch) {
          const char* ahead =
              reinterpret_cast<const char*>(next->keys[group] + d / 4 * next->key_stride);
          for (size_t line = 0; line < kGroupTokens * 4 * sizeof(Element); line += 64) {
            __builtin_prefetch(ahead + line, 0, 2);
          }
        }
        simd::F16 k[kVectors];
        for (int v = 0; v < kVectors; ++v) k[v] = load_element(keys + 16 * v);
        for (int r = 0; r < Rows; ++r) {
          const simd::F16 x = broadcast_quad(q + size_t(r) * head_dim + d);
          for (int v = 0; v < kVectors; ++v) chain[r][v] = simd::fma(x, k[v], chain[r][v]);
        }
      }
      for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < kVectors; ++v) parts[r][half + v] = chain[r][v];
      }
    }
    for (int r = 0; r < Rows; ++r) {
      simd::store(scores + r * kTileTokens + group * kGroupTokens,
                  quad_sum(parts[r][0], parts[r][1], parts[r][2], parts[r][3]));
    }
  }
}

template <int Rows, int Vectors, class Element>
inline void value_columns(const float* weights, int begin, int end, const Tile<Element>& tile,
                          const Tile<Element>* next, int head_dim, int column, float* output) {
  simd::F16 sum[Rows][Vectors];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      sum[r][v] = simd::load(output + size_t(r) * head_dim + column + 16 * v);
    }
  }
  for (int t = begin; t < end; ++t) {
    const size_t offset = size_t(t % kGroupTokens) * head_dim + column;
    const Element* row = tile.values[t / kGroupTokens] + offset;
    if (next != nullptr && t / kGroupTokens >= next->first && t / kGroupTokens < next->last) {
      const char* ahead = reinterpret_cast<const char*>(next->values[t / kGroupTokens] + offset);
      for (size_t line = 0; line < 16 * Vectors * sizeof(Element); line += 64) {
        __builtin_prefetch(ahead + line, 0, 2);
      }
    }
    simd::F16 value[Vectors];
    for (int v = 0; v < Vectors; ++v) value[v] = load_element(row + 16 * v);
    for (int r = 0; r < Rows; ++r) {
      const simd::F16 weight = simd::set1(weights[r * kTileTokens + t]);
      for (int v = 0; v < Vectors; ++v) sum[r][v] = simd::fma(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      simd::store(output + size_t(r) * head_dim + column + 16 * v, sum[r][v]);
    }
  }
}

// Pages lie scattered, so the hardware does not foresee the next tile; asking for it evenly while
// this one is computed hides its latency (at once it would stall).
//
// output[r] += sum over tokens [begin, end) of weights[r][t] * v[t], in token order.
template <int Rows, class Element>
inline void tile_values(const float* weights, int begin, int end, const Tile<Element>& tile,
                        const Tile<Element>* next, int head_dim, float* output) {
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
