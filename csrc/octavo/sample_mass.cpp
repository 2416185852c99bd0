#include "octavo/sample_mass.h"

namespace octavo {

OCTAVO_VECTOR_CLONES
RowSummary summarise(const float* logits, size_t vocabulary, float* block_max) {
  constexpr size_t kLanes = 16;
  RowSummary summary{logits, vocabulary, block_max};
  int32_t unusable = 0;
  for (size_t block = 0; block < block_count(vocabulary); ++block) {
    const float* z = logits + block * kLogitBlock;
    const size_t length = block_length(block, vocabulary);
    float lane[kLanes];
    for (float& value : lane) value = -INFINITY;
    int32_t bad[kLanes] = {};
    size_t i = 0;
    for (; i + kLanes <= length; i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) {
        lane[j] = z[i + j] > lane[j] ? z[i + j] : lane[j];
        bad[j] |= z[i + j] <= FLT_MAX ? 0 : 1;
      }
    }
    for (; i < length; ++i) {
      lane[0] = z[i] > lane[0] ? z[i] : lane[0];
      bad[0] |= z[i] <= FLT_MAX ? 0 : 1;
    }
    float best = lane[0];
    for (size_t j = 0; j < kLanes; ++j) {
      best = std::max(best, lane[j]);
      unusable |= bad[j];
    }
    block_max[block] = best;
    summary.max = std::max(summary.max, best);
  }
  summary.usable = unusable == 0;
  return summary;
}

OCTAVO_VECTOR_CLONES
double log_sum_exp(const RowSummary& row) {
  int64_t total = 0;
  for (size_t block = 0; block < block_count(row.vocabulary); ++block) {
    if (row.block_max[block] - row.max < kLowestExponent) continue;
    const size_t length = block_length(block, row.vocabulary);
    float exponents[kLogitBlock];
    float unrounded[kLogitBlock];
    int64_t masses[kLogitBlock];
    block_exponents(row.logits + block * kLogitBlock, length, row.max, 1.0f, exponents);
    block_unrounded(exponents, length, unrounded);
    total += block_rounded(unrounded, length, 0.0, masses);
  }
  return double(row.max) + std::log(double(total) / kMassOne);
}

}  // namespace octavo
