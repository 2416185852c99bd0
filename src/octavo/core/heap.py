"""Memory that the C library holds back after it was freed."""

from __future__ import annotations

import ctypes

_LARGE_BLOCK_BYTES = 128 << 10
_M_MMAP_THRESHOLD = -3


def return_large_blocks() -> None:
    """Let blocks from 128 KiB on go to the system as soon as they are free, if the library can.

    That is how glibc begins, but each such block that is freed raises the limit to its own size.
    """
    _call("mallopt", _M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def trim() -> None:
    """Give free memory back to the system, if the C library can (glibc's `malloc_trim`).

    Reading a model's vocabulary leaves some 10 MB of it.
    """
    _call("malloc_trim", 0)


def _call(name: str, *numbers: int) -> None:
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return
    function(*numbers)
