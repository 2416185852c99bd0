"""What every tier below the KV cache offers, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class TierCounters:
    """What a tier has done since it was opened, in pages.

    `damaged` counts pages and index entries that were not what they should be, `failed` calls that
    the system refused or cut short (no space, input or output errors).
    """

    stored: int = 0
    loaded: int = 0
    evicted: int = 0
    damaged: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class TierCapacity:
    """How much a tier holds and may hold, with those below it.

    `bytes` are what it takes where its pages lie. A page that lies in two tiers counts twice.
    """

    pages: int
    most_pages: int
    bytes: int
    most_bytes: int

    def __add__(self, other: TierCapacity) -> TierCapacity:
        return TierCapacity(
            self.pages + other.pages,
            self.most_pages + other.most_pages,
            self.bytes + other.bytes,
            self.most_bytes + other.most_bytes,
        )


class Tier(Protocol):
    """Pages by the key of their content; a page that cannot be had whole is a miss.

    Nothing here raises for what a disk or a stranger did. `load`, `store`, `drop`, `settle` and
    `close` belong to one thread; the others may be called from another.
    """

    counters: TierCounters

    @property
    def takes_pages(self) -> bool:
        """False if `store` would be in vain, now and later."""
        ...

    def holds(self, key: bytes) -> bool:
        """Whether a page is said to be there; only `load` tells whether it can be read."""
        ...

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note the use of a chain of pages, given from its end, so that parents stay longest."""
        ...

    def load(self, key: bytes, page: memoryview) -> bool:
        """Fill `page`; False for a miss, which may leave anything in it."""
        ...

    def store(self, key: bytes, page: memoryview) -> bool:
        """Keep a copy, in the place of the least recently used page if there is no other."""
        ...

    def drop(self, key: bytes) -> None:
        """Forget a page."""
        ...

    def settle(self) -> None:
        """A run of stores has ended: finish what was put off, give up memory that it took."""
        ...

    def capacity(self) -> TierCapacity: ...

    def close(self) -> None:
        """Let go of memory and files; what outlives the process is complete then."""
        ...


def look_up(tier: Tier, keys: Iterable[bytes]) -> int:
    """How many of `keys`, from the first one on, a tier holds without a gap."""
    count = 0
    for key in keys:
        if not tier.holds(key):
            break
        count += 1
    return count
