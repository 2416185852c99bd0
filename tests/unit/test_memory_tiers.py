"""Tiers below the KV cache: bookkeeping, limits, survival, and every kind of damage."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from octavo.core.errors import CapacityError, SettingsError
from octavo.memory.tiers import folder as folders
from octavo.memory.tiers.disk import DiskTier, FolderInUse
from octavo.memory.tiers.files import Files
from octavo.memory.tiers.folder import INDEX_NAME, folder_of
from octavo.memory.tiers.host import HostTier
from octavo.memory.tiers.index_log import ENTRY_BYTES, read_index
from octavo.memory.tiers.slots import SlotIndex
from octavo.memory.tiers.tier import Tier, look_up

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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTier]:
    tier = open_disk(tmp_path)
    yield tier
    tier.close()


class TestSlots:
    def test_least_recently_used_makes_way(self) -> None:
        index = SlotIndex(2)
        for number in range(2):
            taken = index.take()
            assert taken == (number, None)
            index.put(key(number), taken[0])
        index.touch([key(0), key(9)])
        assert index.take() == (1, key(1))
        assert index.find(key(1)) is None
        index.give_back(1)
        assert index.take() == (1, None)

    def test_no_slots_no_room(self) -> None:
        assert SlotIndex().take() is None

    def test_claims_contradict_what_was_before(self) -> None:
        index = SlotIndex(3)
        for number, slot in ((1, 0), (2, 0), (2, 1), (3, 2)):
            index.claim(key(number), slot)
        index.drop(key(3))
        index.collect_free()
        assert index.entries() == [(key(2), 1)]
        taken = [index.take(), index.take(), index.take()]
        assert taken == [(0, None), (2, None), (1, key(2))]


@pytest.fixture(params=["host", "disk", "host over disk"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tier]:
    most_bytes = 1_000_000
    if request.param == "host":
        yield HostTier(100, PAGE_BYTES)
        return
    below = open_disk(tmp_path, most_bytes=most_bytes)
    made: Tier = below if request.param == "disk" else HostTier(3, PAGE_BYTES, below=below)
    yield made
    made.close()


def test_every_tier_gives_back_what_it_took(tier: Tier) -> None:
    assert all(store(tier, range(10)))
    tier.settle()
    assert all(load(tier, number) for number in range(10))
    assert not load(tier, 10)
    assert look_up(tier, [key(number) for number in (3, 4, 99, 5)]) == 2
    tier.drop(key(4))
    assert not tier.holds(key(4))
    assert not load(tier, 4)
    assert tier.takes_pages


def test_host_sends_down_what_makes_way_and_the_rest_at_the_end(tmp_path: Path) -> None:
    host = HostTier(2, PAGE_BYTES, below=open_disk(tmp_path))
    store(host, range(5))
    assert host.counters.evicted == 3
    assert host.capacity().pages == 5
    host.close()
    again = open_disk(tmp_path)
    assert all(load(again, number) for number in range(5))
    again.close()


def test_disk_outlives_the_process_and_reads_only_its_index(tmp_path: Path) -> None:
    first = open_disk(tmp_path)
    store(first, range(20))
    first.close()

    class NoReads(Files):
        def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
            raise AssertionError("data were read")

    second = open_disk(tmp_path, files=NoReads())
    assert second.capacity().pages == 20
    assert all(second.holds(key(number)) for number in range(20))
    second.close()
    third = open_disk(tmp_path)
    assert all(load(third, number) for number in range(20))
    assert third.counters.damaged == 0
    third.close()


def test_order_of_use_outlives_the_process(tmp_path: Path) -> None:
    first = open_disk(tmp_path)
    most = first.capacity().most_pages
    store(first, range(most))
    first.touch([key(0)])
    first.close()
    second = open_disk(tmp_path)
    store(second, [1000])
    assert second.holds(key(0))
    assert not second.holds(key(1))
    second.close()


def test_limit_holds_whatever_is_stored(tmp_path: Path, disk: DiskTier) -> None:
    most = disk.capacity().most_pages
    for number in range(5 * most):
        assert store(disk, [number]) == [True]
        if number % 16 == 0:
            disk.settle()
            assert sum(map(folders.used_bytes, folders.folders(tmp_path))) <= MOST_BYTES
    assert disk.capacity().pages == most
    assert disk.counters.evicted == 4 * most
    assert all(load(disk, number) for number in range(4 * most, 5 * most))


def test_smaller_limit_after_a_restart(tmp_path: Path) -> None:
    first = open_disk(tmp_path, most_bytes=1_000_000)
    store(first, range(150))
    first.close()
    second = open_disk(tmp_path)
    assert folders.used_bytes(folder_of(tmp_path, FINGERPRINT)) <= MOST_BYTES
    assert 0 < second.capacity().pages < 150
    assert sum(load(second, number) for number in range(150)) == second.capacity().pages
    second.close()


def test_smaller_limit_counts_other_folders_at_once(tmp_path: Path) -> None:
    other = DiskTier(tmp_path, bytes(32), page_bytes=PAGE_BYTES, most_bytes=1_000_000)
    store(other, range(60))
    other.close()
    own = open_disk(tmp_path)
    assert sum(map(folders.used_bytes, folders.folders(tmp_path))) <= MOST_BYTES
    own.close()


def test_too_small_a_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match=r"memory\.swap_space: .*give at least \d+ bytes"):
        open_disk(tmp_path, most_bytes=70_000)


def test_another_page_size_begins_anew(tmp_path: Path) -> None:
    first = open_disk(tmp_path)
    store(first, range(4))
    first.close()
    other = DiskTier(tmp_path, FINGERPRINT, page_bytes=9000, most_bytes=MOST_BYTES)
    assert other.capacity().pages == 0
    assert other.store(key(1), memoryview(bytes(9000)))
    other.close()


def test_one_writer(tmp_path: Path, disk: DiskTier) -> None:
    with pytest.raises(FolderInUse):
        open_disk(tmp_path)
    disk.close()
    open_disk(tmp_path).close()


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SettingsError, match=r"memory\.swap_dir: .*cannot hold pages"):
        open_disk(tmp_path / "file")


def test_nobody_else_may_read(tmp_path: Path, disk: DiskTier) -> None:
    store(disk, [1])
    own = folder_of(tmp_path, FINGERPRINT)
    assert own.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in own.glob("segment-*"))


def test_folders_of_other_fingerprints_make_way(tmp_path: Path) -> None:
    def open_other(number: int) -> DiskTier:
        name = bytes([number]) * 32
        return DiskTier(tmp_path, name, page_bytes=PAGE_BYTES, most_bytes=MOST_BYTES)

    for number in (1, 2):
        other = open_other(number)
        store(other, range(10))
        other.close()
        # A clock that jumps decides only who makes way first.
        seconds = 2e10 if number == 1 else 0
        os.utime(folder_of(tmp_path, bytes([number]) * 32) / INDEX_NAME, (seconds, seconds))
    (tmp_path / "notes").mkdir()
    (tmp_path / ("f" * 64)).write_text("somebody's file")
    used = open_other(3)
    store(used, [1])
    own = open_disk(tmp_path)
    store(own, range(100))
    assert own.capacity().pages > 10
    assert sum(map(folders.used_bytes, folders.folders(tmp_path))) <= MOST_BYTES
    assert not folder_of(tmp_path, bytes([2]) * 32).exists()
    assert load(used, 1)
    assert (tmp_path / "notes").is_dir()
    assert (tmp_path / ("f" * 64)).read_text() == "somebody's file"
    for each in (used, own):
        each.close()


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
