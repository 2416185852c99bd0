#include "memory/page_draft.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>

namespace octavo {

PageDraft::PageDraft(const PageCache& cache)
    : cache_(&cache),
      order_(cache.pool),
      available_(cache.pool.free_count + cache.pool.cached_count) {}

int32_t PageDraft::take() {
  const auto [rank, page] = next_page();
  taken_.set(page, rank);
  --available_;
  return page;
}

int32_t PageDraft::find_run(int32_t count) const {
  const PagePool& pool = cache_->pool;
  int32_t length = 0;
  for (int32_t page = 0; page < pool.pages(); ++page) {
    const bool is_free = pool.state[page] == kFree && taken_.find(page) == kNone;
    length = is_free ? length + 1 : 0;
    if (length == count) return page + 1 - count;
  }
  return kNone;
}

void PageDraft::take_run(int32_t start, int32_t count) {
  for (int32_t page = start; page < start + count; ++page) taken_.set(page, 0);
  available_ -= count;
}

void PageDraft::give_back(int32_t page) {
  const int32_t rank = taken_.find(page);
  if (rank == kNone) {
    throw std::invalid_argument("page " + std::to_string(page) + " was not taken here");
  }
  taken_.set(page, kNone);
  returned_.emplace_back(rank, page);
  std::push_heap(returned_.begin(), returned_.end(), std::greater<>());
  ++available_;
}

std::vector<int32_t> PageDraft::passed_over() const {
  std::vector<int32_t> pages;
  for (const auto& [rank, page] : returned_) {
    if (refs_of(page) == 0) pages.push_back(page);
  }
  return pages;
}

void PageDraft::release(const std::vector<int32_t>& table) {
  for (auto page = table.rbegin(); page != table.rend(); ++page) {
    const int32_t left = refs_of(*page) - 1;
    if (left < 0) throw std::invalid_argument("page " + std::to_string(*page) + " is not held");
    refs_.set(*page, left);
    if (left == 0) {
      released_.push_back(*page);
      ++available_;
    }
  }
}

int32_t PageDraft::find(const PageKey& key) const {
  const int32_t page = cache_->index.find(key);
  if (page == kNone || taken_.find(page) != kNone) return kNone;
  return refs_.find(page) == 0 && cache_->index.has_twin(page) ? kNone : page;
}

int32_t PageDraft::freed(std::vector<int32_t> held, std::vector<int32_t> wanted) const {
  std::sort(held.begin(), held.end());
  std::sort(wanted.begin(), wanted.end());
  int32_t count = 0;
  for (auto page = held.begin(); page != held.end();) {
    const auto next = std::upper_bound(page, held.end(), *page);
    const bool loses_all = next - page >= refs_of(*page);
    count += loses_all && !std::binary_search(wanted.begin(), wanted.end(), *page);
    page = next;
  }
  return count;
}

void PageDraft::share(int32_t page) {
  const int32_t refs = refs_of(page);
  available_ -= refs == 0;
  refs_.set(page, refs + 1);
}

int32_t PageDraft::refs_of(int32_t page) const {
  const int32_t noted = refs_.find(page);
  return noted == kNone ? cache_->pool.refs.at(page) : noted;
}

PageDraft::Ranked PageDraft::next_page() {
  while (!returned_.empty()) {
    std::pop_heap(returned_.begin(), returned_.end(), std::greater<>());
    const Ranked first = returned_.back();
    returned_.pop_back();
    if (refs_of(first.second) == 0) return first;
  }
  ++ranks_;
  for (int32_t page = order_.next(); page != kNone; page = order_.next()) {
    if (refs_of(page) == 0) return {ranks_, page};
  }
  while (released_next_ < released_.size()) {
    const int32_t page = released_[released_next_++];
    if (refs_of(page) == 0) return {ranks_, page};
  }
  throw std::out_of_range("no page is left");
}

}  // namespace octavo
