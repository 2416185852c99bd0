"""How much of the machine others used while something was measured on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.serving.processes import TICKS_PER_SECOND, cpu_seconds

_PROC = Path("/proc")
_IDLE = (3, 4)
_GUESTS = 8
"""Fields of `cpu` in /proc/stat (see proc(5)): idle and waiting; from here on, time that is in
others already."""


class Company:
    """CPU time that was not the caller's own, nor of `process_ids`, since this was made.

    Time that the host gave to other machines (steal) is among it.
    """

    def __init__(self, process_ids: Sequence[int], *, proc: Path = _PROC):
        self._processes = (os.getpid(), *process_ids)
        self._proc = proc
        self._began_seconds = self._others_seconds()

    def seconds(self) -> float:
        """In seconds of one core."""
        return max(self._others_seconds() - self._began_seconds, 0.0)

    def _others_seconds(self) -> float:
        ticks = [int(each) for each in (self._proc / "stat").read_text().split("\n")[0].split()[1:]]
        busy = sum(count for place, count in enumerate(ticks[:_GUESTS]) if place not in _IDLE)
        own = sum(cpu_seconds(each, proc=self._proc) for each in self._processes)
        return busy / TICKS_PER_SECOND - own
