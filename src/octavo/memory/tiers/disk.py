"""The tier on a disk: segment files with an index, which the next process reads again."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from octavo.core.errors import CapacityError, SettingsError
from octavo.memory.tiers import records
from octavo.memory.tiers.files import Files
from octavo.memory.tiers.folder import INDEX_NAME, growing, lock_folder, make_folder, make_room
from octavo.memory.tiers.index_log import (
    DROPPED,
    STORED,
    IndexLog,
    Layout,
    index_bytes,
    read_index,
    replay,
)
from octavo.memory.tiers.segments import Segments, segment_path
from octavo.memory.tiers.slots import SlotIndex
from octavo.memory.tiers.tier import TierCapacity, TierCounters

_LEAST_SEGMENT_BYTES = 64 << 20
_MOST_SEGMENTS = 64
_LEAST_SEGMENTS = 4
_ABOUT_BYTES = 1 << 16
"""Room for the small files of a folder."""
_MOST_FAILURES = 16
"""After so many failed writes in a row a tier only reads."""

logger = logging.getLogger("octavo")


class FolderInUse(Exception):
    """Another process is the writer of this folder."""


class DiskTier:
    """Pages of one fingerprint in files below `root`, of at most `most_bytes` with all the others.

    A record is written before the index says so, and names its own key under a checksum. Whatever
    happens in between or afterwards (a kill, a full disk, a damaged bit), a page is found as it was
    stored or not at all. Opening reads the index only. Folders of other fingerprints make way when
    this one needs the room, those in use excepted.
    """

    def __init__(
        self,
        root: Path,
        fingerprint: bytes,
        *,
        page_bytes: int,
        most_bytes: int,
        about: Mapping[str, str] | None = None,
        files: Files | None = None,
    ):
        """Open the folder, or make it.

        Raises:
            FolderInUse: another process has it.
            CapacityError: `most_bytes` holds no page.
            SettingsError: the folder cannot be made or written.
        """
        self.counters = TierCounters()
        self._root = root
        self._most_bytes = most_bytes
        self._files = files or Files()
        self._header = bytearray(records.HEADER_BYTES)
        self._may_grow = True
        self._failures = 0
        wanted = _layout(page_bytes, most_bytes)
        try:
            self._folder = make_folder(root, fingerprint, about or {})
            lock = lock_folder(self._folder)
            if lock is None:
                raise FolderInUse(str(self._folder))
            self._lock_fd = lock
            try:
                self._open(wanted)
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise SettingsError(
                f"{root} cannot hold pages: {error.strerror or error}",
                field="memory.swap_dir",
                remedy="name a folder that can be written",
            ) from error

    def _open(self, wanted: Layout) -> None:
        path = self._folder / INDEX_NAME
        content = read_index(path)
        self.counters.damaged += content.damaged
        kept = content.layout
        if (
            kept is None
            or (kept.page_bytes, kept.slot_bytes) != (wanted.page_bytes, wanted.slot_bytes)
            or _most_segments(kept, self._most_bytes) < 1
        ):
            kept = None
        self._layout = layout = kept or wanted
        self._most_segments = _most_segments(layout, self._most_bytes)
        self._segments = Segments(self._folder, layout, self._files)
        self._index = SlotIndex()
        self._log = IndexLog(path, layout, self._files)
        if kept is not None:
            self._segments.open_existing(self._most_segments)
        self._remove_further_segments()
        with growing(self._root):  # The limit may be lower than it was.
            make_room(self._root, self._folder, self._bytes(self._segments.count), self._most_bytes)
        self._index.grow(self._segments.slots)
        if kept is not None:
            replay(content.entries, self._index)
        if content.is_sound and kept is not None and not self._log.is_long(self._segments.slots):
            self._log.reopen(len(content.entries))
            return
        try:
            self._log.rewrite(self._index.entries())
        except OSError as error:
            # On a full disk what is there can still be read.
            self._failures = _MOST_FAILURES
            self._failed("be indexed", error)

    def _remove_further_segments(self) -> None:
        number = self._segments.count
        while (path := segment_path(self._folder, number)).is_file():
            path.unlink()
            number += 1

    @property
    def takes_pages(self) -> bool:
        return self._failures < _MOST_FAILURES and (self._may_grow or self._index.slots > 0)

    def holds(self, key: bytes) -> bool:
        return self._index.holds(key)

    def touch(self, keys: Iterable[bytes]) -> None:
        self._index.touch(keys)

    def load(self, key: bytes, page: memoryview) -> bool:
        slot = self._index.find(key)
        if slot is None:
            return False
        try:
            is_long_enough = self._segments.read(slot, [memoryview(self._header), page])
        except OSError as error:
            self._failed("be read", error)
            self.drop(key)
            return False
        if not is_long_enough or not records.is_whole(self._header, key, page):
            self.counters.damaged += 1
            self.drop(key)
            return False
        self.counters.loaded += 1
        return True

    def store(self, key: bytes, page: memoryview) -> bool:
        if self._index.holds(key):
            return True
        if not self.takes_pages:
            return False
        if not self._index.has_free and self._may_grow:
            self._grow()
        taken = self._index.take()
        if taken is None:
            return False
        slot, evicted = taken
        self.counters.evicted += evicted is not None
        try:
            self._segments.write(slot, [memoryview(records.make_header(key, page)), page])
            self._log.append(STORED, slot, key)
        except OSError as error:
            self._index.give_back(slot)
            self._write_failed(error)
            return False
        self._index.put(key, slot)
        self._failures = 0
        self.counters.stored += 1
        return True

    def drop(self, key: bytes) -> None:
        slot = self._index.drop(key)
        if slot is not None:
            # Without this entry the next process tries the page again, and misses again.
            with contextlib.suppress(OSError):
                self._log.append(DROPPED, slot, key)

    def settle(self) -> None:
        try:
            self._segments.settle()
            if self._log.is_long(self._index.slots):
                self._log.rewrite(self._index.entries())
        except OSError as error:
            self._write_failed(error)

    def capacity(self) -> TierCapacity:
        """Of the files as they are; `most_pages` is what they may grow to."""
        return TierCapacity(
            pages=len(self._index),
            most_pages=self._most_segments * self._layout.segment_slots,
            bytes=self._segments.count * self._layout.segment_bytes,
            most_bytes=self._most_bytes,
        )

    def close(self) -> None:
        """Leave the order of use to the next process; safe to call twice."""
        if self._lock_fd < 0:
            return
        self.settle()
        try:
            self._log.rewrite(self._index.entries())
        except OSError as error:
            self._write_failed(error)
        self._log.close()
        self._segments.close()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _bytes(self, segments: int) -> int:
        """Most bytes that the folder takes with so many segments."""
        slots = segments * self._layout.segment_slots
        return segments * self._layout.segment_bytes + index_bytes(slots) + _ABOUT_BYTES

    def _grow(self) -> None:
        """Add a segment if the limit and the disk allow it."""
        count = self._segments.count + 1
        if count > self._most_segments:
            self._may_grow = False
            return
        try:
            with growing(self._root):
                own_bytes = self._bytes(count)
                if not make_room(self._root, self._folder, own_bytes, self._most_bytes):
                    self._may_grow = False
                    return
                self._segments.grow()
        except OSError as error:
            # A full disk is asked again by the next process only.
            self._may_grow = False
            self._failed("grow", error)
            return
        self._index.grow(self._layout.segment_slots)

    def _write_failed(self, error: OSError) -> None:
        self._failures += 1
        self._failed("be written", error)
        if self._failures == _MOST_FAILURES:
            logger.warning("%s is only read from now on", self._folder)

    def _failed(self, what: str, error: OSError) -> None:
        self.counters.failed += 1
        if self.counters.failed == 1:
            logger.warning("pages in %s could not %s: %s", self._folder, what, error)


def _layout(page_bytes: int, most_bytes: int) -> Layout:
    """Segments of a size that makes few files, yet several.

    Raises:
        CapacityError: not even one page fits.
    """
    slot = records.slot_bytes(page_bytes)
    wanted = max(most_bytes // _MOST_SEGMENTS, _LEAST_SEGMENT_BYTES)
    slots = max(min(wanted, most_bytes // _LEAST_SEGMENTS) // slot, 1)
    layout = Layout(page_bytes, slot, slots)
    if _most_segments(layout, most_bytes) < 1:
        raise CapacityError(
            f"{most_bytes} bytes hold no page of {page_bytes} bytes",
            field="memory.swap_space",
            remedy=f"give at least {slot + index_bytes(1) + _ABOUT_BYTES} bytes",
        )
    return layout


def _most_segments(layout: Layout, most_bytes: int) -> int:
    segment = layout.segment_bytes + index_bytes(layout.segment_slots)
    return max((most_bytes - _ABOUT_BYTES) // segment, 0)
