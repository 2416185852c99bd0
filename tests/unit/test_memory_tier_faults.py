"""The disk tier on disks that fail and with files that were damaged: a page is a miss, at worst."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from octavo.memory.tiers.files import Files
from octavo.memory.tiers.folder import INDEX_NAME, folder_of
from octavo.memory.tiers.index_log import ENTRY_BYTES, read_index
from tier_harness import FINGERPRINT, key, load, open_disk, store


class Faults(Files):
    """Fails on demand: an errno, or a number of bytes that a call moves at most."""

    def __init__(self) -> None:
        self.fail: dict[str, int] = {}
        self.short: dict[str, int] = {}

    def _meet(self, name: str) -> None:
        if name in self.fail:
            raise OSError(self.fail[name], os.strerror(self.fail[name]))

    def _cut(self, name: str, buffers: Sequence[memoryview]) -> list[memoryview]:
        whole = b"".join(bytes(each) for each in buffers)
        return [memoryview(whole)[: self.short.get(name, len(whole))]]

    def allocate(self, fd: int, size_bytes: int) -> None:
        self._meet("allocate")
        super().allocate(fd, size_bytes)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._meet("read")
        count = super().read(fd, buffers, offset)
        return min(count, self.short.get("read", count))

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._meet("write")
        return super().write(fd, self._cut("write", buffers), offset)

    def sync(self, fd: int) -> None:
        self._meet("sync")
        super().sync(fd)


@pytest.fixture
def faults() -> Faults:
    return Faults()


def test_disk_that_is_full_from_the_start(tmp_path: Path, faults: Faults) -> None:
    faults.fail = {"allocate": errno.ENOSPC}
    tier = open_disk(tmp_path, files=faults)
    assert store(tier, range(3)) == [False] * 3
    assert tier.counters.failed == 1
    assert not tier.takes_pages
    assert not load(tier, 0)
    tier.close()


def test_disk_that_is_full_at_a_restart_is_read(tmp_path: Path, faults: Faults) -> None:
    tier = open_disk(tmp_path)
    store(tier, range(3))
    tier.close()
    flip(folder_of(tmp_path, FINGERPRINT) / INDEX_NAME, 8 * 2 * ENTRY_BYTES)
    faults.fail = {"write": errno.ENOSPC}
    again = open_disk(tmp_path, files=faults)
    assert [load(again, number) for number in range(3)] == [True, False, True]
    assert not again.takes_pages
    again.close()


def test_disk_that_becomes_full_keeps_its_part(tmp_path: Path, faults: Faults) -> None:
    tier = open_disk(tmp_path, files=faults)
    store(tier, [0])
    faults.fail = {"allocate": errno.ENOSPC}
    assert all(store(tier, range(1, 60)))
    assert tier.counters.failed == 1
    assert load(tier, 59)
    tier.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_failed_writes_are_misses(tmp_path: Path, faults: Faults, error: int) -> None:
    tier = open_disk(tmp_path, files=faults)
    store(tier, range(3))
    faults.fail = {"write": error}
    assert store(tier, range(10, 13)) == [False] * 3
    assert tier.counters.failed == 3
    assert not load(tier, 10)
    assert all(load(tier, number) for number in range(3))
    faults.fail = {}
    assert store(tier, [10]) == [True]
    assert load(tier, 10)
    faults.fail = {"write": error}
    store(tier, range(100, 140))
    assert not tier.takes_pages
    tier.close()


def test_short_writes_are_misses(tmp_path: Path, faults: Faults) -> None:
    tier = open_disk(tmp_path, files=faults)
    store(tier, range(3))
    faults.short = {"write": 40}
    assert store(tier, [10]) == [False]
    faults.short = {}
    store(tier, [11])
    tier.close()
    again = open_disk(tmp_path)
    assert [load(again, number) for number in (0, 1, 2, 10, 11)] == [True, True, True, False, True]
    again.close()


@pytest.mark.parametrize("fault", ["error", "short"])
def test_failed_reads_are_misses(tmp_path: Path, faults: Faults, fault: str) -> None:
    tier = open_disk(tmp_path, files=faults)
    store(tier, range(3))
    if fault == "error":
        faults.fail = {"read": errno.EIO}
    else:
        faults.short = {"read": 100}
    assert not load(tier, 1)
    assert tier.counters.failed + tier.counters.damaged == 1
    faults.fail, faults.short = {}, {}
    assert not tier.holds(key(1))
    assert load(tier, 2)
    tier.close()


def test_failed_sync_is_counted(tmp_path: Path, faults: Faults) -> None:
    tier = open_disk(tmp_path, files=faults)
    store(tier, [1])
    faults.fail = {"sync": errno.EIO}
    tier.settle()
    assert tier.counters.failed == 1
    assert load(tier, 1)
    tier.close()


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def test_flipped_bits_are_misses(tmp_path: Path) -> None:
    rng = random.Random(5)
    for _ in range(60):
        tier = open_disk(tmp_path)
        store(tier, range(12))
        tier.close()
        names = sorted(folder_of(tmp_path, FINGERPRINT).glob("[is][ne][dg]*"))
        for _ in range(3):
            path = rng.choice(names)
            flip(path, rng.randrange(path.stat().st_size * 8))
        again = open_disk(tmp_path)
        found = [load(again, number) for number in range(12)]
        assert sum(found) + again.counters.damaged >= 12 or again.capacity().pages == 0
        again.close()


def test_damaged_index_entries_are_counted_and_lost_alone(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    store(tier, range(5))
    tier.close()
    index = folder_of(tmp_path, FINGERPRINT) / INDEX_NAME
    flip(index, 8 * (3 * ENTRY_BYTES + 10))
    with index.open("ab") as stream:
        stream.write(b"half an entry")
    again = open_disk(tmp_path)
    assert again.counters.damaged == 2
    assert sum(load(again, number) for number in range(5)) == 4
    again.close()
    assert read_index(index).is_sound


@pytest.mark.parametrize("content", [b"", b"x", b"y" * 5000, bytes(64)])
def test_foreign_index_is_no_index(tmp_path: Path, content: bytes) -> None:
    tier = open_disk(tmp_path)
    store(tier, range(5))
    tier.close()
    (folder_of(tmp_path, FINGERPRINT) / INDEX_NAME).write_bytes(content)
    again = open_disk(tmp_path)
    assert not any(load(again, number) for number in range(5))
    assert all(store(again, range(5)))
    assert all(load(again, number) for number in range(5))
    again.close()


def test_truncated_and_foreign_segments(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    store(tier, range(tier.capacity().most_pages))
    tier.close()
    own = folder_of(tmp_path, FINGERPRINT)
    first, second, *_ = sorted(own.glob("segment-*"))
    os.truncate(first, first.stat().st_size // 2)
    second.write_bytes(b"foreign" * 100_000)
    (own / "segment-999999.kv").mkdir()
    (own / "readme.txt").write_text("not Octavo's")
    again = open_disk(tmp_path)
    pages = again.capacity().pages
    found = sum(load(again, number) for number in range(again.capacity().most_pages))
    assert 0 < found < pages
    assert again.counters.damaged == pages - found
    assert (own / "readme.txt").exists()
    again.close()


def test_record_in_the_place_of_another_is_a_miss(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    store(tier, range(2))
    tier.close()
    (path,) = folder_of(tmp_path, FINGERPRINT).glob("segment-*")
    content = bytearray(path.read_bytes())
    slot = 8192
    content[:slot], content[slot : 2 * slot] = content[slot : 2 * slot], content[:slot]
    path.write_bytes(content)
    again = open_disk(tmp_path)
    assert not load(again, 0)
    assert not load(again, 1)
    assert again.counters.damaged == 2
    again.close()
