// Which page holds the content of a key; knows keys and pages, not who holds them.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/key_map.h"
#include "memory/links.h"

namespace octavo {

// Map of published keys to pages.
//
// A key has one indexed page, the one that is found. When two requests computed the same content,
// the second page is a twin: it keeps the key's id in `hash_id` but is not found until the indexed
// page is given up. Pages of one key form a ring in `twins`, the indexed page first, then its twins
// in the order in which they came. Every key but a first one has a parent; `children` counts the
// published keys after a key. Ids of keys are small integers and are used again; `page` is -1 for
// an id that is not in use.
class PrefixIndex {
 public:
  explicit PrefixIndex(int32_t pages);

  // Forget everything, in place.
  void clear();
  // Number of published keys.
  int32_t size() const { return size_; }
  // Id of a key, or none.
  int32_t identity(const PageKey& key) const { return keys_.find(key); }
  // Indexed page of a key, or none.
  int32_t find(const PageKey& key) const;
  const PageKey& key(int32_t identity) const { return keys_.key(identity); }
  // The ids from the first page of a prefix to an indexed page.
  std::vector<int32_t> chain_of(int32_t indexed_page) const;
  bool is_indexed(int32_t page) const;
  // Whether another page of the same content would inherit the key of an indexed page.
  bool has_twin(int32_t page) const;
  // Whether published pages continue an indexed page, other than page `child` (none: any).
  bool has_children_beside(int32_t indexed_page, int32_t child) const;

  // Index a key that is not indexed, after the id of its parent or none; its id.
  int32_t insert(int32_t page_without_key, const PageKey& key, int32_t parent);
  // Note that a page without key has the content of an indexed one too.
  void add_twin(int32_t page_without_key, int32_t identity);
  // Make a page without key the indexed page of a key; the page it was before, which has no twins.
  int32_t replace(int32_t page_without_key, int32_t identity);
  // The last holder of a page leaves; true if the page stays findable. A twin is dropped; an indexed
  // page with a twin hands its key to the twin, which is held.
  bool give_up(int32_t page);
  // Drop the key of an indexed page without twins that was evicted; the key.
  PageKey forget(int32_t indexed_page);

  std::vector<int32_t> hash_id;
  std::vector<int32_t> page;
  std::vector<int32_t> parent;
  std::vector<int32_t> children;
  Links twins;

 private:
  KeyMap keys_;
  std::vector<int32_t> unused_ids_;
  int32_t used_ids_ = 0;
  int32_t size_ = 0;
};

}  // namespace octavo
