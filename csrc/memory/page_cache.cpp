#include "memory/page_cache.h"

#include <algorithm>

namespace octavo {

namespace {

constexpr int32_t kRememberedKeys = 1 << 15;

}  // namespace

PageCache::PageCache(int32_t pages, int32_t slab_pages, bool keeps_pages, int32_t levels)
    : pool(pages, slab_pages, levels),
      index(pages),
      given_up(kRememberedKeys),
      keeps_pages_(keeps_pages) {}

int32_t PageCache::allocate() {
  const int32_t page = TakingOrder(pool).next();
  if (page != kNone) take(page);
  return page;
}

void PageCache::take(int32_t page) {
  if (pool.take(page)) evict(page);
}

void PageCache::drop(int32_t page) {
  if (pool.state.at(page) != kCached) return;
  evict(page);
  pool.discard(page);
}

int32_t PageCache::give_up_idle(int32_t before_seconds,
                                const std::function<bool(int32_t)>& may_go) {
  const int32_t before = pool.cached_count;
  for (int32_t level = 0; level < pool.levels(); ++level) {
    const int32_t anchor = pool.cached_anchor(level);
    for (;;) {
      const int32_t page = pool.links.next.at(anchor);
      if (page == anchor || pool.idle_since.at(page) > before_seconds) break;
      if (may_go && !may_go(page)) break;
      drop(page);
    }
  }
  return before - pool.cached_count;
}

int32_t PageCache::give_up_oldest(int32_t most) {
  int32_t count = 0;
  for (; count < most; ++count) {
    const int32_t page = pool.oldest_cached();
    if (page == kNone) break;
    drop(page);
  }
  return count;
}

void PageCache::release(const std::vector<int32_t>& table, int32_t level) {
  const int32_t highest = pool.levels() - 1;
  pool.cached_anchor(level);  // refuses a level that does not exist while nothing is changed
  int32_t child = kNone;
  for (auto page = table.rbegin(); page != table.rend(); ++page) {
    if (pool.refs.at(*page) != 1 || !index.give_up(*page)) {
      pool.release(*page);
    } else if (!keeps_pages_) {
      given_up.add(index.forget(*page));
      pool.release(*page);
    } else {
      if (level < highest && index.has_children_beside(*page, child)) level = highest;
      pool.keep(*page, level);
      child = *page;
    }
  }
}

int32_t PageCache::publish(int32_t page, const PageKey& key, int32_t parent) {
  if (pool.state.at(page) != kHeld) throw std::invalid_argument("only held pages are published");
  if (index.hash_id.at(page) != kNone) return index.hash_id[page];
  const int32_t identity = index.identity(key);
  if (identity == kNone) return index.insert(page, key, parent);
  if (pool.state.at(index.page.at(identity)) == kCached) {
    pool.discard(index.replace(page, identity));
  } else {
    index.add_twin(page, identity);
  }
  return identity;
}

void PageCache::rebuild(const std::vector<int32_t>& holders) {
  pool.rebuild(holders);
  index.clear();
}

void PageCache::evict(int32_t page) {
  given_up.add(index.forget(page));
  ++evicted_pages;
}

}  // namespace octavo
