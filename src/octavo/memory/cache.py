"""The page pool and the prefix index as one: what the scheduler talks to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from octavo.memory.audit import audit_index, audit_pool
from octavo.memory.misses import MissHistory
from octavo.memory.pool import CACHED, PagePool
from octavo.memory.prefix import NONE, PrefixIndex


class PageCache:
    """Pages with sharing by content.

    Two rules keep eviction from ever taking a parent before its child: a page table is released
    from its end, and a key is indexed at a held page while anybody holds a page of that key. So the
    keys held by a table are a held prefix, and among cached pages children are always older.

    With `keeps_pages` (lazy reclaim) a page that nobody holds any more stays findable until its
    memory is wanted; without (eager reclaim) it is forgotten at once.
    """

    def __init__(self, pages: int, *, slab_pages: int = 64, keeps_pages: bool = True):
        self.pool = PagePool(pages, slab_pages=slab_pages)
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

    def give_up_idle(self, before_seconds: int) -> int:
        """Forget cached pages that nobody has used since `before_seconds`; how many."""
        pool = self.pool
        before = pool.cached_count
        while pool.cached_count:
            page = pool.next[pool.cached_anchor]
            if pool.idle_since[page] > before_seconds:
                break
            self.drop(page)
        return before - pool.cached_count

    def give_up_oldest(self, pages: int) -> int:
        """Forget up to `pages` cached pages, least recently used first; how many."""
        pool = self.pool
        count = min(pages, pool.cached_count)
        for _ in range(count):
            self.drop(pool.next[pool.cached_anchor])
        return count

    def share(self, pages: Sequence[int]) -> None:
        """Add a holder to every one of `pages`, which `look_up` returned."""
        self.pool.share(pages)

    def release(self, table: Sequence[int]) -> None:
        """A holder gives up its whole page table; published pages stay findable."""
        refs, index, kept = self.pool.refs, self.index, []
        for page in reversed(table):
            keep = refs[page] == 1 and index.give_up(page)
            if keep and self.keeps_pages:
                kept.append(page)
                continue
            if keep:
                self.misses.give_up(index.forget(page))
            self.pool.release(page)
        self.pool.keep(kept)

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
