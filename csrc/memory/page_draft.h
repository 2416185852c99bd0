// What a plan would do to the pages, worked out beside them without touching them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/page_cache.h"
#include "memory/page_notes.h"

namespace octavo {

// A scratch view of a `PageCache`; it costs what the plan changes, not the size of the pool.
//
// Committing the same shares, then releases, then takes on the cache is always possible. The cache
// must outlive the draft, and must not change while pages are taken from it (std::logic_error).
class PageDraft {
 public:
  explicit PageDraft(const PageCache& cache);

  // Pages that can still be taken.
  int32_t available() const { return available_; }
  // The next page: free, else cached, else released in this draft; std::out_of_range without any.
  int32_t take();
  // First page of the first run of `count` free pages, or none.
  int32_t find_run(int32_t count) const;
  // Take a run that `find_run` found; a draft takes runs or single pages, not both.
  void take_run(int32_t start, int32_t count);
  // Undo a take; what was taken first goes first next time.
  void give_back(int32_t page);
  // Pages that were given back and not taken again. Pages behind them in the order of eviction may
  // have been taken, so that their content must go as well: children before parents.
  std::vector<int32_t> passed_over() const;
  // A table is given up, as `PageCache::release` does.
  void release(const std::vector<int32_t>& table);
  // The page of a key as `PrefixIndex::find`, or none if this draft has taken it. None also for a
  // page that was released here and has a twin: at the commit the twin inherits the key, and the
  // page is free.
  int32_t find(const PageKey& key) const;
  // Whether a page would stop being available if it were shared.
  bool is_unheld(int32_t page) const { return refs_of(page) == 0; }
  // Pages that would become available if each of `held` lost a holder, without those of `wanted`. A
  // page comes once for each holder that it would lose.
  int32_t freed(std::vector<int32_t> held, std::vector<int32_t> wanted) const;
  // Add a holder to a page that was found.
  void share(int32_t page);

 private:
  using Ranked = std::pair<int32_t, int32_t>;  // when a page was taken first, and the page

  int32_t refs_of(int32_t page) const;
  Ranked next_page();

  const PageCache* cache_;
  TakingOrder order_;
  PageNotes refs_;
  PageNotes taken_;
  int32_t ranks_ = 0;
  std::vector<Ranked> returned_;  // a heap, the lowest rank on top
  std::vector<int32_t> released_;
  size_t released_next_ = 0;
  int32_t available_;
};

}  // namespace octavo
