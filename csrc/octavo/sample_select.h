// Top-k, top-p and the most likely tokens of a row without sorting the vocabulary. For sample*.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "octavo/sample_mass.h"

namespace octavo {

struct Candidate {
  int64_t mass;
  float logit;
  int32_t id;
};

// Falling logit, then rising id: the order of top-k, top-p and of reported alternatives.
inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The last token kept, in the order of ranks_before.
struct Cut {
  float logit = -INFINITY;
  int32_t id = INT32_MAX;

  // Without short cuts, for vector code.
  bool keeps(float z, int32_t token) const { return (z > logit) | ((z == logit) & (token <= id)); }
};

constexpr size_t kBuckets = 2048;

// The tokens whose exponents fall in one small range.
struct Bucket {
  int64_t mass = 0;
  int64_t count = 0;
};

struct SelectScratch {
  explicit SelectScratch(size_t vocabulary)
      : candidates(new Candidate[vocabulary]), block_max(new float[block_count(vocabulary)]) {}

  std::unique_ptr<Candidate[]> candidates;  // [vocabulary]
  std::unique_ptr<float[]> block_max;       // [blocks]
  Bucket buckets[kBuckets];
};

// What top-k (0: off) and then top-p on the renormalised rest keep, at least one token. Tokens
// without mass count as ruled out: they cannot be drawn whatever the cut says about them.
Cut find_cut(const RowSummary& row, float temperature, size_t top_k, double top_p,
             SelectScratch& scratch);

// The `count` most likely tokens in order, as the first elements of scratch.candidates (no mass).
void find_top(const RowSummary& row, size_t count, SelectScratch& scratch);

}  // namespace octavo
