// The online softmax of attention: scores of a tile become weights, states of segments are merged.
#pragma once

#include <cstddef>
#include <cstring>

#include "octavo/attention_tile.h"
#include "octavo/quads.h"
#include "octavo/simd.h"

namespace octavo {
namespace OCTAVO_TIER {

inline float exp_scalar(float x) { return first_lane(simd::exp(simd::set1(x))); }

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

struct ScoreRange {
  simd::F16 least;
  float highest;
};

// Caps scores [begin, end) of a row and finds their range, which may miss a NaN. `Whole` if they
// are a whole tile.
template <bool Whole>
OCTAVO_INLINE ScoreRange cap_scores(float* scores, int begin, int end, float softcap) {
  const simd::F16 infinity = simd::set1(__builtin_inff()), lowest = simd::neg(infinity);
  simd::F16 least = infinity, highest = lowest;
  for (int token = Whole ? 0 : begin / kGroupTokens * kGroupTokens;
       token < (Whole ? kTileTokens : end); token += kGroupTokens) {
    simd::F16 score = simd::load(scores + token);
    if (softcap > 0.0f) {
      score = cap(score, softcap);
      simd::store(scores + token, score);
    }
    const int from = begin - token, to = end - token;
    highest = simd::max(highest, Whole ? score : select_span(from, to, score, lowest));
    least = simd::min(least, Whole ? score : select_span(from, to, score, infinity));
  }
  return ScoreRange{least, simd::reduce_max(highest)};
}

// The weights so far become relative to a larger maximum.
inline void raise_maximum(float maximum, int head_dim, float* old_maximum, float* sum,
                          float* output) {
  if (*old_maximum != -__builtin_inff()) {
    const float correction = exp_scalar(*old_maximum - maximum);
    const simd::F16 factor = simd::set1(correction);
    for (int d = 0; d < head_dim; d += 16) {
      simd::store(output + d, simd::mul(simd::load(output + d), factor));
    }
    *sum *= correction;
  }
  *old_maximum = maximum;
}

// scores [begin, end) = exp(score - maximum), 0 for the rest of two groups each; the sum. `Whole`
// if they are a whole tile, `Normal` if all weights are normal numbers or NaN.
template <bool Whole, bool Normal>
OCTAVO_INLINE float weigh_row(float* scores, int begin, int end, float maximum) {
  constexpr int kTogether = 2, kTokens = kTogether * kGroupTokens;
  const simd::F16 base = simd::set1(maximum);
  simd::F16 total = simd::zero();
  for (int token = Whole ? 0 : begin / kTokens * kTokens; token < (Whole ? kTileTokens : end);
       token += kTokens) {
    simd::F16 weights[kTogether];
OCTAVO_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      weights[i] = simd::sub(simd::load(scores + token + i * kGroupTokens), base);
    }
    if constexpr (Normal) {
      simd::exp_normal(weights);
    } else {
      for (simd::F16& weight : weights) weight = simd::exp(weight);
    }
OCTAVO_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const int first = token + i * kGroupTokens;
      if constexpr (!Whole) {
        weights[i] = select_span(begin - first, end - first, weights[i], simd::zero());
      }
      total = simd::add(total, weights[i]);
      simd::store(scores + first, weights[i]);
    }
  }
  return simd::reduce_add(total);
}

// Whether exp(score - maximum) is a normal number for all scores of the range. False where no score
// was finite; a NaN counts as normal or not.
OCTAVO_INLINE bool weights_are_normal(const ScoreRange& range, float maximum) {
  const simd::F16 least = simd::sub(range.least, simd::set1(maximum));
  return range.highest - maximum <= 0.0f &&
         simd::not_less(least, simd::set1(simd::least_normal_exponent)) == 0xffff;
}

// Turns scores [begin[r], end[r]) of each row into softmax weights relative to its running maximum.
// One kind of work after the other: rows wait for nothing of each other, so they overlap.
template <int Rows>
inline void soften_rows(float* scores, const int* begin, const int* end, float softcap,
                        int head_dim, float* maximum, float* sum, float* output) {
  ScoreRange range[Rows];
  const auto whole = [&](int r) { return begin[r] == 0 && end[r] == kTileTokens; };
  for (int r = 0; r < Rows; ++r) {
    float* row = scores + r * kTileTokens;
    range[r] = whole(r) ? cap_scores<true>(row, begin[r], end[r], softcap)
                        : cap_scores<false>(row, begin[r], end[r], softcap);
  }
  for (int r = 0; r < Rows; ++r) {
    if (range[r].highest > maximum[r]) {
      raise_maximum(range[r].highest, head_dim, maximum + r, sum + r,
                    output + size_t(r) * head_dim);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    if (begin[r] >= end[r]) continue;
    float* row = scores + r * kTileTokens;
    if (!weights_are_normal(range[r], maximum[r])) {
      sum[r] += weigh_row<false, false>(row, begin[r], end[r], maximum[r]);
    } else if (whole(r)) {
      sum[r] += weigh_row<true, true>(row, begin[r], end[r], maximum[r]);
    } else {
      sum[r] += weigh_row<false, true>(row, begin[r], end[r], maximum[r]);
    }
  }
}

// total = total merged with the state of the next segment, row by row.
inline void merge_state(const State& total, const State& next, int rows, int head_dim) {
  for (int r = 0; r < rows; ++r) {
    if (next.maximum[r] == -__builtin_inff()) continue;
    float* output = total.output + size_t(r) * head_dim;
    const float* other = next.output + size_t(r) * head_dim;
    if (total.maximum[r] == -__builtin_inff()) {
      memcpy(output, other, sizeof(float) * head_dim);
      total.maximum[r] = next.maximum[r];
      total.sum[r] = next.sum[r];
      continue;
    }
    const float maximum =
        total.maximum[r] > next.maximum[r] ? total.maximum[r] : next.maximum[r];
    const float left = exp_scalar(total.maximum[r] - maximum);
    const float right = exp_scalar(next.maximum[r] - maximum);
    const simd::F16 left_factor = simd::set1(left), right_factor = simd::set1(right);
    for (int d = 0; d < head_dim; d += 16) {
      simd::store(output + d, simd::fma(simd::load(output + d), left_factor,
                                        simd::mul(simd::load(other + d), right_factor)));
    }
    total.sum[r] = total.sum[r] * left + next.sum[r] * right;
    total.maximum[r] = maximum;
  }
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
