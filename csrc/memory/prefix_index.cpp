#include "memory/prefix_index.h"

#include <algorithm>

namespace octavo {

PrefixIndex::PrefixIndex(int32_t pages)
    : hash_id(pages, kNone),
      page(pages, kNone),
      parent(pages, kNone),
      children(pages),
      twins(pages),
      keys_(pages) {}

void PrefixIndex::clear() {
  for (std::vector<int32_t>* column : {&hash_id, &page, &parent}) {
    std::fill(column->begin(), column->end(), kNone);
  }
  std::fill(children.begin(), children.end(), 0);
  twins.reset();
  keys_.clear();
  unused_ids_.clear();
  used_ids_ = size_ = 0;
}

int32_t PrefixIndex::find(const PageKey& key) const {
  const int32_t identity = keys_.find(key);
  return identity == kNone ? kNone : page[identity];
}

std::vector<int32_t> PrefixIndex::chain_of(int32_t indexed_page) const {
  std::vector<int32_t> chain;
  for (int32_t identity = hash_id.at(indexed_page); identity != kNone;
       identity = parent.at(identity)) {
    if (chain.size() == parent.size()) throw std::logic_error("a chain of parents never ends");
    chain.push_back(identity);
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

bool PrefixIndex::is_indexed(int32_t page_id) const {
  const int32_t identity = hash_id.at(page_id);
  return identity != kNone && page.at(identity) == page_id;
}

bool PrefixIndex::has_twin(int32_t page_id) const { return twins.next.at(page_id) != page_id; }

bool PrefixIndex::has_children_beside(int32_t indexed_page, int32_t child) const {
  const int32_t identity = hash_id.at(indexed_page);
  const bool is_own = child != kNone && parent.at(hash_id.at(child)) == identity;
  return children.at(identity) > int32_t(is_own);
}

int32_t PrefixIndex::insert(int32_t page_id, const PageKey& key, int32_t parent_id) {
  if (hash_id.at(page_id) != kNone) throw std::logic_error("the page has a key already");
  if (parent_id != kNone) ++children.at(parent_id);
  int32_t identity = used_ids_;
  if (unused_ids_.empty()) {
    ++used_ids_;
  } else {
    identity = unused_ids_.back();
    unused_ids_.pop_back();
  }
  keys_.insert(key, identity);
  page.at(identity) = page_id;
  parent[identity] = parent_id;
  children[identity] = 0;
  hash_id[page_id] = identity;
  ++size_;
  return identity;
}

void PrefixIndex::add_twin(int32_t page_id, int32_t identity) {
  hash_id.at(page_id) = identity;
  twins.insert(page_id, twins.prev.at(page.at(identity)));
}

int32_t PrefixIndex::replace(int32_t page_id, int32_t identity) {
  const int32_t before = page.at(identity);
  hash_id.at(before) = kNone;
  page[identity] = page_id;
  hash_id.at(page_id) = identity;
  return before;
}

bool PrefixIndex::give_up(int32_t page_id) {
  const int32_t identity = hash_id.at(page_id);
  if (identity == kNone) return false;
  const int32_t heir = twins.next.at(page_id);
  if (heir == page_id) return true;
  if (page.at(identity) == page_id) page[identity] = heir;
  twins.remove(page_id);
  hash_id[page_id] = kNone;
  return false;
}

PageKey PrefixIndex::forget(int32_t indexed_page) {
  const int32_t identity = hash_id.at(indexed_page);
  const PageKey key = keys_.key(identity);
  keys_.erase(identity);
  hash_id[indexed_page] = kNone;
  if (parent.at(identity) != kNone) --children.at(parent[identity]);
  page[identity] = kNone;
  unused_ids_.push_back(identity);
  --size_;
  return key;
}

}  // namespace octavo
