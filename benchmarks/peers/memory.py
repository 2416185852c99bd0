"""Most memory that a server and everything it started held at one time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from octavo.observe.process_memory import proportional_bytes

INTERVAL_SECONDS = 0.5
"""Rare enough to cost an engine nothing: the kernel walks its pages for every sample."""


class PeakMemory:
    """`bytes` is the largest sum of samples so far.

    Proportional set size: pages that processes share count once, mapped files as far as they are
    in memory.
    """

    def __init__(self, process_id: int):
        self.bytes = 0
        self._process_id = process_id

    def sample(self) -> None:
        processes = process_tree(self._process_id)
        held = sum(proportional_bytes(Path(f"/proc/{each}")) for each in processes)
        self.bytes = max(self.bytes, held)


@contextmanager
def peak_memory(
    process_id: int, *, interval_seconds: float = INTERVAL_SECONDS
) -> Iterator[PeakMemory]:
    """Samples while the block runs, and once at its end."""
    peak = PeakMemory(process_id)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(interval_seconds):
            peak.sample()

    watcher = threading.Thread(target=watch, name="peak memory", daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()
        peak.sample()


def process_tree(process_id: int) -> list[int]:
    """The process and all that descend from it; those that end meanwhile may be missing."""
    found = [process_id]
    for each in found:
        with suppress(OSError):
            for thread in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found
