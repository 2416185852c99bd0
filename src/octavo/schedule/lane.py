"""One service class at work: who waits, who runs, what it was given."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from octavo.core.service_classes import ServiceClass
from octavo.schedule.counters import ClassCounters
from octavo.schedule.queue import LaneQueue
from octavo.schedule.sequence import Sequence


def sequence_key(sequence: Sequence) -> tuple[int, int, int, int]:
    return sequence.key


class Lane:
    """Mutable record of one class; `rank` 0 is the strictest.

    `running` is sorted by key, and so is `prefilling`, the part of it that computes a prompt.
    `decoding` is the other part, longest unserved first; `full` those of it that need a page
    before their next token. `pages` and `waiting` count by home class. `deficit_seconds` is the
    time it is owed.
    """

    def __init__(self, service: ServiceClass, rank: int):
        self.service = service
        self.rank = rank
        self.queue = LaneQueue()
        self.running: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.decoding: dict[int, Sequence] = {}
        self.full: dict[int, Sequence] = {}
        self.past_tokens = 0
        self.pages = 0
        self.waiting = 0
        self.waiting_tokens = 0
        self.deficit_seconds = 0.0
        self.served_seconds: float | None = None
        self.counters = ClassCounters()
        self._drained_tokens = 0.0
        self._drained_seconds = 0.0
        self._drained_at: float | None = None
        self._promised_seconds = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self.running or len(self.queue))

    def start(self, sequence: Sequence) -> None:
        """A sequence begins to run, in prefill."""
        insort(self.running, sequence, key=sequence_key)
        insort(self.prefilling, sequence, key=sequence_key)

    def stop(self, sequence: Sequence) -> None:
        """A running sequence leaves."""
        _remove(self.running, sequence)
        if self.decoding.pop(sequence.order, None) is None:
            _remove(self.prefilling, sequence)
        else:
            sequence.is_plain = False
            self.past_tokens -= sequence.computed
            self.full.pop(sequence.order, None)

    def settle(self, sequence: Sequence) -> None:
        """Put a running sequence where its progress belongs; it has just been in prefill."""
        if sequence.is_decoding:
            _remove(self.prefilling, sequence)
            self.decoding[sequence.order] = sequence
            sequence.is_plain = not sequence.ghost
            self.past_tokens += sequence.computed
            self.settle_page(sequence)

    def unsettle(self, sequence: Sequence) -> None:
        """A decoding sequence has more than its last token to compute."""
        del self.decoding[sequence.order]
        sequence.is_plain = False
        self.full.pop(sequence.order, None)
        self.past_tokens -= sequence.computed
        insort(self.prefilling, sequence, key=sequence_key)

    def settle_page(self, sequence: Sequence) -> None:
        """Note whether a decoding sequence needs a page."""
        if sequence.computed >= sequence.room:
            self.full[sequence.order] = sequence
        else:
            self.full.pop(sequence.order, None)

    def rotate(self, served: Iterable[Sequence]) -> None:
        """Those who were served go behind those who were not."""
        decoding = self.decoding
        for sequence in served:
            if decoding.pop(sequence.order, None) is not None:
                decoding[sequence.order] = sequence

    def victims(self) -> Iterator[Sequence]:
        """Running sequences, worst key first."""
        return reversed(self.running)

    def drained(self, tokens: int, now_seconds: float) -> None:
        """A request of so many tokens left the queue; measures how fast that goes under load."""
        if self._drained_at is not None:
            self._drained_tokens = 0.9 * self._drained_tokens + tokens
            self._drained_seconds = 0.9 * self._drained_seconds + now_seconds - self._drained_at
        self._drained_at = now_seconds if self.waiting else None

    def began_to_wait(self, now_seconds: float) -> None:
        """Somebody waits where nobody did."""
        self._drained_at = now_seconds

    def seconds_per_token(self, guess: float) -> float:
        """Seconds that the queue takes a prompt token, `guess` where nothing was measured."""
        if self._drained_seconds <= 0 or self._drained_tokens <= 0:
            return guess
        return self._drained_seconds / self._drained_tokens

    def promise(self, now_seconds: float, wait_seconds: float, own_seconds: float) -> float:
        """When a refused request may come back: those who were told earlier come first."""
        start = max(self._promised_seconds, now_seconds + wait_seconds)
        self._promised_seconds = start + own_seconds
        return self._promised_seconds - now_seconds


def _remove(ordered: list[Sequence], sequence: Sequence) -> None:
    del ordered[bisect_left(ordered, sequence.key, key=sequence_key)]
