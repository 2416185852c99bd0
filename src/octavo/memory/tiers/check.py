"""Reads a folder of the disk tier as it lies there, without changing it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from octavo.memory.tiers import records
from octavo.memory.tiers.files import Files
from octavo.memory.tiers.folder import INDEX_NAME, lock_folder
from octavo.memory.tiers.index_log import IndexContent, read_index, replay
from octavo.memory.tiers.segments import READ_AHEAD_BYTES, segment_path
from octavo.memory.tiers.slots import SlotIndex


@dataclass(frozen=True, slots=True)
class FolderCheck:
    """How many pages are as they were stored; `damaged` counts pages and entries of the index."""

    sound: int = 0
    damaged: int = 0
    in_use: bool = False


def page_count(folder: Path) -> int:
    """How many pages a folder's index names."""
    return len(_index(folder, read_index(folder / INDEX_NAME)))


def check_folder(folder: Path) -> FolderCheck:
    """Read every page of a folder that nobody uses, which stays locked meanwhile."""
    try:
        lock = lock_folder(folder)
    except OSError:
        return FolderCheck(damaged=1)
    if lock is None:
        return FolderCheck(in_use=True)
    try:
        return _check(folder)
    finally:
        os.close(lock)


def _check(folder: Path) -> FolderCheck:
    content = read_index(folder / INDEX_NAME)
    layout = content.layout
    if layout is None:
        return FolderCheck(damaged=content.damaged)
    files = Files()
    header = bytearray(records.HEADER_BYTES)
    page = memoryview(bytearray(layout.page_bytes))
    sound = 0
    pages = _index(folder, content).entries()
    for key, slot in pages:
        number, place = divmod(slot, layout.segment_slots)
        try:
            fd = files.open(segment_path(folder, number), create=False)
        except OSError:
            continue
        try:
            offset = place * layout.slot_bytes
            count = files.read(fd, [memoryview(header), page], offset)
            files.forget(fd, offset, layout.slot_bytes + READ_AHEAD_BYTES)
            whole = count == len(header) + len(page)
            sound += whole and records.is_whole(header, key, page)
        except OSError:
            pass
        finally:
            files.close(fd)
    return FolderCheck(sound, len(pages) - sound + content.damaged)


def _index(folder: Path, content: IndexContent) -> SlotIndex:
    """The pages that the index names in segments that are there."""
    layout = content.layout
    index = SlotIndex()
    if layout is not None:
        count = 0
        while segment_path(folder, count).is_file():
            count += 1
        index.grow(count * layout.segment_slots)
        replay(content.entries, index)
    return index
