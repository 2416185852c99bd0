"""A tier in the memory of this machine, for devices with memory of their own."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.memory.tiers.slots import SlotIndex
from octavo.memory.tiers.tier import Tier, TierCapacity, TierCounters


class HostTier:
    """A fixed number of pages in one buffer.

    With a tier `below`, a page that has to make way goes down, `load` falls through to what is
    there, and `close` sends the rest down first, parents before children.
    """

    def __init__(self, pages: int, page_bytes: int, *, below: Tier | None = None):
        self.counters = TierCounters()
        self._page_bytes = page_bytes
        self._below = below
        self._index = SlotIndex(pages)
        self._memory = memoryview(bytearray(pages * page_bytes))

    @property
    def takes_pages(self) -> bool:
        return self._index.slots > 0

    def holds(self, key: bytes) -> bool:
        return self._index.holds(key) or (self._below is not None and self._below.holds(key))

    def touch(self, keys: Iterable[bytes]) -> None:
        chain = list(keys)
        self._index.touch(chain)
        if self._below is not None:
            self._below.touch(chain)

    def load(self, key: bytes, page: memoryview) -> bool:
        slot = self._index.find(key)
        if slot is None:
            return self._below is not None and self._below.load(key, page)
        page[:] = self._slot(slot)
        self.counters.loaded += 1
        return True

    def store(self, key: bytes, page: memoryview) -> bool:
        if self._index.holds(key):
            return True
        taken = self._index.take()
        if taken is None:
            return False
        slot, evicted = taken
        if evicted is not None:
            self.counters.evicted += 1
            if self._below is not None and not self._below.holds(evicted):
                self._below.store(evicted, self._slot(slot))
        self._slot(slot)[:] = page
        self._index.put(key, slot)
        self.counters.stored += 1
        return True

    def drop(self, key: bytes) -> None:
        self._index.drop(key)
        if self._below is not None:
            self._below.drop(key)

    def settle(self) -> None:
        if self._below is not None:
            self._below.settle()

    def capacity(self) -> TierCapacity:
        pages, most = len(self._index), self._index.slots
        own = TierCapacity(pages, most, pages * self._page_bytes, most * self._page_bytes)
        return own if self._below is None else own + self._below.capacity()

    def close(self) -> None:
        if self._below is None:
            return
        for key, slot in reversed(self._index.entries()):
            if not self._below.holds(key):
                self._below.store(key, self._slot(slot))
        self._below.close()

    def _slot(self, slot: int) -> memoryview:
        return self._memory[slot * self._page_bytes : (slot + 1) * self._page_bytes]
