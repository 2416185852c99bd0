// Pages with sharing by content: pool and index as one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "memory/key_map.h"
#include "memory/page_pool.h"
#include "memory/prefix_index.h"

namespace octavo {

// Two rules keep eviction from ever taking a parent before its child: a page table is released from
// its end, and a key is indexed at a held page while anybody holds a page of that key. So the keys
// held by a table are a held prefix, and among cached pages children are always older.
//
// With several retention levels a page is in the level of its last holder or a higher one, and never
// in a lower one than a page that continues it.
//
// With `keeps_pages` (lazy reclaim) a page that nobody holds any more stays findable until its
// memory is wanted; without (eager reclaim) it is forgotten at once.
class PageCache {
 public:
  PageCache(int32_t pages, int32_t slab_pages, bool keeps_pages, int32_t levels);

  // Hold the best free page, else the least recently used cached one; none if every page is held.
  int32_t allocate();
  // Hold this very page, free or cached; its old content is forgotten.
  void take(int32_t page);
  // Forget the content of a page that nobody holds.
  void drop(int32_t page);
  // Forget cached pages that nobody has used since `before_seconds`; how many. The first page of a
  // level that may not go yet keeps those after it, which are its parents.
  int32_t give_up_idle(int32_t before_seconds, const std::function<bool(int32_t)>& may_go);
  // Forget up to so many cached pages in the order of eviction; how many.
  int32_t give_up_oldest(int32_t most);
  // A holder gives up its whole page table; published pages stay findable, in this retention level.
  // A page that somebody else's pages continue goes to the highest one, as does everything before
  // it, so that no page is taken before those that continue it.
  void release(const std::vector<int32_t>& table, int32_t level);
  // Make a held, fully computed page findable, after the id of its parent or none; the id of its
  // key. If the key is published already, a held page keeps it and this one becomes its twin, while
  // a cached page makes way. A page that is published already stays what it is.
  int32_t publish(int32_t page, const PageKey& key, int32_t parent);
  // Start over: page p is held `holders[p]` times, nothing is findable.
  void rebuild(const std::vector<int32_t>& holders);

  PagePool pool;
  PrefixIndex index;
  KeyHistory given_up;
  int64_t evicted_pages = 0;

 private:
  void evict(int32_t page);

  bool keeps_pages_;
};

}  // namespace octavo
