"""The page pool and the prefix index as one: what the scheduler talks to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from octavo.memory.audit import audit_index, audit_pool
from octavo.memory.misses import MissHistory
from octavo.memory.pool import CACHED, PagePool
from octavo.memory.prefix import NONE, PrefixIndex


class PageCache:
    """Pages with sharing by content.

    Two rules keep eviction from ever taking a parent before its child: a page table is released
    from its end, and a key is indexed at a held page while anybody holds a page of that key. So the
    keys held by a table are a held prefix, and among cached pages children are always older.

    With several retention `levels` a page is in the level of its last holder or a higher one, and
    never in a lower one than a page that continues it.

    With `keeps_pages` (lazy reclaim) a page that nobody holds any more stays findable until its
    memory is wanted; without (eager reclaim) it is forgotten at once.
    """

    def __init__(
        self, pages: int, *, slab_pages: int = 64, keeps_pages: bool = True, levels: int = 1
    ):
        self.pool = PagePool(pages, slab_pages=slab_pages, levels=levels)
        self.index = PrefixIndex(pages)
        self.keeps_pages = keeps_pages
        self.misses = MissHistory()
        self.evicted_pages = 0

    def look_up(self, keys: Sequence[bytes]) -> list[int]:
        """Pages (held or cached) of the longest published run of `keys`."""
        return self.index.look_up(keys)

    def allocate(self) -> int:
        """Hold the best free page, else the least recently used cached one.

        Raises:
            CapacityError: every page is held.
        """
        page, was_cached = self.pool.allocate()
        if was_cached:
            self._evict(page)
        return page

    def take(self, pages: Sequence[int]) -> None:
        """Hold these very pages, free or cached ones; their old content is forgotten."""
        for page in self.pool.take(pages):
            self._evict(page)

    def drop(self, page: int) -> None:
        """Forget the content of a page that nobody holds."""
        if self.pool.state[page] == CACHED:
            self._evict(page)
            self.pool.discard(page)

    def give_up_idle(
        self, before_seconds: int, may_go: Callable[[int], bool] = lambda page: True
    ) -> int:
        """Forget cached pages that nobody has used since `before_seconds`; how many.

        The first page of a level that may not go yet keeps those after it, which are its parents.
        """
        pool = self.pool
        before = pool.cached_count
        for level in range(pool.levels):
            anchor = pool.cached_anchor(level)
            page = pool.next[anchor]
            while page != anchor and pool.idle_since[page] <= before_seconds and may_go(page):
                self.drop(page)
                page = pool.next[anchor]
        return before - pool.cached_count

    def give_up_oldest(self, pages: int) -> int:
        """Forget up to `pages` cached pages in the order of eviction; how many."""
        oldest = list(islice(self.pool.cached_pages(), pages))
        for page in oldest:
            self.drop(page)
        return len(oldest)

    def share(self, pages: Sequence[int]) -> None:
        """Add a holder to every one of `pages`, which `look_up` returned."""
        self.pool.share(pages)

    def release(self, table: Sequence[int], *, level: int | None = None) -> None:
        """A holder gives up its whole page table; published pages stay findable.

        They are kept in this retention level (None: the highest). A page that somebody else's
        pages continue goes to the highest one, as does everything before it, so that no page is
        taken before those that continue it.
        """
        pool, refs, index = self.pool, self.pool.refs, self.index
        highest = pool.levels - 1
        level = highest if level is None else level
        kept: list[int] = []
        for page in reversed(table):
            if refs[page] != 1 or not index.give_up(page):
                pool.release(page)
            elif not self.keeps_pages:
                self.misses.give_up(index.forget(page))
                pool.release(page)
            else:
                if level < highest and index.has_children_beside(page, kept[-1] if kept else NONE):
                    pool.keep(kept, level)
                    kept, level = [], highest
                kept.append(page)
        pool.keep(kept, level)

    def publish(self, page: int, key: bytes, parent_key: bytes | None) -> bool:
        """Make a held, fully computed page findable; True if it is the page that is found.

        Pages of a table are published in order, each once. If the key is published already, a held
        page keeps it and this one becomes its twin, while a cached page makes way. Without a
        published parent nothing happens.
        """
        if self.index.hash_id[page] != NONE:
            return self.index.is_indexed(page)
        other = self.index.find(key)
        if other == NONE:
            return self.index.insert(page, key, parent_key)
        if self.pool.state[other] == CACHED:
            self.index.replace(page, key)
            self.pool.discard(other)
            return True
        self.index.add_twin(page, key)
        return False

    def audit(self, tables: Iterable[Sequence[int]]) -> list[str]:
        """Findings against the invariants, given every page table; empty when all hold."""
        counts = Counter(page for table in tables for page in table)
        return audit_pool(self.pool, counts) + audit_index(self.index, self.pool)

    def repair(self, tables: Iterable[Sequence[int]]) -> None:
        """Rebuild from the page tables alone: they keep their pages, nothing is findable."""
        self.pool.rebuild(Counter(page for table in tables for page in table))
        self.index = PrefixIndex(self.pool.pages)

    def _evict(self, page: int) -> None:
        self.misses.give_up(self.index.forget(page))
        self.evicted_pages += 1
