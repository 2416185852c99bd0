#include "octavo/sample_select.h"

#include <algorithm>

namespace octavo {
namespace {

// Exponents from 0 down to kLowestExponent in equal steps. Every operation is monotone, so a token
// of a lower bucket always ranks before one of a higher bucket. Exponents below have kBuckets.
int32_t bucket_of_exponent(float y) {
  constexpr float kScale = float(kBuckets - 1) / -kLowestExponent;
  const float bounded = y < kLowestExponent ? kLowestExponent : y;
  const int32_t bucket = int32_t(bounded * -kScale);
  return y < kLowestExponent ? int32_t(kBuckets) : bucket;
}

OCTAVO_VECTOR_CLONES
void fill_buckets(const RowSummary& row, float temperature, Bucket* buckets) {
  std::fill(buckets, buckets + kBuckets, Bucket{});
  for (size_t block = 0; block < block_count(row.vocabulary); ++block) {
    if (exponent_of(row.block_max[block], row.max, temperature) < kLowestExponent) continue;
    const size_t length = block_length(block, row.vocabulary);
    float exponents[kLogitBlock];
    float unrounded[kLogitBlock];
    int64_t masses[kLogitBlock];
    int32_t indices[kLogitBlock];
    block_exponents(row.logits + block * kLogitBlock, length, row.max, temperature, exponents);
    block_unrounded(exponents, length, unrounded);
    block_rounded(unrounded, length, 0.0, masses);
    for (size_t i = 0; i < length; ++i) indices[i] = bucket_of_exponent(exponents[i]);
    for (size_t i = 0; i < length; ++i) {
      if (indices[i] == int32_t(kBuckets)) continue;
      buckets[indices[i]].mass += masses[i];
      buckets[indices[i]].count += 1;
    }
  }
}

// Collects the tokens of one bucket, ids rising; returns how many.
OCTAVO_VECTOR_CLONES
size_t gather_bucket(const RowSummary& row, float temperature, int32_t wanted,
                     SelectScratch& scratch) {
  size_t count = 0;
  for (size_t block = 0; block < block_count(row.vocabulary); ++block) {
    if (bucket_of_exponent(exponent_of(row.block_max[block], row.max, temperature)) > wanted) {
      continue;
    }
    const float* z = row.logits + block * kLogitBlock;
    const size_t length = block_length(block, row.vocabulary);
    float exponents[kLogitBlock];
    int32_t indices[kLogitBlock];
    block_exponents(z, length, row.max, temperature, exponents);
    for (size_t i = 0; i < length; ++i) indices[i] = bucket_of_exponent(exponents[i]);
    for (size_t i = 0; i < length; ++i) {
      if (indices[i] != wanted) continue;
      const int64_t mass = rounded_mass(unrounded_mass(exponents[i]), 0.0);
      scratch.candidates[count++] = {mass, z[i], int32_t(block * kLogitBlock + i)};
    }
  }
  return count;
}

int64_t sum_of_masses(const Candidate* candidates, size_t count) {
  int64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += candidates[i].mass;
  return sum;
}

// Quickselect by mass: the last token of the shortest ranked prefix whose mass is >= `need`, which
// the candidates together have. Linear expected time.
Candidate last_of_prefix(Candidate* candidates, size_t count, int64_t need) {
  size_t low = 0;
  size_t high = count;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(candidates + low, candidates + middle, candidates + high, ranks_before);
    const int64_t mass = sum_of_masses(candidates + low, middle - low);
    if (mass >= need) {
      high = middle;
    } else {
      need -= mass;
      low = middle;
    }
  }
  return candidates[low];
}

}  // namespace

Cut find_cut(const RowSummary& row, float temperature, size_t top_k, double top_p,
             SelectScratch& scratch) {
  fill_buckets(row, temperature, scratch.buckets);
  Candidate* candidates = scratch.candidates.get();
  Cut cut;

  // Top-k: all of the buckets before `edge`, and of it the first `edge_count` tokens.
  int32_t edge = int32_t(kBuckets);
  size_t edge_count = 0;
  size_t seen = 0;
  int64_t total = 0;
  for (int32_t bucket = 0; bucket < int32_t(kBuckets); ++bucket) {
    const size_t count = size_t(scratch.buckets[bucket].count);
    if (top_k > 0 && seen + count > top_k) {
      edge = bucket;
      edge_count = top_k - seen;
      break;
    }
    seen += count;
    total += scratch.buckets[bucket].mass;
  }
  if (edge_count > 0) {
    const size_t count = gather_bucket(row, temperature, edge, scratch);
    std::nth_element(candidates, candidates + (edge_count - 1), candidates + count, ranks_before);
    cut = {candidates[edge_count - 1].logit, candidates[edge_count - 1].id};
    total += sum_of_masses(candidates, edge_count);
  } else if (edge < int32_t(kBuckets)) {
    // The buckets before hold exactly k tokens: the cut is the last of them.
    int32_t last = edge - 1;
    while (scratch.buckets[last].count == 0) --last;
    const size_t count = gather_bucket(row, temperature, last, scratch);
    const Candidate end = *std::max_element(candidates, candidates + count, ranks_before);
    cut = {end.logit, end.id};
  }
  if (top_p >= 1.0) return cut;

  const int64_t need =
      std::min(total, std::max<int64_t>(1, int64_t(std::ceil(top_p * double(total)))));
  int64_t before = 0;
  for (int32_t bucket = 0; bucket < edge; ++bucket) {
    if (before + scratch.buckets[bucket].mass >= need) {
      const size_t count = gather_bucket(row, temperature, bucket, scratch);
      const Candidate end = last_of_prefix(candidates, count, need - before);
      return {end.logit, end.id};
    }
    before += scratch.buckets[bucket].mass;
  }
  // The edge bucket's candidates are still the ones gathered, its kept ones in front.
  const Candidate end = last_of_prefix(candidates, edge_count, need - before);
  return {end.logit, end.id};
}

void find_top(const RowSummary& row, size_t count, SelectScratch& scratch) {
  const size_t blocks = block_count(row.vocabulary);
  float bound = -INFINITY;
  if (blocks >= count) {
    // `count` blocks have a token this likely, so no less likely token is among the wanted.
    std::copy(row.block_max, row.block_max + blocks, scratch.block_max.get());
    float* nth = scratch.block_max.get() + (count - 1);
    std::nth_element(scratch.block_max.get(), nth, scratch.block_max.get() + blocks,
                     [](float a, float b) { return a > b; });
    bound = *nth;
  }
  Candidate* candidates = scratch.candidates.get();
  size_t found = 0;
  for (size_t block = 0; block < blocks; ++block) {
    if (row.block_max[block] < bound) continue;
    const size_t begin = block * kLogitBlock;
    const size_t end = begin + block_length(block, row.vocabulary);
    for (size_t id = begin; id < end; ++id) {
      if (row.logits[id] >= bound) candidates[found++] = {0, row.logits[id], int32_t(id)};
    }
  }
  std::nth_element(candidates, candidates + (count - 1), candidates + found, ranks_before);
  std::sort(candidates, candidates + count, ranks_before);
}

}  // namespace octavo
