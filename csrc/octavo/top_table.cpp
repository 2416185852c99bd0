#include "octavo/top_table.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

namespace octavo {
namespace {

bool ranks_before(const RankedLogit& a, const RankedLogit& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Drops all but the wanted tokens.
void prune(TopLogits& top) {
  if (top.count < top.wanted) return;
  RankedLogit* last = top.items + (top.wanted - 1);
  std::nth_element(top.items, last, top.items + top.count, ranks_before);
  top.count = top.wanted;
  top.bound = last->logit;
}

}  // namespace

void keep_logit(TopLogits& top, float logit, int32_t id) {
  if (!(logit <= FLT_MAX)) {
    top.usable = false;
    return;
  }
  top.items[top.count++] = {logit, id};
  if (top.count == 2 * top.wanted) prune(top);
}

TopTable::TopTable(int workers, size_t rows, int32_t most)
    : rows_(rows),
      most_(size_t(most)),
      tops_(size_t(workers) * rows),
      items_(new RankedLogit[tops_.size() * 2 * most_]),
      logits_(new float[rows * most_]),
      ids_(new int32_t[rows * most_]) {}

void TopTable::begin(size_t row, int32_t wanted) {
  for (size_t i = row; i < tops_.size(); i += rows_) {
    tops_[i] = {-INFINITY, wanted, 0, true, items_.get() + i * 2 * most_};
  }
}

LogitRow TopTable::finish(size_t row) {
  TopLogits& top = tops_[row];
  for (size_t i = row + rows_; i < tops_.size(); i += rows_) {
    top.usable &= tops_[i].usable;
    for (int32_t j = 0; j < tops_[i].count; ++j) {
      keep_logit(top, tops_[i].items[j].logit, tops_[i].items[j].id);
    }
  }
  float* logits = logits_.get() + row * most_;
  int32_t* ids = ids_.get() + row * most_;
  if (!top.usable) {
    logits[0] = std::numeric_limits<float>::quiet_NaN();
    ids[0] = 0;
    return {logits, 1, ids};
  }
  prune(top);
  std::sort(top.items, top.items + top.count,
            [](const RankedLogit& a, const RankedLogit& b) { return a.id < b.id; });
  for (int32_t i = 0; i < top.count; ++i) {
    logits[i] = top.items[i].logit;
    ids[i] = top.items[i].id;
  }
  return {logits, size_t(top.count), ids};
}

}  // namespace octavo
