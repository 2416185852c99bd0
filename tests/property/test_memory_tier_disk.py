"""The disk tier against a dictionary, with restarts, kills, and faults of the disk."""

from __future__ import annotations

import errno
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from octavo.memory.tiers.check import check_folder
from octavo.memory.tiers.disk import DiskTier
from octavo.memory.tiers.files import Files
from octavo.memory.tiers.folder import folder_of, folders, used_bytes

PAGE_BYTES = 3000
MOST_BYTES = 160_000
FINGERPRINT = bytes(32)

keys = st.integers(0, 30)


def content(key: int) -> bytes:
    return random.Random(key).randbytes(PAGE_BYTES)


class SwitchedFiles(Files):
    """Fails while `broken`: every write, sync and allocation."""

    broken = False

    def _meet(self) -> None:
        if self.broken:
            raise OSError(errno.EIO, "injected")

    def allocate(self, fd: int, size_bytes: int) -> None:
        self._meet()
        super().allocate(fd, size_bytes)

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._meet()
        return super().write(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        self._meet()
        super().sync(fd)


class DiskTierMachine(RuleBasedStateMachine):
    """A page is found exactly if the tier holds it, and then it is the one that was stored."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.files = SwitchedFiles()
        self.tier = self._opened()
        self.stored: set[int] = set()

    def _opened(self) -> DiskTier:
        return DiskTier(
            self.root,
            FINGERPRINT,
            page_bytes=PAGE_BYTES,
            most_bytes=MOST_BYTES,
            files=self.files,
        )

    @rule(key=keys)
    def store(self, key: int) -> None:
        before = self.tier.counters.evicted
        is_new = not self.tier.holds(key.to_bytes(32, "big"))
        if self.tier.store(key.to_bytes(32, "big"), memoryview(content(key))):
            self.stored.add(key)
            assert self.tier.holds(key.to_bytes(32, "big"))
        else:
            assert self.files.broken or not self.tier.takes_pages
        assert self.tier.counters.evicted - before <= is_new

    @rule(key=keys)
    def load(self, key: int) -> None:
        page = memoryview(bytearray(PAGE_BYTES))
        held = self.tier.holds(key.to_bytes(32, "big"))
        found = self.tier.load(key.to_bytes(32, "big"), page)
        assert found == held
        if found:
            assert key in self.stored
            assert page == content(key)

    @rule(key=keys)
    def drop(self, key: int) -> None:
        self.tier.drop(key.to_bytes(32, "big"))
        assert not self.tier.holds(key.to_bytes(32, "big"))

    @rule(numbers=st.lists(keys, max_size=6))
    def touch(self, numbers: list[int]) -> None:
        self.tier.touch(number.to_bytes(32, "big") for number in numbers)

    @rule()
    def settle(self) -> None:
        self.tier.settle()

    @rule(broken=st.booleans())
    def turn(self, broken: bool) -> None:
        self.files.broken = broken

    @rule()
    def restart(self) -> None:
        held = self._held()
        self.tier.close()
        self.tier = self._opened()
        if not self.files.broken:
            assert self._held() == held

    @rule()
    def die(self) -> None:
        """What a kill leaves: a copy of the files as they are at this moment."""
        beside = Path(tempfile.mkdtemp())
        shutil.copytree(self.root, beside, dirs_exist_ok=True)
        held = self._held()
        self.tier.close()
        shutil.rmtree(self.root)
        self.root = beside
        self.tier = self._opened()
        # A key whose removal could not be noted may be back; its page is what it was, or no page.
        assert held <= self._held()

    @invariant()
    def limits_hold(self) -> None:
        assert sum(map(used_bytes, folders(self.root))) <= MOST_BYTES
        capacity = self.tier.capacity()
        assert capacity.pages <= capacity.most_pages

    def _held(self) -> set[int]:
        return {number for number in range(31) if self.tier.holds(number.to_bytes(32, "big"))}

    def teardown(self) -> None:
        self.files.broken = False
        held = len(self._held())
        self.tier.close()
        checked = check_folder(folder_of(self.root, FINGERPRINT))
        assert (checked.sound, checked.damaged) == (held, 0)
        shutil.rmtree(self.root)


DiskTierMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestDiskTier = DiskTierMachine.TestCase
