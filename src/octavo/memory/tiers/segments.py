"""Slots in files of equal size."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from octavo.memory.tiers.files import Files, write_whole
from octavo.memory.tiers.index_log import Layout

READ_AHEAD_BYTES = 1 << 20
"""More than the system reads beyond what was asked for; without that reading takes far longer."""


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"segment-{number:06}.kv"


class Segments:
    """The segment files of one folder, numbered from 0 without a gap."""

    def __init__(self, folder: Path, layout: Layout, files: Files):
        self._folder = folder
        self._layout = layout
        self._files = files
        self._fds: list[int] = []
        self._unsettled: set[int] = set()

    @property
    def count(self) -> int:
        return len(self._fds)

    @property
    def slots(self) -> int:
        return len(self._fds) * self._layout.segment_slots

    def open_existing(self, most: int) -> None:
        """Open up to `most` files that are there; what was cut short gets its size again.

        The first that cannot be had ends the series.
        """
        while len(self._fds) < most and segment_path(self._folder, len(self._fds)).exists():
            try:
                self._open(create=False)
            except OSError:
                return

    def grow(self) -> None:
        """Add a file.

        Raises:
            OSError: the disk is full, or the name is taken by something else.
        """
        self._open(create=True)

    def read(self, slot: int, buffers: list[memoryview]) -> bool:
        """Fill `buffers` from the start of a slot; False if the file ends before.

        Raises:
            OSError: the system refused.
        """
        fd, offset = self._place(slot)
        wanted = sum(len(buffer) for buffer in buffers)
        count = self._files.read(fd, buffers, offset)
        self._files.forget(fd, offset, self._layout.slot_bytes + READ_AHEAD_BYTES)
        return count == wanted

    def write(self, slot: int, buffers: list[memoryview]) -> None:
        """Write `buffers` to the start of a slot; `settle` when a run of writes has ended.

        Raises:
            OSError: the system refused, or wrote less.
        """
        fd, offset = self._place(slot)
        write_whole(self._files, fd, buffers, offset)
        self._unsettled.add(slot // self._layout.segment_slots)

    def settle(self) -> None:
        """Bring what was written to the disk and out of the system's memory.

        Raises:
            OSError: the system could not write it.
        """
        while self._unsettled:
            fd = self._fds[self._unsettled.pop()]
            self._files.sync(fd)
            self._files.forget(fd, 0, self._layout.segment_bytes)

    def close(self) -> None:
        while self._fds:
            self._files.close(self._fds.pop())

    def _place(self, slot: int) -> tuple[int, int]:
        number, place = divmod(slot, self._layout.segment_slots)
        return self._fds[number], place * self._layout.slot_bytes

    def _open(self, *, create: bool) -> None:
        path = segment_path(self._folder, len(self._fds))
        size_bytes = self._layout.segment_bytes
        fd = self._files.open(path, create=create)
        try:
            found_bytes = os.fstat(fd).st_size
            if found_bytes > size_bytes:
                os.ftruncate(fd, size_bytes)
            elif found_bytes < size_bytes:
                self._files.allocate(fd, size_bytes)
        except BaseException:
            self._files.close(fd)
            if create:
                with suppress(OSError):
                    path.unlink()
            raise
        self._fds.append(fd)
