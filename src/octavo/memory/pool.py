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

    Page ids are 0 … pages - 1. Cached pages form one list a retention level, least recently used
    first; all pages of a level are taken before those of the next. Free pages form one list a slab
    (a run of `slab_pages` pages), and slabs are kept in buckets by the number of their free pages,
    so that allocation fills the fullest slab and leaves whole slabs empty. Empty slabs have two
    buckets of their own: first those that are `backed` by memory, latest emptied first, then those
    that are not; taking a page from a slab backs it. All lists are circular and intrusive: `prev`
    and `next` hold page ids, then one anchor a level, then one anchor a slab.

    `now_seconds` is set by whoever has the clock; `idle_since` says when the last holder of a
    cached page left, `empty_since` when the last page of an empty slab became free.
    """

    def __init__(self, pages: int, *, slab_pages: int = 64, levels: int = 1):
        if pages < 1:
            raise SettingsError(f"must be at least 1 page, not {pages}", field="pages")
        if slab_pages < 1:
            raise SettingsError(f"must be at least 1 page, not {slab_pages}", field="slab_pages")
        self.pages = pages
        self.slab_pages = slab_pages
        self.levels = levels
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
        self.now_seconds = 0
        self.idle_since = array("i", bytes(4 * pages))
        self.empty_since = array("i", bytes(4 * self.slabs))
        self.backed = bytearray(self.slabs)
        self.backed_pages = 0
        self.rebuild({})

    @property
    def held_count(self) -> int:
        return self.pages - self.free_count - self.cached_count

    def cached_anchor(self, level: int) -> int:
        return self.pages + level

    @property
    def backed_free_count(self) -> int:
        """Free pages that can be written without a page fault."""
        return self.free_count - (self.pages - self.backed_pages)

    def slab_anchor(self, slab: int) -> int:
        return self.pages + self.levels + slab

    def slab_size(self, slab: int) -> int:
        """Pages of a slab; the last one may have fewer."""
        return min(self.slab_pages, self.pages - slab * self.slab_pages)

    def rebuild(self, refs: dict[int, int]) -> None:
        """Start over: pages in `refs` are held with that count, every other page is free.

        Which slabs are backed is a fact that stays.
        """
        self.refs = array("i", bytes(4 * self.pages))
        self.state = bytearray(self.pages)
        anchors = range(self.pages + self.levels + self.slabs)
        self.prev = array("i", anchors)
        self.next = array("i", anchors)
        self.slab_free = array("i", bytes(4 * self.slabs))
        buckets = range(self.slabs + self.slab_pages + 2)
        self.slab_prev = array("i", buckets)
        self.slab_next = array("i", buckets)
        self.bucket_mask = 0
        self.free_count = 0
        self.cached_count = 0
        for slab in range(self.slabs):
            self._insert_slab(slab)
        for page in range(self.pages):
            count = refs.get(page, 0)
            self.refs[page] = count
            if count:
                self.state[page] = HELD
                self._back(page // self.slab_pages)
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
        """Cached pages in the order in which they would be taken."""
        for level in range(self.levels):
            yield from self._walk(self.cached_anchor(level))

    def empty_slabs(self) -> list[int]:
        """Backed slabs all of whose pages are free, longest empty first."""
        anchor = self.slabs + self.slab_pages
        slabs = []
        slab = self.slab_prev[anchor]
        while slab != anchor:
            slabs.append(slab)
            slab = self.slab_prev[slab]
        return slabs

    def next_unbacked(self) -> int | None:
        """The slab that allocation would come to first among those that are not backed."""
        anchor = self.slabs + self.slab_pages + 1
        slab = self.slab_next[anchor]
        return None if slab == anchor else slab

    def set_backed(self, slab: int, backed: bool) -> None:
        """Note that an empty slab was given memory, or that its memory went away."""
        if self.slab_free[slab] < self.slab_size(slab):
            raise ValueError(f"slab {slab} is in use")
        self._unlink_slab(slab)
        if backed:
            self._back(slab)
            self.empty_since[slab] = self.now_seconds
        elif self.backed[slab]:
            self.backed[slab] = False
            self.backed_pages -= self.slab_size(slab)
        self._insert_slab(slab)

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
            self._change_slab(slab, -count)
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

    def keep(self, pages: Sequence[int], level: int = 0) -> None:
        """Remove the last holder of each page; cached in a level, the first least recently used."""
        refs, state, before, following = self.refs, self.state, self.prev, self.next
        idle_since, now = self.idle_since, self.now_seconds
        anchor = self.cached_anchor(level)
        last = before[anchor]
        for page in pages:
            if refs[page] != 1:
                raise ValueError(f"page {page} has {refs[page]} holders and cannot be kept")
            refs[page] = 0
            state[page] = CACHED
            idle_since[page] = now
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
        self._change_slab(page // self.slab_pages, 1)

    def _change_slab(self, slab: int, change: int) -> None:
        self._unlink_slab(slab)
        if change < 0:
            self._back(slab)
        else:
            self.empty_since[slab] = self.now_seconds
        self.slab_free[slab] += change
        self._insert_slab(slab)

    def _back(self, slab: int) -> None:
        if not self.backed[slab]:
            self.backed[slab] = True
            self.backed_pages += self.slab_size(slab)

    def bucket_of(self, slab: int) -> int:
        """Where a slab stands in the order of allocation, by its free pages and its backing."""
        free_pages = self.slab_free[slab]
        if free_pages < self.slab_size(slab):
            return free_pages
        return self.slab_pages if self.backed[slab] else self.slab_pages + 1

    def _unlink_slab(self, slab: int) -> None:
        before, following = self.slab_prev[slab], self.slab_next[slab]
        self.slab_next[before] = following
        self.slab_prev[following] = before
        if before == following:  # only the anchor is left
            self.bucket_mask &= ~(1 << (before - self.slabs))

    def _insert_slab(self, slab: int) -> None:
        bucket = self.bucket_of(slab)
        anchor = self.slabs + bucket
        # The latest emptied slab is used first, so that the others can grow old.
        before = anchor if bucket == self.slab_pages else self.slab_prev[anchor]
        following = self.slab_next[before]
        self.slab_prev[slab] = before
        self.slab_next[slab] = following
        self.slab_next[before] = slab
        self.slab_prev[following] = slab
        self.bucket_mask |= 1 << bucket
