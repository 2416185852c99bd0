"""Memory that the C library holds back after it was freed."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Give free memory back to the system, if the C library can (glibc's `malloc_trim`).

    Reading a model's vocabulary leaves some 10 MB of it.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    malloc_trim(0)
