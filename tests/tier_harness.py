"""Pages with content that follows from a number, and tiers to put them into."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from octavo.memory.tiers.disk import DiskTier
from octavo.memory.tiers.files import Files
from octavo.memory.tiers.tier import Tier

PAGE_BYTES = 5000
FINGERPRINT = bytes(range(32))
MOST_BYTES = 400_000


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def page(number: int) -> memoryview:
    return memoryview(random.Random(number).randbytes(PAGE_BYTES))


def load(tier: Tier, number: int) -> bool:
    """Whether a page is there; if so, it must be the right one."""
    out = memoryview(bytearray(PAGE_BYTES))
    found = tier.load(key(number), out)
    if found:
        assert out == page(number)
    return found


def store(tier: Tier, numbers: Sequence[int]) -> list[bool]:
    return [tier.store(key(number), page(number)) for number in numbers]


def open_disk(root: Path, *, most_bytes: int = MOST_BYTES, files: Files | None = None) -> DiskTier:
    return DiskTier(root, FINGERPRINT, page_bytes=PAGE_BYTES, most_bytes=most_bytes, files=files)
