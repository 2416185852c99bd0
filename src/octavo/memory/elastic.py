"""Memory of the KV cache goes back to the system when it is idle, and comes again in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from octavo.memory.cache import PageCache

HUGE_PAGE_BYTES = 2 << 20
_SLAB_BYTES = 2 * HUGE_PAGE_BYTES
_LEAST_AHEAD_BYTES = 4 << 20
"""Free memory that is kept backed while there is work: a stream fills it in a second or two."""
_MOST_AHEAD_BYTES = 64 << 20
"""The most where steps take more: one of a long prompt needs about as much."""
_GROWTH_SECONDS = 60.0
_POPULATE_BYTES = 16 << 20
_BUSY_DISCARD_BYTES = 128 << 20
"""Most that is given back between two steps that somebody waits for: a few milliseconds."""
_CHECK_SECONDS = 1.0
_UNSETTLED = -1
_CALM_SECONDS = 10.0
"""After pressure nothing is backed ahead for so long."""


class Backing(Protocol):
    """The memory behind pages and workspace; pages are named by their ids."""

    def discard_kv(self, first: int, count: int) -> int:
        """Give whole system pages inside these pages back; the bytes. Contents are lost."""
        ...

    def populate_kv(self, first: int, count: int) -> None:
        """Have memory put behind these pages without touching contents; any thread may call."""
        ...

    def discard_workspace(self) -> int:
        """Give back what only a running step needs; the bytes."""
        ...


class Pressure(Protocol):
    """Whether somebody else needs the memory."""

    def wanted_bytes(self) -> int:
        """Bytes that should be given back now; 0 without pressure."""
        ...


class NoPressure:
    """Where nobody says how scarce memory is."""

    def wanted_bytes(self) -> int:
        return 0


def slab_pages_for(page_bytes: int) -> int:
    """Pages of a slab: about two huge pages, so that few slabs are kept by a single page."""
    return max(-(-_SLAB_BYTES // page_bytes), 1)


class ElasticMemory:
    """Releases and backs the slabs of one cache, between the steps of one engine.

    Cached pages that were not used for `idle_seconds` are given up, and slabs that were empty for
    as long go back to the system (None: never). `is_eager`: empty slabs go back after every step.
    Under pressure they go at once, then the least recently used pages. While there is work, a
    thread backs free slabs ahead of their use, as much as steps take, and an idle page stays until
    `may_go` agrees, which may have something to do first. Not thread-safe.
    """

    def __init__(
        self,
        cache: PageCache,
        backing: Backing,
        *,
        page_bytes: int,
        idle_seconds: float | None,
        is_eager: bool = False,
        pressure: Pressure | None = None,
        may_go: Callable[[int], bool] = lambda page: True,
    ):
        self.released_bytes = 0
        self.pressure_releases = 0
        self._cache = cache
        self._backing = backing
        self._page_bytes = page_bytes
        self._slab_bytes = page_bytes * cache.pool.slab_pages
        self._idle_seconds = idle_seconds
        self._is_eager = is_eager
        self._pressure = pressure or NoPressure()
        self._may_go = may_go
        self._most_ahead_pages = min(_MOST_AHEAD_BYTES // page_bytes, cache.pool.pages // 8)
        self._least_ahead_pages = -(-_LEAST_AHEAD_BYTES // page_bytes)
        self._growth = _Growth()
        self._used_seconds: float | None = None
        self._checked_seconds = -math.inf
        self._pressed_seconds = -math.inf
        self._settled_pages = _UNSETTLED
        """Free backed pages when there was nothing more to do."""
        self._thread: ThreadPoolExecutor | None = None
        self._populating: Future[None] | None = None

    @property
    def backed_bytes(self) -> int:
        """Memory of slabs that are backed, or soon will be."""
        return self._cache.pool.backed_pages * self._page_bytes

    def begin(self, now_seconds: float) -> None:
        """A step begins."""
        self._used_seconds = now_seconds
        self._cache.pool.now_seconds = int(now_seconds)

    def end(self, now_seconds: float) -> None:
        """A step has ended: give back a little of what is idle or wanted, back what comes next."""
        pool = self._cache.pool
        is_due = self._is_check_due(now_seconds)
        if pool.backed_free_count == self._settled_pages and not is_due:
            return  # Most steps neither take pages nor give any back.
        if self._is_eager:
            self._discard(pool.empty_slabs())
        if is_due:
            if self._idle_seconds is not None:
                self._release_idle(int(now_seconds - self._idle_seconds))
            self._relieve(now_seconds, _BUSY_DISCARD_BYTES)
        self._growth.note(pool.backed_pages - pool.backed_free_count, now_seconds)
        if not self._is_eager and now_seconds - self._pressed_seconds >= _CALM_SECONDS:
            self._back_ahead()
        is_backing = self._populating is not None and not self._populating.done()
        self._settled_pages = _UNSETTLED if is_backing else pool.backed_free_count

    def seconds_to_rest(self, now_seconds: float) -> float | None:
        """How long an engine without work may sleep before `rest` is due; None: for ever."""
        if self._used_seconds is None or self._idle_seconds is None:
            return None
        return max(self._used_seconds + self._idle_seconds - now_seconds, 0.0)

    def rest(self, now_seconds: float) -> bool:
        """Without work: give back everything once it is due, or what is wanted; False if nothing.

        Cheap enough to be called whenever the engine wakes up.
        """
        before = self.released_bytes
        pool = self._cache.pool
        pool.now_seconds = int(now_seconds)
        if self.seconds_to_rest(now_seconds) == 0:
            self._used_seconds = None
            self._cache.give_up_oldest(pool.cached_count)
            self._discard(pool.empty_slabs())
            self.released_bytes += self._backing.discard_workspace()
        elif self._is_check_due(now_seconds):
            self._relieve(now_seconds, None)
        return self.released_bytes > before

    def close(self) -> None:
        """Wait for the thread; nothing may be backed after this."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _is_check_due(self, now_seconds: float) -> bool:
        if now_seconds - self._checked_seconds < _CHECK_SECONDS:
            return False
        self._checked_seconds = now_seconds
        return True

    def _release_idle(self, before_seconds: int) -> None:
        self._cache.give_up_idle(before_seconds, self._may_go)
        pool = self._cache.pool
        # What is backed ahead would only come back.
        most = max(pool.backed_free_count - self._ahead_pages(), 0) // pool.slab_pages
        slabs = pool.empty_slabs()[:most]
        idle = [slab for slab in slabs if pool.empty_since[slab] <= before_seconds]
        self._discard(idle, _BUSY_DISCARD_BYTES)

    def _relieve(self, now_seconds: float, most_bytes: int | None) -> None:
        """Give back what is wanted under pressure: empty slabs, then the oldest cached pages."""
        wanted = self._pressure.wanted_bytes()
        if wanted <= 0:
            return
        self.pressure_releases += 1
        self._pressed_seconds = now_seconds
        wanted = wanted if most_bytes is None else min(wanted, most_bytes)
        pool = self._cache.pool
        while wanted > 0:
            wanted -= self._discard(pool.empty_slabs(), wanted)
            if wanted > 0 and not self._cache.give_up_oldest(-(-wanted // self._page_bytes)):
                return

    def _discard(self, slabs: Sequence[int], most_bytes: int | None = None) -> int:
        """Give the memory of empty slabs back, in runs as long as possible; the bytes."""
        if not slabs:
            return 0
        if self._populating is not None:
            self._populating.result()
        pool = self._cache.pool
        if most_bytes is not None:
            slabs = slabs[: -(-most_bytes // self._slab_bytes)]
        released = 0
        for first, last in runs(sorted(slabs)):
            start, end = first * pool.slab_pages, min((last + 1) * pool.slab_pages, pool.pages)
            released += self._backing.discard_kv(start, end - start)
        for slab in slabs:
            pool.set_backed(slab, False)
        self.released_bytes += released
        return released

    def _ahead_pages(self) -> int:
        """Free pages to keep backed: as many as a step may need."""
        wanted = max(self._growth.most_pages, self._least_ahead_pages)
        return min(wanted, self._most_ahead_pages)

    def _back_ahead(self) -> None:
        pool, ahead_pages = self._cache.pool, self._ahead_pages()
        if pool.backed_free_count >= ahead_pages:
            return
        if self._populating is not None and not self._populating.done():
            return
        chosen: list[int] = []
        most = max(_POPULATE_BYTES // self._slab_bytes, 1)
        while len(chosen) < most and pool.backed_free_count < ahead_pages:
            slab = pool.next_unbacked()
            if slab is None:
                break
            pool.set_backed(slab, True)
            chosen.append(slab)
        if chosen:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-memory")
            self._populating = self._thread.submit(self._populate, chosen)

    def _populate(self, slabs: list[int]) -> None:
        pool = self._cache.pool
        for slab in slabs:
            self._backing.populate_kv(slab * pool.slab_pages, pool.slab_size(slab))


class _Growth:
    """The most pages that came into use in one step, of this minute or two."""

    def __init__(self) -> None:
        self._pages = 0
        self._began_seconds = -math.inf
        self._now_most = 0
        self._before_most = 0

    @property
    def most_pages(self) -> int:
        return max(self._now_most, self._before_most)

    def note(self, pages: int, now_seconds: float) -> None:
        """After a step: so many pages are in use."""
        age_seconds = now_seconds - self._began_seconds
        if age_seconds >= _GROWTH_SECONDS:
            self._before_most = self._now_most if age_seconds < 2 * _GROWTH_SECONDS else 0
            self._now_most = 0
            self._began_seconds = now_seconds
        self._now_most = max(self._now_most, pages - self._pages)
        self._pages = pages


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers, which rise."""
    first = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield numbers[first], numbers[place - 1]
            first = place
