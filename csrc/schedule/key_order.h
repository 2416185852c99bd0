// Rows in the order of their keys.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace octavo {

// A sorted column: finding is a binary search, adding and removing move what comes behind.
class KeyOrder {
 public:
  using Key = std::array<int64_t, 4>;

  size_t size() const { return entries_.size(); }

  void add(const Key& key, int64_t row) {
    const auto at = place(key);
    if (at != entries_.end() && at->key == key) throw std::invalid_argument("the key is there");
    entries_.insert(at, {key, row});
  }

  void remove(const Key& key) {
    const auto at = place(key);
    if (at == entries_.end() || at->key != key) throw std::out_of_range("the key is not there");
    entries_.erase(at);
  }

  int64_t row(size_t place) const { return entries_.at(place).row; }

  std::vector<int64_t> rows() const {
    std::vector<int64_t> rows;
    rows.reserve(size());
    for (const Entry& entry : entries_) rows.push_back(entry.row);
    return rows;
  }

 private:
  struct Entry {
    Key key;
    int64_t row;
  };

  std::vector<Entry>::iterator place(const Key& key) {
    return std::lower_bound(entries_.begin(), entries_.end(), key,
                            [](const Entry& entry, const Key& wanted) { return entry.key < wanted; });
  }

  std::vector<Entry> entries_;
};

}  // namespace octavo
