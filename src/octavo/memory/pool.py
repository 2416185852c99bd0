"""Which physical pages are free, cached or held, in integer arrays and O(1) steps."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

from octavo.core.errors import CapacityError, SettingsError

FREE = 0
"""Nobody uses the page and nothing in it can be found."""
CACHED = 1
"""Nobody uses the page; its content is findable until the page is taken."""
HELD = 2
"""At least one page table names the page."""


class PagePool:
    """Bookkeeping of `pages` equal pages; the bytes live elsewhere.

    Page ids are 0 … pages - 1. Cached pages form one list, least recently used first. Free pages
    form one list a slab (a run of `slab_pages` pages), and slabs are kept in buckets by the number
    of their free pages, so that allocation fills the fullest slab and leaves whole slabs empty.
    All lists are circular and intrusive: `prev` and `next` hold page ids, then one anchor for the
    cached list, then one anchor a slab.
    """

    def __init__(self, pages: int, *, slab_pages: int = 64):
        if pages < 1:
            raise SettingsError(f"must be at least 1 page, not {pages}", field="pages")
        if slab_pages < 1:
            raise SettingsError(f"must be at least 1 page, not {slab_pages}", field="slab_pages")
        self.pages = pages
        self.slab_pages = slab_pages
        self.slabs = -(-pages // slab_pages)
        self.refs = array("i")
        self.state = bytearray()
        self.prev = array("i")
        self.next = array("i")
        self.slab_free = array("i")
        self.slab_prev = array("i")
        self.slab_next = array("i")
        self.bucket_mask = 0
        self.free_count = 0
        self.cached_count = 0
        self.rebuild({})

    @property
    def held_count(self) -> int:
        return self.pages - self.free_count - self.cached_count

    @property
    def cached_anchor(self) -> int:
        return self.pages

    def slab_anchor(self, slab: int) -> int:
        return self.pages + 1 + slab

    def rebuild(self, refs: dict[int, int]) -> None:
        """Start over: pages in `refs` are held with that count, every other page is free."""
        self.refs = array("i", bytes(4 * self.pages))
        self.state = bytearray(self.pages)
        anchors = range(self.pages + 1 + self.slabs)
        self.prev = array("i", anchors)
        self.next = array("i", anchors)
        self.slab_free = array("i", bytes(4 * self.slabs))
        buckets = range(self.slabs + self.slab_pages + 1)
        self.slab_prev = array("i", buckets)
        self.slab_next = array("i", buckets)
        self.bucket_mask = 0
        self.free_count = 0
        self.cached_count = 0
        for slab in range(self.slabs):
            self._insert_slab(slab, 0)
        for page in range(self.pages):
            count = refs.get(page, 0)
            self.refs[page] = count
            if count:
                self.state[page] = HELD
            else:
                self._insert_free(page, self.prev[self.slab_anchor(page // self.slab_pages)])

    def candidates(self) -> Iterator[int]:
        """Pages in the order in which they would be taken: free ones, then cached ones.

        Taking from the fullest slab keeps it the fullest, so walking the buckets upwards gives the
        same order as taking one page after another. The pool must not change while this runs.
        """
        mask = self.bucket_mask & ~1
        while mask:
            bucket = (mask & -mask).bit_length() - 1
            mask &= mask - 1
            slab = self.slab_next[self.slabs + bucket]
            while slab < self.slabs:
                yield from self._walk(self.slab_anchor(slab))
                slab = self.slab_next[slab]
        yield from self.cached_pages()

    def cached_pages(self) -> Iterator[int]:
        """Cached pages, least recently used first."""
        return self._walk(self.cached_anchor)

    def allocate(self) -> tuple[int, bool]:
        """Hold the best page; the flag says that it was cached, so its key must be forgotten.

        Raises:
            CapacityError: every page is held.
        """
        for page in self.candidates():
            return page, bool(self.take((page,)))
        raise CapacityError(f"all {self.pages} pages are held", field="pages")

    def take(self, pages: Sequence[int]) -> list[int]:
        """Hold these very pages, none of which may be held; those that were cached (evictions)."""
        state, refs = self.state, self.refs
        evicted: list[int] = []
        free: Counter[int] = Counter()
        for page in pages:
            before = state[page]
            if before == HELD:
                raise ValueError(f"page {page} is held and cannot be taken")
            self._unlink(page)
            if before == CACHED:
                evicted.append(page)
            else:
                free[page // self.slab_pages] += 1
            state[page] = HELD
            refs[page] = 1
        self.cached_count -= len(evicted)
        self.free_count -= len(pages) - len(evicted)
        for slab, count in free.items():
            self._move_slab(slab, -count)
        return evicted

    def share(self, pages: Sequence[int]) -> None:
        """Add a holder to held or cached pages."""
        state, refs, previous, following = self.state, self.refs, self.prev, self.next
        for page in pages:
            if state[page] == CACHED:
                # As `_unlink`, which is much of the time of a preempted request's return.
                before, after = previous[page], following[page]
                following[before] = after
                previous[after] = before
                self.cached_count -= 1
                state[page] = HELD
            elif state[page] == FREE:
                raise ValueError(f"page {page} is free and cannot be shared")
            refs[page] += 1

    def release(self, page: int) -> None:
        """Remove a holder; after the last one the page is free."""
        if self.refs[page] < 1:
            raise ValueError(f"page {page} is not held and cannot be released")
        self.refs[page] -= 1
        if not self.refs[page]:
            self._insert_free(page, self.slab_anchor(page // self.slab_pages))

    def keep(self, pages: Sequence[int]) -> None:
        """Remove the last holder of each page; they are cached, the first least recently used."""
        refs, state, before, following = self.refs, self.state, self.prev, self.next
        anchor = self.pages
        last = before[anchor]
        for page in pages:
            if refs[page] != 1:
                raise ValueError(f"page {page} has {refs[page]} holders and cannot be kept")
            refs[page] = 0
            state[page] = CACHED
            following[last] = page
            before[page] = last
            last = page
        following[last] = anchor
        before[anchor] = last
        self.cached_count += len(pages)

    def discard(self, page: int) -> None:
        """Make a cached page free."""
        if self.state[page] != CACHED:
            raise ValueError(f"page {page} is not cached and cannot be discarded")
        self._unlink(page)
        self.cached_count -= 1
        self._insert_free(page, self.slab_anchor(page // self.slab_pages))

    def _walk(self, anchor: int) -> Iterator[int]:
        page = self.next[anchor]
        while page != anchor:
            yield page
            page = self.next[page]

    def _link(self, page: int, after: int) -> None:
        following = self.next[after]
        self.prev[page] = after
        self.next[page] = following
        self.next[after] = page
        self.prev[following] = page

    def _unlink(self, page: int) -> None:
        before, following = self.prev[page], self.next[page]
        self.next[before] = following
        self.prev[following] = before
        self.prev[page] = self.next[page] = page

    def _insert_free(self, page: int, after: int) -> None:
        self.state[page] = FREE
        self._link(page, after)
        self.free_count += 1
        self._move_slab(page // self.slab_pages, 1)

    def _move_slab(self, slab: int, change: int) -> None:
        before, following = self.slab_prev[slab], self.slab_next[slab]
        self.slab_next[before] = following
        self.slab_prev[following] = before
        old = self.slab_free[slab]
        if before == following:  # only the anchor is left
            self.bucket_mask &= ~(1 << old)
        self._insert_slab(slab, old + change)

    def _insert_slab(self, slab: int, free_pages: int) -> None:
        anchor = self.slabs + free_pages
        last = self.slab_prev[anchor]
        self.slab_prev[slab] = last
        self.slab_next[slab] = anchor
        self.slab_next[last] = slab
        self.slab_prev[anchor] = slab
        self.slab_free[slab] = free_pages
        self.bucket_mask |= 1 << free_pages
