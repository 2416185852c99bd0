"""Pages on disk do not also lie in the system's page cache, which nobody's ledger would count."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from octavo.memory.tiers.disk import DiskTier
from tier_harness import FINGERPRINT, key

PAGE_BYTES = 256 << 10
PAGES = 16


def resident_bytes(path: Path) -> int:
    """Bytes of a file that the kernel holds in memory (mincore)."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        flags = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        status = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), flags)
        assert status == 0, os.strerror(ctypes.get_errno())
        return sum(flag & 1 for flag in flags) * mmap.PAGESIZE


def test_segments_leave_the_page_cache(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(bytes(PAGE_BYTES))
    assert resident_bytes(plain) == PAGE_BYTES, "a file that was just written is in memory"
    with plain.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_bytes(plain):
        pytest.skip("the files of this file system always lie in memory")

    tier = DiskTier(tmp_path / "kv", FINGERPRINT, page_bytes=PAGE_BYTES, most_bytes=64 << 20)
    for number in range(PAGES):
        assert tier.store(key(number), memoryview(bytes([number]) * PAGE_BYTES))
    tier.settle()
    segments = list((tmp_path / "kv").glob("*/segment-*"))
    assert sum(path.stat().st_size for path in segments) >= PAGES * PAGE_BYTES
    # Where two pages meet inside a page of the system, it may stay.
    most_bytes = PAGES * 2 * mmap.PAGESIZE
    assert sum(map(resident_bytes, segments)) <= most_bytes
    for number in range(PAGES):
        content = memoryview(bytearray(PAGE_BYTES))
        assert tier.load(key(number), content)
        assert content == bytes([number]) * PAGE_BYTES
    assert sum(map(resident_bytes, segments)) <= most_bytes
    tier.close()
