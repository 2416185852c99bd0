"""Memory of this process as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes(proc: Path = Path("/proc/self")) -> int:
    """Resident memory, pages shared with other processes included; 0 where it is not told."""
    try:
        return int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def proportional_bytes(proc: Path = Path("/proc/self")) -> int:
    """Resident memory, shared pages divided among their processes; 0 where it is not told.

    The kernel walks every page for it, so it is not for every step.
    """
    try:
        for line in (proc / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0
