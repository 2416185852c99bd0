"""Which slot of a tier holds the page of which key, least recently used first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable


class SlotIndex:
    """Bookkeeping of a tier of equal slots 0 … `slots` - 1; the bytes lie elsewhere.

    A key has one slot, a slot at most one key. Every method may be called from any thread.
    """

    def __init__(self, slots: int = 0):
        self._lock = threading.Lock()
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._keys: list[bytes | None] = []
        self._free: list[int] = []
        self.grow(slots)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> int:
        """Slots that exist, with a page or without."""
        return len(self._keys)

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    def grow(self, count: int) -> None:
        """Add empty slots at the end; lower ones are filled first."""
        with self._lock:
            first = len(self._keys)
            self._keys += [None] * count
            self._free[:0] = range(first + count - 1, first - 1, -1)

    def find(self, key: bytes) -> int | None:
        with self._lock:
            return self._slots.get(key)

    def holds(self, key: bytes) -> bool:
        return key in self._slots

    def entries(self) -> list[tuple[bytes, int]]:
        """Every key with its slot, least recently used first."""
        with self._lock:
            return list(self._slots.items())

    def touch(self, keys: Iterable[bytes]) -> None:
        """Make keys the most recently used ones, the last of them most; unknown ones are passed."""
        with self._lock:
            for key in keys:
                if key in self._slots:
                    self._slots.move_to_end(key)

    def take(self) -> tuple[int, bytes | None] | None:
        """An empty slot, else that of the least recently used key, which is forgotten and named.

        None if there are no slots at all. Until `put` or `give_back` it belongs to the caller.
        """
        with self._lock:
            if self._free:
                return self._free.pop(), None
            if not self._slots:
                return None
            key, slot = self._slots.popitem(last=False)
            self._keys[slot] = None
            return slot, key

    def give_back(self, slot: int) -> None:
        """A slot that was taken stays empty."""
        with self._lock:
            self._free.append(slot)

    def put(self, key: bytes, slot: int) -> None:
        """A slot that was taken has the page of `key` now, which is not there yet."""
        with self._lock:
            self._slots[key] = slot
            self._keys[slot] = key

    def claim(self, key: bytes, slot: int) -> None:
        """As `put`, when an index is read again: whatever it contradicts is forgotten.

        Slots are left out of the list of empty ones until `collect_free`.
        """
        with self._lock:
            before = self._keys[slot]
            if before is not None:
                del self._slots[before]
            elsewhere = self._slots.pop(key, None)
            if elsewhere is not None:
                self._keys[elsewhere] = None
            self._slots[key] = slot
            self._keys[slot] = key

    def collect_free(self) -> None:
        """Find the empty slots again after `claim` and `drop`."""
        with self._lock:
            last = len(self._keys) - 1
            self._free = [slot for slot in range(last, -1, -1) if self._keys[slot] is None]

    def drop(self, key: bytes) -> int | None:
        """Forget a key; its slot, which is empty now, None if it is unknown."""
        with self._lock:
            slot = self._slots.pop(key, None)
            if slot is not None:
                self._keys[slot] = None
                self._free.append(slot)
            return slot
