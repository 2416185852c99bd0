"""Requests that wait for a row, in the order in which they are admitted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.schedule.sequence import Sequence


class WaitingQueue:
    """Preempted requests first, then by arrival.

    A sorted list: walking it changes nothing, and insertion or removal anywhere is a binary search
    and a move of pointers, microseconds with ten thousand waiting.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[bool, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, _, sequence in self._entries)

    def push(self, sequence: Sequence) -> None:
        insort(self._entries, self._entry(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; its state must be what it was when it was pushed.

        Raises:
            ValueError: it is not in the queue.
        """
        entry = self._entry(sequence)
        place = bisect_left(self._entries, entry)
        if place == len(self._entries) or self._entries[place][2] is not sequence:
            raise ValueError(f"request {sequence.id} is not in the queue")
        del self._entries[place]

    @staticmethod
    def _entry(sequence: Sequence) -> tuple[bool, int, Sequence]:
        return (not sequence.was_preempted, sequence.order, sequence)
