// 256-bit keys of pages, numbered, and found by their content.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "memory/links.h"

namespace octavo {

using PageKey = std::array<uint8_t, 32>;

// Key → number below `most_keys`, and back; whoever uses it hands out the numbers.
//
// Open addressing with linear probing (Knuth, TAOCP 3, 6.4, algorithms L and R), at most half full
// and never rebuilt. Keys are cryptographic hashes, so four of their bytes are spread evenly.
class KeyMap {
 public:
  explicit KeyMap(int32_t most_keys) : keys_(most_keys) {
    size_t slots = 2;
    while (slots < 2 * keys_.size()) slots *= 2;
    slots_.resize(slots);
  }

  int32_t find(const PageKey& key) const {
    const uint32_t tag = tag_of(key);
    for (size_t at = home(tag); slots_[at].number != kNone; at = after(at)) {
      if (slots_[at].tag == tag && keys_[slots_[at].number] == key) return slots_[at].number;
    }
    return kNone;
  }

  // Neither key nor number may be in use.
  void insert(const PageKey& key, int32_t number) {
    keys_.at(number) = key;
    const uint32_t tag = tag_of(key);
    size_t at = home(tag);
    while (slots_[at].number != kNone) at = after(at);
    slots_[at] = {tag, number};
  }

  void erase(int32_t number) {
    size_t at = home(tag_of(keys_.at(number)));
    while (slots_[at].number != number) {
      if (slots_[at].number == kNone) throw std::logic_error("a key has lost its number");
      at = after(at);
    }
    // What was pushed aside by the leaving one moves up, so that no search ends too early.
    for (size_t next = after(at); slots_[next].number != kNone; next = after(next)) {
      const size_t distance = (next - home(slots_[next].tag)) & (slots_.size() - 1);
      if (distance >= ((next - at) & (slots_.size() - 1))) {
        slots_[at] = slots_[next];
        at = next;
      }
    }
    slots_[at] = Slot();
  }

  void clear() { std::fill(slots_.begin(), slots_.end(), Slot()); }

  const PageKey& key(int32_t number) const { return keys_.at(number); }

 private:
  struct Slot {
    uint32_t tag = 0;
    int32_t number = kNone;
  };

  static uint32_t tag_of(const PageKey& key) {
    uint32_t tag;
    std::memcpy(&tag, key.data(), sizeof tag);
    return tag;
  }
  size_t home(uint32_t tag) const { return tag & (slots_.size() - 1); }
  size_t after(size_t at) const { return (at + 1) & (slots_.size() - 1); }

  std::vector<PageKey> keys_;
  std::vector<Slot> slots_;
};

// The newest keys out of many.
class KeyHistory {
 public:
  explicit KeyHistory(int32_t most_keys) : keys_(most_keys), is_used_(most_keys) {}

  void add(const PageKey& key) {
    const int32_t known = keys_.find(key);
    if (known != kNone) drop(known);
    if (is_used_[next_]) drop(next_);
    keys_.insert(key, next_);
    is_used_[next_] = true;
    next_ = (next_ + 1) % int32_t(is_used_.size());
  }

  bool holds(const PageKey& key) const { return keys_.find(key) != kNone; }

 private:
  void drop(int32_t number) {
    keys_.erase(number);
    is_used_[number] = false;
  }

  KeyMap keys_;
  std::vector<uint8_t> is_used_;
  int32_t next_ = 0;
};

}  // namespace octavo
