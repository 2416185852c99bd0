"""Which page lies in which slot, as a file that grows by one entry a change."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from octavo.memory.tiers.files import Files, write_whole
from octavo.memory.tiers.slots import SlotIndex

STORED = 1
DROPPED = 2
ENTRY_BYTES = 64
_ENTRY = struct.Struct("<B7xQ32s")
_HEADER = struct.Struct("<8sQQQ16x")
_MAGIC = b"OCTKVIX1"
_SPARE_ENTRIES = 64

Entry = tuple[int, int, bytes]
"""STORED or DROPPED, slot, key."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the slots of a folder are; fixed when the folder is made."""

    page_bytes: int
    slot_bytes: int
    segment_slots: int

    @property
    def segment_bytes(self) -> int:
        return self.slot_bytes * self.segment_slots


@dataclass(frozen=True, slots=True)
class IndexContent:
    """An index as it was read: `damaged` parts were left out, `is_sound` if there were none.

    `layout` is None if the file is not there or is no index.
    """

    layout: Layout | None
    entries: list[Entry]
    damaged: int = 0

    @property
    def is_sound(self) -> bool:
        return self.layout is not None and not self.damaged


def index_bytes(slots: int) -> int:
    """Most bytes that the index of so many slots takes, while it is written anew too."""
    return ENTRY_BYTES * (2 + _most_entries(slots) + slots)


def read_index(path: Path) -> IndexContent:
    """Read an index; nothing that is in it, or is not, raises."""
    try:
        content = path.read_bytes()
    except OSError:
        return IndexContent(None, [])
    head = _opened(content[:ENTRY_BYTES])
    if head is None or not head.startswith(_MAGIC):
        return IndexContent(None, [], damaged=1)
    _, page_bytes, slot_bytes, segment_slots = _HEADER.unpack(head)
    if not 0 < page_bytes < slot_bytes or segment_slots < 1:
        return IndexContent(None, [], damaged=1)
    entries: list[Entry] = []
    damaged = 0
    for start in range(ENTRY_BYTES, len(content), ENTRY_BYTES):
        entry = _opened(content[start : start + ENTRY_BYTES])
        if entry is None:
            damaged += 1
        else:
            entries.append(_ENTRY.unpack(entry))
    return IndexContent(Layout(page_bytes, slot_bytes, segment_slots), entries, damaged)


def replay(entries: Iterable[Entry], index: SlotIndex) -> None:
    """Bring an empty index of as many slots as there are to where the entries end."""
    for kind, slot, key in entries:
        if kind == STORED and slot < index.slots:
            index.claim(key, slot)
        elif kind == DROPPED:
            index.drop(key)
    index.collect_free()


class IndexLog:
    """The index of one folder, open for more entries.

    Every entry has a checksum of its own, so one that was cut short or damaged is lost alone. An
    entry that could not be written whole is written over by the next one.
    """

    def __init__(self, path: Path, layout: Layout, files: Files):
        self._path = path
        self._layout = layout
        self._files = files
        self._fd = -1
        self._count = 0

    def reopen(self, entry_count: int) -> None:
        """Go on after so many sound entries.

        Raises:
            OSError: the file cannot be opened.
        """
        self._fd = self._files.open(self._path, create=False)
        self._count = entry_count

    def is_long(self, slots: int) -> bool:
        """Whether most of its entries are outdated, so that it should be written anew."""
        return self._count >= _most_entries(slots)

    def append(self, kind: int, slot: int, key: bytes) -> None:
        """Add an entry.

        Raises:
            OSError: it could not be written.
        """
        offset = ENTRY_BYTES * (1 + self._count)
        entry = memoryview(_sealed(_ENTRY.pack(kind, slot, key)))
        write_whole(self._files, self._fd, [entry], offset)
        self._count += 1

    def rewrite(self, pages: Iterable[tuple[bytes, int]]) -> None:
        """Put a new file in the place of the old one at once: an entry for each page.

        Raises:
            OSError: it could not be written; the old file is as it was.
        """
        layout = self._layout
        head = _HEADER.pack(_MAGIC, layout.page_bytes, layout.slot_bytes, layout.segment_slots)
        parts = [_sealed(head), *(_sealed(_ENTRY.pack(STORED, slot, key)) for key, slot in pages)]
        beside = self._path.with_suffix(".new")
        with suppress(FileNotFoundError):
            beside.unlink()
        fd = self._files.open(beside, create=True)
        try:
            write_whole(self._files, fd, [memoryview(b"".join(parts))], 0)
            self._files.sync(fd)
            os.replace(beside, self._path)
        except BaseException:
            self._files.close(fd)
            with suppress(OSError):
                beside.unlink()
            raise
        self.close()
        self._fd = fd
        self._count = len(parts) - 1

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1


def _most_entries(slots: int) -> int:
    return 2 * slots + _SPARE_ENTRIES


def _sealed(content: bytes) -> bytes:
    return content + _digest(content)


def _opened(sealed: bytes) -> bytes | None:
    """The content under a right checksum."""
    content, digest = sealed[: _ENTRY.size], sealed[_ENTRY.size :]
    return content if len(sealed) == ENTRY_BYTES and digest == _digest(content) else None


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16, person=b"octavo index").digest()
