"""Free memory of the C library goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from octavo.core import heap

_FREED = """
import ctypes
from octavo.core import heap
from octavo.observe.process_memory import resident_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
blocks = [libc.malloc(4096) for _ in range(10_000)]
for block in blocks:
    ctypes.memset(block, 1, 4096)
# The last block stays, so that the library alone would keep what lies below it.
for block in blocks[:-1]:
    libc.free(block)
before = resident_bytes()
heap.trim()
print(before - resident_bytes())
"""


_FREED_LARGE = """
import ctypes
from octavo.core import heap
from octavo.observe.process_memory import resident_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(16 << 20))  # teaches the library to keep blocks of this size
heap.return_large_blocks()
blocks = [libc.malloc(1 << 20) for _ in range(40)]
for block in blocks:
    ctypes.memset(block, 1, 1 << 20)
before = resident_bytes()
for block in blocks[:-1]:
    libc.free(block)
print(before - resident_bytes())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc only")
@pytest.mark.parametrize("code", [_FREED, _FREED_LARGE])
def test_free_memory_goes_back(code: str) -> None:
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 30_000_000


def test_a_library_that_cannot_do_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    heap.trim()
    heap.return_large_blocks()
