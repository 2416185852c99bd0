// Circular doubly linked lists of small integers in two arrays; a list is entered at its anchor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

inline constexpr int32_t kNone = -1;

// Every access is checked, so that a damaged link ends in std::out_of_range and never elsewhere.
struct Links {
  std::vector<int32_t> prev;
  std::vector<int32_t> next;

  explicit Links(size_t members) : prev(members), next(members) { reset(); }

  // Everybody alone, which for an anchor is an empty list.
  void reset() {
    for (size_t member = 0; member < next.size(); ++member) {
      prev[member] = next[member] = int32_t(member);
    }
  }

  void insert(int32_t member, int32_t after) {
    const int32_t following = next.at(after);
    prev.at(member) = after;
    next.at(member) = following;
    next.at(after) = member;
    prev.at(following) = member;
  }

  void remove(int32_t member) {
    const int32_t before = prev.at(member), following = next.at(member);
    next.at(before) = following;
    prev.at(following) = before;
    prev.at(member) = next.at(member) = member;
  }
};

}  // namespace octavo
