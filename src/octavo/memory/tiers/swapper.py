"""Decides which pages go down to a tier and which come back up, between the steps of an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from octavo.core.clock import Clock, monotonic
from octavo.core.ids import RequestId
from octavo.memory import _pages
from octavo.memory.cache import PageCache
from octavo.memory.layout import TableLayout
from octavo.memory.tiers.mover import PageMover
from octavo.memory.tiers.tier import look_up

_DEPTH_PAGES = 64
"""Above the threshold so many of the coldest pages are kept written."""
_SCAN_PAGES = 256
"""Pages that an idle engine looks at in one go."""
_MOST_IN_ONE_GO = 1 << 30

RecomputeSeconds = Callable[[int, int], float]
"""What computing tokens takes: (tokens before them, tokens) -> seconds."""


class PageBytes(Protocol):
    """The bytes of the pages of the KV cache, by page id; used between steps only."""

    page_bytes: int

    def read(self, page: int) -> bytes: ...

    def write(self, page: int, content: memoryview) -> None: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """Keys of pages that a request could use, all of them together.

    The first `chain` continue each other, each full pages of all tokens before; the others stand
    for themselves.
    """

    keys: Sequence[bytes]
    chain: int

    def parent(self, place: int) -> bytes | None:
        """The key that the one at `place` continues."""
        return self.keys[place - 1] if 0 < place < self.chain else None


@dataclass(slots=True)
class SwapCounters:
    """What a swapper has decided: loads begun, given up for time, and not begun as too slow.

    `loaded_pages` came in and were of use, `written_pages` were handed to the tier.
    """

    loads: int = 0
    loads_timed_out: int = 0
    loads_too_slow: int = 0
    loaded_pages: int = 0
    written_pages: int = 0


@dataclass(slots=True)
class _Load:
    """Pages `at` to `end` of what somebody wanted on their way in, and who waits for them."""

    number: int
    wanted: Wanted
    at: int
    end: int
    deadline_seconds: float
    waiting: dict[RequestId, Wanted] = field(default_factory=dict)


class Swapper:
    """Keeps the coldest cached pages of a `PageCache` written down, and fetches what is wanted.

    A page that comes in becomes an ordinary cached page, so that whoever looks it up finds it;
    between two steps nothing here holds any page. Bytes are copied when no step runs, at most
    `step_bytes` of them while requests wait for the next one. Not thread-safe.
    """

    def __init__(
        self,
        cache: PageCache,
        pages: PageBytes,
        mover: PageMover,
        recompute_seconds: RecomputeSeconds,
        *,
        page_tokens: int,
        threshold: float,
        timeout_seconds: float,
        step_bytes: int,
        drain_seconds: float,
        clock: Clock = monotonic,
    ):
        self.counters = SwapCounters()
        self.mover = mover
        self._cache = cache
        self._pages = pages
        self._recompute_seconds = recompute_seconds
        self._page_tokens = page_tokens
        self._threshold = threshold
        self._timeout_seconds = timeout_seconds
        self._step_pages = max(step_bytes // pages.page_bytes, 1)
        self._drain_seconds = drain_seconds
        self._clock = clock
        self._loads: dict[int, _Load] = {}
        self._numbers = 0
        self._idle_pages: list[int] | None = None
        self._left_pages = 0
        """How many more may be copied before the next `poll`."""

    @property
    def is_loading(self) -> bool:
        return bool(self._loads)

    def look_up(self, keys: Sequence[bytes]) -> list[int]:
        """The longest run of `keys` with pages here or in the tier: a number for each."""
        pages = self._cache.look_up(keys)
        while len(pages) < len(keys) and self.mover.tier.holds(keys[len(pages)]):
            pages.append(len(pages))
        return pages

    def want(self, name: RequestId, keys: Sequence[bytes], layout: TableLayout) -> bool:
        """A request could use the pages of `keys`, which continue each other, and their windows.

        True if it should wait until `poll` names it.
        """
        self._idle_pages = None
        if not layout.windowed:
            return self._want(name, Wanted(keys, len(keys)))
        blocks = len(layout.look_up(self, keys)) // layout.groups
        windows = layout.window_keys(keys, blocks)
        return self._want(name, Wanted([*keys[:blocks], *windows], blocks))

    def awaits(self, name: RequestId) -> bool:
        """Whether a request waits for pages that come in."""
        return any(name in load.waiting for load in self._loads.values())

    def forget(self, name: RequestId) -> None:
        """A request has ended; what only it waited for is not loaded any more."""
        for load in list(self._loads.values()):
            if load.waiting.pop(name, None) is not None and not load.waiting:
                self._drop(load)

    def poll(self, *, is_busy: bool) -> list[RequestId]:
        """Take what came in, write down what is cold; who need not wait any longer.

        With `is_busy` requests wait for the next step, and little is moved.
        """
        before = self.counters.loaded_pages
        ended = self._take_in(self._step_pages if is_busy else _MOST_IN_ONE_GO)
        now = self._clock()
        for load in list(self._loads.values()):
            if now >= load.deadline_seconds:
                self.counters.loads_timed_out += 1
                self._drop(load)
                ended += load.waiting
        self._left_pages = self._step_pages - (self.counters.loaded_pages - before)
        self._write_cold()
        return ended

    def write_down(self, page: int) -> bool:
        """Write a cached page that is to be given up; False if it should stay a little longer."""
        if self._is_kept(page) or not self.mover.tier.takes_pages or self.mover.is_stuck:
            return True
        if min(self.mover.store_room, self._left_pages) < 1:
            return False
        self._write(page)
        return True

    def wait(self, seconds: float) -> None:
        """Nothing else is to be done: wait for a page, but not longer."""
        self.mover.wait(seconds)

    def tend(self) -> bool:
        """Write down what is cached while there is no work; False if all of it is written.

        False also if the tier hangs: an idle engine must not wait for it.
        """
        if self.mover.is_stuck:
            return False
        if self._idle_pages is None:
            self._idle_pages = self._newest_pages()
        for _ in range(min(_SCAN_PAGES, len(self._idle_pages))):
            if self.mover.store_room < 1:
                break
            # What was used last is the likeliest to be asked for again; parents go first.
            page = self._idle_pages.pop()
            # Meanwhile it may have been given up, to return memory to the system.
            if self._cache.pool.state[page] == _pages.CACHED and not self._is_kept(page):
                self._write(page)
        return bool(self._idle_pages)

    def close(self) -> None:
        """Write down all that is cached, as far as the time allows; end mover and tier."""
        for load in list(self._loads.values()):
            self._drop(load)
        if not self.mover.is_stuck:
            self._drain()
        self.mover.close()

    # Up

    def _want(self, name: RequestId, wanted: Wanted) -> bool:
        keys = wanted.keys
        present = self._cache.look_up(keys)
        start = len(present)
        end = start + look_up(self.mover.tier, keys[start:])
        if end == start or self.mover.is_stuck:
            return False
        # What is here must not be evicted while the rest comes: used last from now on.
        self._cache.share(present)
        self._cache.release(present)
        for load in self._loads.values():
            if load.wanted.keys[load.at : load.at + 1] == keys[start : start + 1]:
                load.waiting[name] = wanted
                return True
        self.mover.tier.touch(reversed(keys[:end]))
        pages = end - start
        seconds = (pages + self.mover.waiting_loads) * self.mover.load_seconds
        if seconds >= self._recompute(wanted, start, end):
            self.counters.loads_too_slow += 1
            self.mover.doubt()
            return False
        self._numbers += 1
        deadline = self._clock() + self._timeout_seconds
        load = _Load(self._numbers, wanted, start, end, deadline, {name: wanted})
        self._loads[load.number] = load
        self.counters.loads += 1
        self.mover.load(load.number, keys[start:end])
        return True

    def _recompute(self, wanted: Wanted, start: int, end: int) -> float:
        """Seconds to compute what pages `start` to `end` would save.

        Without pages that stand for themselves, those of the chain are of no use either.
        """
        past = start if start < wanted.chain else 0
        last = end if end < wanted.chain else wanted.chain
        return self._recompute_seconds(past * self._page_tokens, (last - past) * self._page_tokens)

    def _take_in(self, most_pages: int) -> list[RequestId]:
        arrived: dict[int, list[memoryview | None]] = {}
        for loaded in self.mover.take(most_pages):
            arrived.setdefault(loaded.number, []).append(loaded.content)
        ended: list[RequestId] = []
        for number, contents in arrived.items():
            load = self._loads.get(number)
            if load is not None and not self._insert(load, contents):
                self._drop(load)
                ended += self._after(load)
        return ended

    def _insert(self, load: _Load, contents: list[memoryview | None]) -> bool:
        """Put pages into the cache; False if the load is over, at its end or before."""
        cache, keys = self._cache, load.wanted.keys
        table = cache.look_up(keys[: load.at])
        if len(table) < load.at:
            return False
        cache.share(table)
        try:
            for content in contents:
                if content is None:
                    return False
                found = cache.look_up(keys[load.at : load.at + 1])
                if found:
                    cache.share(found)
                    table += found
                elif cache.pool.held_count == cache.pool.pages:
                    return False
                else:
                    page = cache.allocate()
                    table.append(page)
                    self._pages.write(page, content)
                    cache.publish(page, keys[load.at], load.wanted.parent(load.at))
                    self.counters.loaded_pages += 1
                load.at += 1
            return load.at < load.end
        finally:
            # Whole and from its end, which leaves children older than their parents.
            cache.release(table)

    def _after(self, load: _Load) -> list[RequestId]:
        """Who of a load that is over goes on; those who can use more wait for that."""
        if load.at < load.end:
            return list(load.waiting)
        return [name for name, wanted in load.waiting.items() if not self._want(name, wanted)]

    def _drop(self, load: _Load) -> None:
        del self._loads[load.number]
        self.mover.cancel(load.number)

    # Down

    def _is_kept(self, page: int) -> bool:
        key = self._cache.index.key_of(page)
        return self.mover.is_storing(key) or self.mover.tier.holds(key)

    def _write_cold(self) -> None:
        """Above the threshold, write some of the pages that would be evicted next."""
        pool = self._cache.pool
        room = min(self.mover.store_room, self._left_pages)
        if room < 1 or not self.mover.tier.takes_pages:
            return
        if pool.pages - pool.free_count <= self._threshold * pool.pages:
            return
        for page in pool.cached_pages(_DEPTH_PAGES):
            if not self._is_kept(page):
                self._write(page)
                room -= 1
                if room == 0:
                    return

    def _drain(self) -> None:
        deadline = self._clock() + self._drain_seconds
        for page in reversed(self._newest_pages()):
            if not self._is_kept(page):
                if not self.mover.wait_for_room(max(deadline - self._clock(), 0.0)):
                    break
                self._write(page)
        self.mover.drain(max(deadline - self._clock(), 0.0))

    def _newest_pages(self) -> list[int]:
        """As many cached pages as the tier can hold, the last of them used last."""
        if not self.mover.tier.takes_pages:
            return []
        pages = self._cache.pool.cached_pages()
        return pages[-self.mover.tier.capacity().most_pages :]

    def _write(self, page: int) -> None:
        chain = self._cache.index.chain_of(page)
        self.mover.store(chain, self._pages.read(page))
        self.counters.written_pages += 1
        self._left_pages -= 1
