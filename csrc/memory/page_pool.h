// Which physical pages are free, cached or held, in integer arrays and O(1) steps.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/links.h"

namespace octavo {

enum PageState : uint8_t {
  kFree,    // nobody uses the page and nothing in it can be found
  kCached,  // nobody uses the page; its content is findable until the page is taken
  kHeld,    // at least one page table names the page
};

// Bookkeeping of equal pages, numbered from 0; the bytes live elsewhere.
//
// Cached pages form one list a retention level, least recently used first; all pages of a level are
// taken before those of the next. Free pages form one list a slab (a run of `slab_pages` pages), and
// slabs are kept in buckets by the number of their free pages, so that allocation fills the fullest
// slab and leaves whole slabs empty. Empty slabs have two buckets of their own: first those that are
// backed by memory, latest emptied first, then those that are not; taking a page from a slab backs
// it. The anchors of levels, then of slabs, are numbered after the pages; those of buckets after the
// slabs.
//
// `now_seconds` is set by whoever has the clock. Wrong moves throw std::invalid_argument and change
// nothing.
class PagePool {
 public:
  PagePool(int32_t pages, int32_t slab_pages, int32_t levels);

  int32_t pages() const { return pages_; }
  int32_t slab_pages() const { return slab_pages_; }
  int32_t levels() const { return levels_; }
  int32_t slabs() const { return slabs_; }
  int32_t held_count() const { return pages_ - free_count - cached_count; }
  int32_t backed_pages() const { return backed_pages_; }
  // Free pages that can be written without a page fault.
  int32_t backed_free_count() const { return free_count - (pages_ - backed_pages_); }
  // Rises with every change of who is where.
  uint64_t version() const { return version_; }

  int32_t cached_anchor(int32_t level) const;
  int32_t slab_anchor(int32_t slab) const;
  // Pages of a slab; the last one may have fewer.
  int32_t slab_size(int32_t slab) const;
  // Where a slab stands in the order of allocation, by its free pages and its backing.
  int32_t bucket_of(int32_t slab) const;
  // The first bucket from this one on that has slabs, or none.
  int32_t filled_bucket(int32_t bucket) const;

  // Start over: page p is held `holders[p]` times, free where that is 0. Which slabs are backed is a
  // fact that stays.
  void rebuild(const std::vector<int32_t>& holders);

  // Up to `most` cached pages in the order in which they would be taken.
  std::vector<int32_t> cached_pages(int32_t most) const;
  // The cached page that would be taken first, or none.
  int32_t oldest_cached() const;
  // Backed slabs all of whose pages are free, longest empty first.
  std::vector<int32_t> empty_slabs() const;
  // The slab that allocation would come to first among those that are not backed, or none.
  int32_t next_unbacked() const;
  // Note that an empty slab was given memory, or that its memory went away.
  void set_backed(int32_t slab, bool is_backed);

  // Hold a page that is free or cached; true if it was cached, so that its key must be forgotten.
  bool take(int32_t page);
  // Add a holder to a held or cached page.
  void share(int32_t page);
  // Remove a holder; after the last one the page is free.
  void release(int32_t page);
  // Remove the last holder; cached in a level, as the one used last.
  void keep(int32_t page, int32_t level);
  // Make a cached page free.
  void discard(int32_t page);

  std::vector<int32_t> refs;
  std::vector<uint8_t> state;
  Links links;
  Links slab_links;
  std::vector<int32_t> slab_free;
  std::vector<uint64_t> bucket_words;  // bit b of word w: bucket 64 w + b has slabs
  std::vector<int32_t> idle_since;     // seconds, when the last holder of a cached page left
  std::vector<int32_t> empty_since;    // seconds, when the last page of a slab became free
  std::vector<uint8_t> backed;
  int32_t free_count = 0;
  int32_t cached_count = 0;
  int32_t now_seconds = 0;

 private:
  int32_t slab_of(int32_t page) const { return page / slab_pages_; }
  int32_t bucket_anchor(int32_t bucket) const { return slabs_ + bucket; }
  void insert_free(int32_t page, int32_t after);
  void change_slab(int32_t slab, int32_t change);
  void back(int32_t slab);
  void remove_slab(int32_t slab);
  void insert_slab(int32_t slab);

  int32_t pages_;
  int32_t slab_pages_;
  int32_t levels_;
  int32_t slabs_;
  int32_t backed_pages_ = 0;
  uint64_t version_ = 0;
};

// Pages in the order in which they would be taken, one at a time: free ones, then cached ones.
//
// Taking from the fullest slab keeps it the fullest, so walking the buckets upwards gives the same
// order as taking one page after another. Throws std::logic_error once the pool has changed.
class TakingOrder {
 public:
  explicit TakingOrder(const PagePool& pool);

  // The next page, or none.
  int32_t next();

 private:
  bool open_next_list();

  const PagePool* pool_;
  uint64_t version_;
  int32_t bucket_ = 0;  // that of slabs without free pages, which is passed over
  int32_t slab_;
  int32_t level_ = 0;
  int32_t anchor_ = kNone;
  int32_t page_ = kNone;
};

}  // namespace octavo
