// The native module of the bookkeeping of pages.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>

#include "memory/page_cache.h"
#include "memory/page_draft.h"
#include "memory/page_keys.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

// A list or tuple of Python objects, borrowed for one call; other sequences are copied once.
class Items {
 public:
  explicit Items(nb::handle sequence)
      : fast_(nb::steal(PySequence_Fast(sequence.ptr(), "a sequence is needed"))) {
    if (!fast_.is_valid()) nb::raise_python_error();
  }

  size_t size() const { return size_t(PySequence_Fast_GET_SIZE(fast_.ptr())); }

  nb::handle operator[](size_t at) const {
    if (at >= size()) throw std::out_of_range("the sequence is too short");
    return PySequence_Fast_GET_ITEM(fast_.ptr(), Py_ssize_t(at));
  }

 private:
  nb::object fast_;
};

int32_t page_of(nb::handle item) {
  const long page = PyLong_AsLong(item.ptr());
  if (page == -1 && PyErr_Occurred()) nb::raise_python_error();
  if (page < 0 || page > std::numeric_limits<int32_t>::max()) {
    throw std::out_of_range("there is no such page");
  }
  return int32_t(page);
}

std::vector<int32_t> pages_of(nb::handle sequence) {
  const Items items(sequence);
  std::vector<int32_t> pages(items.size());
  for (size_t at = 0; at < pages.size(); ++at) pages[at] = page_of(items[at]);
  return pages;
}

PageKey key_of(nb::handle item) {
  PageKey key;
  if (!PyBytes_Check(item.ptr()) || PyBytes_GET_SIZE(item.ptr()) != Py_ssize_t(key.size())) {
    throw std::invalid_argument("a key of 32 bytes is needed");
  }
  std::memcpy(key.data(), PyBytes_AS_STRING(item.ptr()), key.size());
  return key;
}

nb::bytes bytes_of(const PageKey& key) { return nb::bytes(key.data(), key.size()); }

std::optional<int32_t> some(int32_t number) {
  return number == kNone ? std::nullopt : std::optional<int32_t>(number);
}

// Pages of the longest run of keys, from the first one on, that are found.
template <class Finder>
std::vector<int32_t> look_up(const Finder& finder, nb::handle keys) {
  const Items items(keys);
  std::vector<int32_t> found;
  for (size_t at = 0; at < items.size(); ++at) {
    const int32_t page = finder.find(key_of(items[at]));
    if (page == kNone) break;
    found.push_back(page);
  }
  return found;
}

void publish_run(PageCache& cache, nb::handle table, nb::handle keys, size_t first, size_t end) {
  const Items pages(table), all_keys(keys);
  int32_t parent = first == 0 ? kNone : cache.index.identity(key_of(all_keys[first - 1]));
  if (first > 0 && parent == kNone) return;
  for (size_t at = first; at < end; ++at) {
    parent = cache.publish(page_of(pages[at]), key_of(all_keys[at]), parent);
  }
}

bool publish(PageCache& cache, int32_t page, nb::handle key, nb::handle parent_key) {
  int32_t parent = kNone;
  if (!parent_key.is_none()) {
    parent = cache.index.identity(key_of(parent_key));
    if (parent == kNone) return cache.index.is_indexed(page);
  }
  cache.publish(page, key_of(key), parent);
  return cache.index.is_indexed(page);
}

std::vector<int32_t> tokens_of(const Items& items, size_t first) {
  std::vector<int32_t> tokens;
  tokens.reserve(items.size() - std::min(first, items.size()));
  for (size_t at = first; at < items.size(); ++at) {
    const long token = PyLong_AsLong(items[at].ptr());
    if (token == -1 && PyErr_Occurred()) nb::raise_python_error();
    if (token < std::numeric_limits<int32_t>::min() ||
        token > std::numeric_limits<int32_t>::max()) {
      throw std::out_of_range("tokens are 32-bit integers");
    }
    tokens.push_back(int32_t(token));
  }
  return tokens;
}

nb::bytes key_after(nb::handle parent, nb::handle token_ids) {
  const std::vector<int32_t> tokens = tokens_of(Items(token_ids), 0);
  return bytes_of(child_key(key_of(parent), tokens.data(), tokens.size()));
}

void extend_keys(nb::list keys, nb::handle root, nb::handle token_ids, size_t page_tokens) {
  if (!page_tokens) throw std::invalid_argument("a page has at least one token");
  const size_t known = keys.size();
  const std::vector<int32_t> tokens = tokens_of(Items(token_ids), known * page_tokens);
  PageKey key = key_of(known ? nb::object(keys[known - 1]) : nb::borrow(root));
  for (size_t end = page_tokens; end <= tokens.size(); end += page_tokens) {
    key = child_key(key, &tokens[end - page_tokens], page_tokens);
    keys.append(bytes_of(key));
  }
}

