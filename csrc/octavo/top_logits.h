// What a head keeps of rows of logits that are never stored: it offers each value as it makes it,
// and every worker keeps the tokens that may be among the wanted ones. top_table.h joins them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

struct RankedLogit {
  float logit;
  int32_t id;
};

// What one worker has kept of a row. No token below `bound` is among the wanted ones.
struct TopLogits {
  float bound;
  int32_t wanted;
  int32_t count;
  bool usable;         // neither NaN nor +inf was offered
  RankedLogit* items;  // [2 * wanted]
};

// Takes a token into account; offers may come in any order. Calls for values below the bound may
// be left out, calls for NaN may not.
void keep_logit(TopLogits& top, float logit, int32_t id);

// What becomes of the rows of a head: row r is written to row slots[r] of y, or offered to the
// running worker's tops[worker * rows + r] where that is -1.
struct LogitSink {
  const int32_t* slots;
  TopLogits* tops;
  size_t rows;
};

}  // namespace octavo
