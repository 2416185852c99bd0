"""What a plan would do to the pages, worked out beside them without touching them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from octavo.core.errors import CapacityError
from octavo.memory.cache import PageCache
from octavo.memory.pool import FREE


class PageDraft:
    """A scratch view of a `PageCache`; it costs what the plan changes, not the size of the pool.

    Committing the same shares, then releases, then takes on the cache is always possible. The
    cache must not change while a draft is used.
    """

    def __init__(self, cache: PageCache):
        self._cache = cache
        self._order = cache.pool.candidates()
        self._pool_refs = cache.pool.refs
        self._refs: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self._ranks = 0
        self._returned: list[tuple[int, int]] = []
        self._released: list[int] = []
        self._released_next = 0
        self.available = cache.pool.free_count + cache.pool.cached_count

    def take(self, count: int) -> list[int]:
        """The next pages: free, else cached, else released in this draft.

        Check `available` first; raises IndexError when nothing is left.
        """
        pages = []
        for _ in range(count):
            rank, page = self._next()
            self._taken[page] = rank
            pages.append(page)
        self.available -= count
        return pages

    def find_run(self, count: int) -> int | None:
        """First page of the first run of `count` free pages, None if there is none."""
        state, wanted = self._cache.pool.state, bytes([FREE]) * count
        start = state.find(wanted)
        while start >= 0:
            taken = [page for page in range(start, start + count) if page in self._taken]
            if not taken:
                return start
            start = state.find(wanted, taken[-1] + 1)
        return None

    def take_run(self, count: int) -> list[int]:
        """Take a run that `find_run` finds; a draft takes runs or single pages, not both.

        Raises:
            CapacityError: there is none.
        """
        start = self.find_run(count)
        if start is None:
            raise CapacityError(f"no run of {count} pages is free", field="pages")
        pages = list(range(start, start + count))
        self._taken.update(dict.fromkeys(pages, 0))
        self.available -= count
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        """Undo takes; the pages go first next time, in the order in which they came."""
        for page in pages:
            heapq.heappush(self._returned, (self._taken.pop(page), page))
        self.available += len(pages)

    @property
    def passed_over(self) -> list[int]:
        """Pages that were given back and not taken again.

        Pages behind them in the order of eviction may have been taken, so that their content must
        go as well: children before parents.
        """
        return [page for _, page in self._returned if self._refs_of(page) == 0]

    def release(self, table: Sequence[int]) -> None:
        """A table is given up, as `PageCache.release` does."""
        refs, pool_refs = self._refs, self._pool_refs
        freed = []
        for page in reversed(table):
            refs[page] = left = (refs[page] if page in refs else pool_refs[page]) - 1
            if not left:
                freed.append(page)
        self._released += freed
        self.available += len(freed)

    def look_up(self, keys: Sequence[bytes]) -> list[int]:
        """As `PageCache.look_up`, up to the first page that this draft has taken.

        It also ends before a page that was released here and has a twin: at the commit the twin
        inherits the key, and the page is free.
        """
        pages = self._cache.look_up(keys)
        if not self._taken and not self._refs:
            return pages
        for place, page in enumerate(pages):
            if page in self._taken or (
                self._refs.get(page) == 0 and self._cache.index.has_twin(page)
            ):
                return pages[:place]
        return pages

    def unheld(self, pages: Sequence[int]) -> int:
        """How many of `pages` would stop being available if they were shared."""
        refs, pool_refs = self._refs, self._pool_refs
        return sum([refs.get(page, pool_refs[page]) == 0 for page in pages])

    def share(self, pages: Sequence[int]) -> None:
        """Add a holder to each of `pages`, which `look_up` returned."""
        self.available -= self.unheld(pages)
        refs, pool_refs = self._refs, self._pool_refs
        for page in pages:
            refs[page] = refs.get(page, pool_refs[page]) + 1

    def _refs_of(self, page: int) -> int:
        return self._refs.get(page, self._pool_refs[page])

    def _next(self) -> tuple[int, int]:
        while self._returned:
            rank, page = heapq.heappop(self._returned)
            if self._refs_of(page) == 0:
                return rank, page
        self._ranks += 1
        for page in self._order:
            if self._refs_of(page) == 0:
                return self._ranks, page
        while True:
            page = self._released[self._released_next]
            self._released_next += 1
            if self._refs_of(page) == 0:
                return self._ranks, page