// A column as memory of `Owner`, which it keeps alive; columns never move.
template <auto Member, class Owner>
auto column(nb::handle_t<Owner> owner) {
  auto& values = nb::inst_ptr<Owner>(owner)->*Member;
  using Element = typename std::remove_reference_t<decltype(values)>::value_type;
  return nb::ndarray<nb::memview, Element, nb::ndim<1>>(values.data(), {values.size()}, owner);
}

template <auto Lists, auto Side, class Owner>
auto link_column(nb::handle_t<Owner> owner) {
  auto& values = nb::inst_ptr<Owner>(owner)->*Lists.*Side;
  return nb::ndarray<nb::memview, int32_t, nb::ndim<1>>(values.data(), {values.size()}, owner);
}

void bind_pool(nb::module_& module) {
  using Pool = PagePool;
  nb::class_<Pool>(module, "PagePool")
      .def_prop_ro("pages", &Pool::pages)
      .def_prop_ro("slab_pages", &Pool::slab_pages)
      .def_prop_ro("levels", &Pool::levels)
      .def_prop_ro("slabs", &Pool::slabs)
      .def_prop_ro("held_count", &Pool::held_count)
      .def_prop_ro("backed_pages", &Pool::backed_pages)
      .def_prop_ro("backed_free_count", &Pool::backed_free_count)
      .def_rw("free_count", &Pool::free_count)
      .def_rw("cached_count", &Pool::cached_count)
      .def_rw("now_seconds", &Pool::now_seconds)
      .def_prop_ro("refs", &column<&Pool::refs, Pool>)
      .def_prop_ro("state", &column<&Pool::state, Pool>)
      .def_prop_ro("prev", &link_column<&Pool::links, &Links::prev, Pool>)
      .def_prop_ro("next", &link_column<&Pool::links, &Links::next, Pool>)
      .def_prop_ro("slab_prev", &link_column<&Pool::slab_links, &Links::prev, Pool>)
      .def_prop_ro("slab_next", &link_column<&Pool::slab_links, &Links::next, Pool>)
      .def_prop_ro("slab_free", &column<&Pool::slab_free, Pool>)
      .def_prop_ro("bucket_words", &column<&Pool::bucket_words, Pool>)
      .def_prop_ro("idle_since", &column<&Pool::idle_since, Pool>)
      .def_prop_ro("empty_since", &column<&Pool::empty_since, Pool>)
      .def_prop_ro("backed", &column<&Pool::backed, Pool>)
      .def("cached_anchor", &Pool::cached_anchor, "level"_a)
      .def("slab_anchor", &Pool::slab_anchor, "slab"_a)
      .def("slab_size", &Pool::slab_size, "slab"_a)
      .def("bucket_of", &Pool::bucket_of, "slab"_a)
      .def("cached_pages",
           [](const Pool& pool, std::optional<int32_t> most) {
             return pool.cached_pages(most.value_or(pool.cached_count));
           },
           "most"_a = nb::none())
      .def("empty_slabs", &Pool::empty_slabs)
      .def("next_unbacked", [](const Pool& pool) { return some(pool.next_unbacked()); })
      .def("set_backed", &Pool::set_backed, "slab"_a, "is_backed"_a);
}

void bind_index(nb::module_& module) {
  using Index = PrefixIndex;
  nb::class_<Index>(module, "PrefixIndex")
      .def("__len__", &Index::size)
      .def("find", [](const Index& index, nb::bytes key) { return some(index.find(key_of(key))); },
           "key"_a)
      .def("key_of",
           [](const Index& index, int32_t page) {
             return bytes_of(index.key(index.hash_id.at(page)));
           },
           "page"_a)
      .def("chain_of",
           [](const Index& index, int32_t page) {
             nb::list keys;
             for (const int32_t identity : index.chain_of(page)) {
               keys.append(bytes_of(index.key(identity)));
             }
             return keys;
           },
           "page"_a)
      .def("is_indexed", &Index::is_indexed, "page"_a)
      .def_prop_ro("hash_id", &column<&Index::hash_id, Index>)
      .def_prop_ro("page", &column<&Index::page, Index>)
      .def_prop_ro("parent", &column<&Index::parent, Index>)
      .def_prop_ro("children", &column<&Index::children, Index>)
      .def_prop_ro("twin_prev", &link_column<&Index::twins, &Links::prev, Index>)
      .def_prop_ro("twin_next", &link_column<&Index::twins, &Links::next, Index>);
}

