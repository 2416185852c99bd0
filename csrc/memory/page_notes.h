// A number beside each of a few pages out of many.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/links.h"

namespace octavo {

// Page → number, open addressing with linear probing, growing as it fills. A note is set to `kNone`
// rather than removed.
class PageNotes {
 public:
  // The number of a page, or none.
  int32_t find(int32_t page) const {
    if (slots_.empty()) return kNone;
    return slots_[place(slots_, page)].number;
  }

  void set(int32_t page, int32_t number) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[place(slots_, page)];
    count_ += slot.page == kNone;
    slot = {page, number};
  }

 private:
  struct Slot {
    int32_t page = kNone;
    int32_t number = kNone;
  };

  static size_t place(const std::vector<Slot>& slots, int32_t page) {
    // Fibonacci hashing (Knuth, TAOCP 3, 6.4) of numbers that mostly follow each other.
    size_t at = (uint32_t(page) * 2654435769u >> 4) & (slots.size() - 1);
    while (slots[at].page != kNone && slots[at].page != page) at = (at + 1) & (slots.size() - 1);
    return at;
  }

  void grow() {
    std::vector<Slot> larger(slots_.empty() ? 16 : 2 * slots_.size());
    for (const Slot& slot : slots_) {
      if (slot.page != kNone) larger[place(larger, slot.page)] = slot;
    }
    slots_ = std::move(larger);
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace octavo
