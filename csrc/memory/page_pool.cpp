#include "memory/page_pool.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace octavo {

namespace {

[[noreturn]] void refuse(int32_t page, const char* why) {
  throw std::invalid_argument("page " + std::to_string(page) + " " + why);
}

int32_t checked(int32_t value, const char* name) {
  // Pages, anchors of levels and anchors of slabs share one range of numbers.
  if (value < 1 || value > (1 << 29)) throw std::invalid_argument(std::string(name) + ": 1 to 2^29");
  return value;
}

int32_t lowest_bit(uint64_t word) { return __builtin_ctzll(word); }

}  // namespace

PagePool::PagePool(int32_t pages, int32_t slab_pages, int32_t levels)
    : refs(checked(pages, "pages")),
      state(pages),
      links(size_t(pages) + checked(levels, "levels") +
            (pages - 1) / checked(slab_pages, "slab_pages") + 1),
      slab_links(size_t((pages - 1) / slab_pages + 1) + slab_pages + 2),
      slab_free((pages - 1) / slab_pages + 1),
      bucket_words((size_t(slab_pages) + 2 + 63) / 64),
      idle_since(pages),
      empty_since(slab_free.size()),
      backed(slab_free.size()),
      pages_(pages),
      slab_pages_(slab_pages),
      levels_(levels),
      slabs_(int32_t(slab_free.size())) {
  rebuild(std::vector<int32_t>(pages));
}

int32_t PagePool::cached_anchor(int32_t level) const {
  if (level < 0 || level >= levels_) throw std::invalid_argument("there is no such level");
  return pages_ + level;
}

int32_t PagePool::slab_anchor(int32_t slab) const { return pages_ + levels_ + slab; }

int32_t PagePool::slab_size(int32_t slab) const {
  if (slab < 0 || slab >= slabs_) throw std::invalid_argument("there is no such slab");
  return slab + 1 < slabs_ ? slab_pages_ : pages_ - slab * slab_pages_;
}

int32_t PagePool::bucket_of(int32_t slab) const {
  const int32_t free_pages = slab_free.at(slab);
  if (free_pages < 0) throw std::logic_error("a slab has lost count of its free pages");
  if (free_pages < slab_size(slab)) return free_pages;
  return backed.at(slab) ? slab_pages_ : slab_pages_ + 1;
}

int32_t PagePool::filled_bucket(int32_t bucket) const {
  size_t word = size_t(bucket) / 64;
  uint64_t mask = ~uint64_t(0) << (bucket % 64);
  for (; word < bucket_words.size(); ++word, mask = ~uint64_t(0)) {
    if (const uint64_t left = bucket_words[word] & mask) return int32_t(word * 64) + lowest_bit(left);
  }
  return kNone;
}

void PagePool::rebuild(const std::vector<int32_t>& holders) {
  if (holders.size() != size_t(pages_)) throw std::invalid_argument("one number of holders a page");
  ++version_;
  std::fill(state.begin(), state.end(), uint8_t(kFree));
  std::fill(slab_free.begin(), slab_free.end(), 0);
  std::fill(bucket_words.begin(), bucket_words.end(), 0);
  links.reset();
  slab_links.reset();
  free_count = cached_count = 0;
  for (int32_t slab = 0; slab < slabs_; ++slab) insert_slab(slab);
  for (int32_t page = 0; page < pages_; ++page) {
    refs[page] = holders[page];
    if (holders[page] > 0) {
      state[page] = kHeld;
      back(slab_of(page));
    } else {
      insert_free(page, links.prev[slab_anchor(slab_of(page))]);
    }
  }
}

std::vector<int32_t> PagePool::cached_pages(int32_t most) const {
  std::vector<int32_t> found;
  const size_t limit = size_t(std::clamp(most, 0, cached_count));
  found.reserve(limit);
  for (int32_t level = 0; level < levels_; ++level) {
    const int32_t anchor = cached_anchor(level);
    for (int32_t page = links.next.at(anchor); page != anchor; page = links.next.at(page)) {
      if (found.size() == limit) return found;
      found.push_back(page);
    }
  }
  return found;
}

int32_t PagePool::oldest_cached() const {
  for (int32_t level = 0; level < levels_; ++level) {
    const int32_t anchor = cached_anchor(level);
    if (links.next[anchor] != anchor) return links.next[anchor];
  }
  return kNone;
}

std::vector<int32_t> PagePool::empty_slabs() const {
  std::vector<int32_t> found;
  const int32_t anchor = bucket_anchor(slab_pages_);
  for (int32_t slab = slab_links.prev.at(anchor); slab != anchor && found.size() < backed.size();
       slab = slab_links.prev.at(slab)) {
    found.push_back(slab);
  }
  return found;
}

int32_t PagePool::next_unbacked() const {
  const int32_t anchor = bucket_anchor(slab_pages_ + 1);
  const int32_t slab = slab_links.next.at(anchor);
  return slab == anchor ? kNone : slab;
}