void bind_cache(nb::module_& module) {
  using Cache = PageCache;
  nb::class_<Cache>(module, "PageCache")
      .def(nb::init<int32_t, int32_t, bool, int32_t>(), "pages"_a, "slab_pages"_a, "keeps_pages"_a,
           "levels"_a)
      .def_prop_ro("pool", [](Cache& cache) -> PagePool& { return cache.pool; },
                   nb::rv_policy::reference_internal)
      .def_prop_ro("index", [](Cache& cache) -> PrefixIndex& { return cache.index; },
                   nb::rv_policy::reference_internal)
      .def_ro("evicted_pages", &Cache::evicted_pages)
      .def("look_up",
           [](const Cache& cache, nb::handle keys) { return look_up(cache.index, keys); },
           "keys"_a)
      .def("allocate", [](Cache& cache) { return some(cache.allocate()); })
      .def("take",
           [](Cache& cache, nb::handle pages) {
             for (const int32_t page : pages_of(pages)) cache.take(page);
           },
           "pages"_a)
      .def("drop", &Cache::drop, "page"_a)
      .def("give_up_idle", &Cache::give_up_idle, "before_seconds"_a, "may_go"_a.none() = nb::none())
      .def("give_up_oldest", &Cache::give_up_oldest, "pages"_a)
      .def("share",
           [](Cache& cache, nb::handle pages) {
             for (const int32_t page : pages_of(pages)) cache.pool.share(page);
           },
           "pages"_a)
      .def("release",
           [](Cache& cache, nb::handle table, std::optional<int32_t> level) {
             cache.release(pages_of(table), level.value_or(cache.pool.levels() - 1));
           },
           "table"_a, nb::kw_only(), "level"_a = nb::none())
      .def("publish", &publish, "page"_a, "key"_a, "parent_key"_a.none())
      .def("publish_run", &publish_run, "table"_a, "keys"_a, "first"_a, "end"_a)
      .def("was_given_up",
           [](const Cache& cache, nb::bytes key) { return cache.given_up.holds(key_of(key)); },
           "key"_a)
      .def("rebuild",
           [](Cache& cache, nb::handle holders) { cache.rebuild(pages_of(holders)); },
           "holders"_a);
}

void bind_draft(nb::module_& module) {
  using Draft = PageDraft;
  nb::class_<Draft>(module, "PageDraft")
      .def(nb::init<const PageCache&>(), "cache"_a, nb::keep_alive<1, 2>())
      .def_prop_ro("available", &Draft::available)
      .def_prop_ro("passed_over", &Draft::passed_over)
      .def("take",
           [](Draft& draft, int32_t count) {
             std::vector<int32_t> pages;
             for (int32_t taken = 0; taken < count; ++taken) pages.push_back(draft.take());
             return pages;
           },
           "count"_a)
      .def("find_run",
           [](const Draft& draft, int32_t count) { return some(draft.find_run(count)); },
           "count"_a)
      .def("take_run",
           [](Draft& draft, int32_t count) -> std::optional<std::vector<int32_t>> {
             const int32_t start = draft.find_run(count);
             if (start == kNone) return std::nullopt;
             draft.take_run(start, count);
             std::vector<int32_t> pages(count);
             for (int32_t at = 0; at < count; ++at) pages[at] = start + at;
             return pages;
           },
           "count"_a)
      .def("give_back",
           [](Draft& draft, nb::handle pages) {
             for (const int32_t page : pages_of(pages)) draft.give_back(page);
           },
           "pages"_a)
      .def("release",
           [](Draft& draft, nb::handle table) { draft.release(pages_of(table)); }, "table"_a)
      .def("look_up", [](const Draft& draft, nb::handle keys) { return look_up(draft, keys); },
           "keys"_a)
      .def("unheld",
           [](const Draft& draft, nb::handle pages) {
             int32_t count = 0;
             for (const int32_t page : pages_of(pages)) count += draft.is_unheld(page);
             return count;
           },
           "pages"_a)
      .def("freed",
           [](const Draft& draft, nb::handle held, nb::handle wanted) {
             return draft.freed(pages_of(held), pages_of(wanted));
           },
           "held"_a, "wanted"_a)
      .def("share",
           [](Draft& draft, nb::handle pages) {
             for (const int32_t page : pages_of(pages)) draft.share(page);
           },
           "pages"_a);
}

}  // namespace
}  // namespace octavo

NB_MODULE(_pages, module) {
  module.doc() = "Bookkeeping of pages; octavo.memory.cache is the way to use it.";
  module.attr("FREE") = int(octavo::kFree);
  module.attr("CACHED") = int(octavo::kCached);
  module.attr("HELD") = int(octavo::kHeld);
  module.def("child_key", &octavo::key_after, "parent"_a, "token_ids"_a);
  module.def("extend_keys", &octavo::extend_keys, "keys"_a, "root"_a, "token_ids"_a,
             "page_tokens"_a);
  octavo::bind_pool(module);
  octavo::bind_index(module);
  octavo::bind_cache(module);
  octavo::bind_draft(module);
}
