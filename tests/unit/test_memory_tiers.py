"""Tiers below the KV cache: bookkeeping, limits and survival."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from octavo.core.errors import CapacityError, SettingsError
from octavo.memory.tiers import folder as folders
from octavo.memory.tiers.disk import DiskTier, FolderInUse
from octavo.memory.tiers.files import Files
from octavo.memory.tiers.folder import INDEX_NAME, folder_of
from octavo.memory.tiers.host import HostTier
from octavo.memory.tiers.slots import SlotIndex
from octavo.memory.tiers.tier import Tier, look_up
from tier_harness import FINGERPRINT, MOST_BYTES, PAGE_BYTES, key, load, open_disk, store


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