void PagePool::set_backed(int32_t slab, bool is_backed) {
  if (slab_free.at(slab) < slab_size(slab)) {
    throw std::invalid_argument("slab " + std::to_string(slab) + " is in use");
  }
  ++version_;
  remove_slab(slab);
  if (is_backed) {
    back(slab);
    empty_since.at(slab) = now_seconds;
  } else if (backed.at(slab)) {
    backed[slab] = false;
    backed_pages_ -= slab_size(slab);
  }
  insert_slab(slab);
}

bool PagePool::take(int32_t page) {
  const uint8_t before = state.at(page);
  if (before == kHeld) refuse(page, "is held and cannot be taken");
  ++version_;
  links.remove(page);
  state[page] = kHeld;
  refs[page] = 1;
  if (before == kCached) {
    --cached_count;
    return true;
  }
  --free_count;
  change_slab(slab_of(page), -1);
  return false;
}

void PagePool::share(int32_t page) {
  const uint8_t before = state.at(page);
  if (before == kFree) refuse(page, "is free and cannot be shared");
  ++version_;
  if (before == kCached) {
    links.remove(page);
    --cached_count;
    state[page] = kHeld;
  }
  ++refs[page];
}

void PagePool::release(int32_t page) {
  if (refs.at(page) < 1) refuse(page, "is not held and cannot be released");
  ++version_;
  if (--refs[page] == 0) insert_free(page, slab_anchor(slab_of(page)));
}

void PagePool::keep(int32_t page, int32_t level) {
  if (refs.at(page) != 1) refuse(page, "has not one holder and cannot be kept");
  const int32_t anchor = cached_anchor(level);
  ++version_;
  refs[page] = 0;
  state[page] = kCached;
  idle_since[page] = now_seconds;
  links.insert(page, links.prev[anchor]);
  ++cached_count;
}

void PagePool::discard(int32_t page) {
  if (state.at(page) != kCached) refuse(page, "is not cached and cannot be discarded");
  ++version_;
  links.remove(page);
  --cached_count;
  insert_free(page, slab_anchor(slab_of(page)));
}

void PagePool::insert_free(int32_t page, int32_t after) {
  state[page] = kFree;
  links.insert(page, after);
  ++free_count;
  change_slab(slab_of(page), 1);
}

void PagePool::change_slab(int32_t slab, int32_t change) {
  remove_slab(slab);
  if (change < 0) {
    back(slab);
  } else {
    empty_since[slab] = now_seconds;
  }
  slab_free[slab] += change;
  insert_slab(slab);
}

void PagePool::back(int32_t slab) {
  if (backed.at(slab)) return;
  backed[slab] = true;
  backed_pages_ += slab_size(slab);
}

void PagePool::remove_slab(int32_t slab) {
  const int32_t before = slab_links.prev.at(slab);
  const bool was_last = before == slab_links.next.at(slab);  // only the anchor is left
  slab_links.remove(slab);
  if (was_last) {
    const int32_t bucket = before - slabs_;
    if (bucket < 0) throw std::logic_error("a bucket of slabs has lost its anchor");
    bucket_words.at(size_t(bucket) / 64) &= ~(uint64_t(1) << (bucket % 64));
  }
}

void PagePool::insert_slab(int32_t slab) {
  const int32_t bucket = bucket_of(slab), anchor = bucket_anchor(bucket);
  // The latest emptied slab is used first, so that the others can grow old.
  slab_links.insert(slab, bucket == slab_pages_ ? anchor : slab_links.prev.at(anchor));
  bucket_words.at(size_t(bucket) / 64) |= uint64_t(1) << (bucket % 64);
}

TakingOrder::TakingOrder(const PagePool& pool)
    : pool_(&pool), version_(pool.version()), slab_(pool.slab_links.prev.at(pool.slabs())) {}

int32_t TakingOrder::next() {
  if (version_ != pool_->version()) throw std::logic_error("the pages have changed meanwhile");
  while (page_ == anchor_) {
    if (!open_next_list()) return kNone;
  }
  const int32_t found = page_;
  page_ = pool_->links.next.at(page_);
  return found;
}

bool TakingOrder::open_next_list() {
  if (bucket_ != kNone) {
    slab_ = pool_->slab_links.next.at(slab_);
    if (slab_ >= pool_->slabs()) {  // the anchor at the end of a bucket
      bucket_ = pool_->filled_bucket(bucket_ + 1);
      if (bucket_ != kNone) slab_ = pool_->slab_links.next.at(pool_->slabs() + bucket_);
    }
  }
  if (bucket_ != kNone) {
    anchor_ = pool_->slab_anchor(slab_);
  } else if (level_ < pool_->levels()) {
    anchor_ = pool_->cached_anchor(level_++);
  } else {
    return false;
  }
  page_ = pool_->links.next.at(anchor_);
  return true;
}

}  // namespace octavo
