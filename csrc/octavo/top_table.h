// The most likely tokens of a block of rows, from all workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "octavo/sample.h"
#include "octavo/top_logits.h"

namespace octavo {

// Owns the memory of what is kept; a call allocates nothing.
class TopTable {
 public:
  // At most `rows` rows and `most` tokens of each.
  TopTable(int workers, size_t rows, int32_t most);

  // Forgets row `row`, which is to keep its `wanted` most likely tokens.
  void begin(size_t row, int32_t wanted);
  // The row's wanted tokens (all of a smaller vocabulary) by rising id; a NaN if it is unusable.
  LogitRow finish(size_t row);
  TopLogits* tops() { return tops_.data(); }
  size_t rows() const { return rows_; }

 private:
  const size_t rows_;
  const size_t most_;
  std::vector<TopLogits> tops_;           // [workers, rows]
  std::unique_ptr<RankedLogit[]> items_;  // [workers, rows, 2 * most]
  std::unique_ptr<float[]> logits_;       // [rows, most]
  std::unique_ptr<int32_t[]> ids_;        // [rows, most]
};

}  // namespace octavo
