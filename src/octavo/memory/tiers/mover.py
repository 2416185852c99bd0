"""Moves pages between memory and a tier, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.clock import Clock, monotonic
from octavo.memory.tiers.tier import Tier

SETTLE_PAGES = 8
"""So many stores are settled together."""
_FIRST_BYTES_PER_SECOND = 500e6
_SMOOTHING = 0.1
_STUCK_SECONDS = 30.0
"""No disk takes so long for a page; one that does may never answer."""
_LAST_SECONDS = 10.0
"""So long is waited at the end for what the thread is doing."""

logger = logging.getLogger("octavo")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A page that came in: its load, and its bytes, None if the load ends here for a miss."""

    number: int
    content: memoryview | None


@dataclass(frozen=True, slots=True)
class _Store:
    """A page on its way down: the keys of its prefix from the first page to this one, its bytes."""

    chain: Sequence[bytes]
    content: bytes


class PageMover:
    """Loads and stores in the order of asking, loads first.

    Pages that were loaded wait here until they are taken; a load goes on only while there is room
    for `staged_pages` of them. Stores wait in a queue of the same length. All calls but `work` come
    from one thread. Without `start` nothing moves by itself, and whoever calls `work` moves.
    """

    def __init__(
        self, tier: Tier, page_bytes: int, *, staged_pages: int = 16, clock: Clock = monotonic
    ):
        self.tier = tier
        self.page_bytes = page_bytes
        self.load_seconds = self._first_seconds = page_bytes / _FIRST_BYTES_PER_SECOND
        """What a page takes to load, learned."""
        self._clock = clock
        self._staged_pages = staged_pages
        self._condition = threading.Condition()
        self._loads: dict[int, deque[bytes]] = {}
        self._loaded: deque[Loaded] = deque()
        self._stores: deque[_Store] = deque()
        self._storing: set[bytes] = set()
        self._unsettled = 0
        self._working_since: float | None = None
        self._ends = False
        self._thread: threading.Thread | None = None

    @property
    def store_room(self) -> int:
        """How many more pages `store` takes."""
        return self._staged_pages - len(self._storing)

    @property
    def is_stuck(self) -> bool:
        """The tier hangs: nothing is to be expected of it as long as that lasts."""
        since = self._working_since
        return since is not None and self._clock() - since > _STUCK_SECONDS

    @property
    def waiting_loads(self) -> int:
        """Pages that are asked for and not loaded."""
        with self._condition:
            return sum(map(len, self._loads.values()))

    def doubt(self) -> None:
        """Loads were left out as too slow: believe in that a little less, so that it is tried."""
        doubted = self._first_seconds + (1 - _SMOOTHING) * (self.load_seconds - self._first_seconds)
        self.load_seconds = min(doubted, self.load_seconds)

    def start(self) -> None:
        """Start the thread; `close` ends it."""
        self._thread = threading.Thread(target=self._run, name="octavo pages", daemon=True)
        self._thread.start()

    def load(self, number: int, keys: Sequence[bytes]) -> None:
        """Load the pages of `keys` in order, up to the first miss."""
        with self._condition:
            self._loads[number] = deque(keys)
            self._condition.notify_all()

    def cancel(self, number: int) -> None:
        """Load no more of these pages; those that are loaded already are dropped."""
        with self._condition:
            self._loads.pop(number, None)
            self._loaded = deque(each for each in self._loaded if each.number != number)
            self._condition.notify_all()

    def store(self, chain: Sequence[bytes], content: bytes) -> None:
        """Store the page of the last key of `chain` some time soon; there must be `store_room`.

        The chain is the page's prefix from its first page on, which is to stay longer than it.
        """
        with self._condition:
            self._storing.add(chain[-1])
            self._stores.append(_Store(chain, content))
            self._condition.notify_all()

    def is_storing(self, key: bytes) -> bool:
        return key in self._storing

    def take(self, most: int) -> list[Loaded]:
        """Up to `most` pages that came in, in order."""
        with self._condition:
            taken = [self._loaded.popleft() for _ in range(min(most, len(self._loaded)))]
            if taken:
                self._condition.notify_all()
        return taken

    def wait(self, seconds: float) -> None:
        """Wait until a page has come in, but not longer."""
        with self._condition:
            self._condition.wait_for(lambda: self._loaded, seconds)

    def wait_for_room(self, seconds: float) -> bool:
        """Wait until there is room for a store; False if it took too long."""
        with self._condition:
            return self._condition.wait_for(lambda: self.store_room > 0, seconds)

    def drain(self, seconds: float) -> bool:
        """Wait until everything is stored and settled; False if it took too long."""
        with self._condition:
            return self._condition.wait_for(
                lambda: not (self._storing or self._unsettled or self._working_since is not None),
                seconds,
            )

    def close(self) -> None:
        """End the thread after what it is doing, and close the tier; safe to call twice.

        What still waits to be stored is not. A thread that hangs is left to itself, and the tier
        open.
        """
        with self._condition:
            self._ends = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)
            if self._thread.is_alive():
                logger.warning("the disk with the cached pages does not answer; it is left alone")
                return
            self._thread = None
        self.tier.close()

    def work(self) -> bool:
        """Do one piece of work, if there is any."""
        with self._condition:
            number, load_key = self._next_load()
            store = None
            if load_key is None:
                store = self._stores.popleft() if self._stores else None
                if store is None and not self._unsettled:
                    return False
            self._working_since = self._clock()
        try:
            if load_key is not None:
                self._load(number, load_key)
            elif store is not None:
                self._store(store)
            else:
                self._settle()
        finally:
            with self._condition:
                self._working_since = None
                self._condition.notify_all()
        return True

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._ends or self._has_work())
                if self._ends:
                    return
            self.work()

    def _has_work(self) -> bool:
        return bool(self._stores or self._unsettled or self._next_load()[1] is not None)

    def _next_load(self) -> tuple[int, bytes | None]:
        if len(self._loaded) < self._staged_pages:
            for number, keys in self._loads.items():
                if keys:
                    return number, keys[0]
        return 0, None

    def _load(self, number: int, key: bytes) -> None:
        started = self._clock()
        content: memoryview | None = None
        try:
            page = memoryview(bytearray(self.page_bytes))
            content = page if self.tier.load(key, page) else None
        except Exception:
            # A defect here must cost time only, as whatever is not loaded is computed.
            logger.exception("a page could not be loaded")
        seconds = self._clock() - started
        with self._condition:
            if content is not None:
                self.load_seconds += _SMOOTHING * (seconds - self.load_seconds)
            keys = self._loads.get(number)
            if keys is None:
                return
            keys.popleft()
            self._loaded.append(Loaded(number, content))
            if not keys or content is None:
                del self._loads[number]
        if content is None:
            # Of no use without what is missing, and written again once that is computed.
            for lost in keys:
                self.tier.drop(lost)

    def _store(self, store: _Store) -> None:
        key = store.chain[-1]
        try:
            if self.tier.store(key, memoryview(store.content)):
                self.tier.touch(reversed(store.chain))
        except Exception:
            logger.exception("a page could not be stored")
        with self._condition:
            self._storing.discard(key)
            self._unsettled += 1
            settles = self._unsettled >= SETTLE_PAGES
        if settles:
            self._settle()

    def _settle(self) -> None:
        try:
            self.tier.settle()
        except Exception:
            logger.exception("stored pages could not be settled")
        with self._condition:
            self._unsettled = 0
