"""One service class at work: who waits, who runs, what it was given."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from octavo.core.service_classes import ServiceClass
from octavo.schedule.counters import ClassCounters
from octavo.schedule.demand import Pace, Tickets, Use
from octavo.schedule.queue import LaneQueue
from octavo.schedule.sequence import Key, Sequence

_ANSWER_LEARNING = 0.05


class ByKey:
    """Sequences in the order of their keys; adding and removing are binary searches."""

    __slots__ = ("_keys", "_sequences")

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __reversed__(self) -> Iterator[Sequence]:
        return reversed(self._sequences)

    def __getitem__(self, place: int) -> Sequence:
        return self._sequences[place]

    def add(self, sequence: Sequence) -> None:
        place = bisect_left(self._keys, sequence.key)
        self._keys.insert(place, sequence.key)
        self._sequences.insert(place, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is there."""
        place = bisect_left(self._keys, sequence.key)
        del self._keys[place], self._sequences[place]


class Lane:
    """Mutable record of one class; `rank` 0 is the strictest.

    `running` is sorted by key, and so are parts of it: `prefilling`, who computes a prompt;
    `ghosts`; and `exposed`, who may be preempted, which is everybody else but those whom that
    happened to often enough. `pages` and `waiting` count by home class.
    `deficit_seconds` is the time it is owed. `answer_tokens` is the usual length of its answers, 0
    until one has ended.
    """

    def __init__(self, service: ServiceClass, rank: int):
        self.service = service
        self.rank = rank
        self.queue = LaneQueue()
        self.running = ByKey()
        self.prefilling = ByKey()
        self.exposed = ByKey()
        self.ghosts = ByKey()
        self.pages = 0
        self.waiting = 0
        self.waiting_tokens = 0
        self.deficit_seconds = 0.0
        self.served_seconds: float | None = None
        self.forget()

    def forget(self) -> None:
        """Start counters and measurements over."""
        self.counters = ClassCounters()
        self.pace = Pace()
        self.tickets = Tickets()
        self.use = Use()
        self.answer_tokens = 0.0

    @property
    def has_work(self) -> bool:
        return len(self.running) > 0 or len(self.queue) > 0

    def note_answer(self, tokens: int) -> None:
        """An answer of so many tokens has ended."""
        weight = _ANSWER_LEARNING if self.answer_tokens else 1.0
        self.answer_tokens += weight * (tokens - self.answer_tokens)

    def start(self, sequence: Sequence) -> None:
        """A sequence begins to run, in prefill."""
        self.running.add(sequence)
        self.prefilling.add(sequence)
        if sequence.is_exposed:
            self.exposed.add(sequence)

    def make_ghost(self, sequence: Sequence) -> None:
        """A running sequence has ended and stays on its row."""
        self._unlist(sequence)
        sequence.ghost = True
        self.ghosts.add(sequence)
        sequence.rows.unset_plain(sequence)

    def stop(self, sequence: Sequence) -> None:
        """A running sequence leaves."""
        self.running.remove(sequence)
        self._unlist(sequence)
        if sequence.rows.is_decoding(sequence):
            sequence.rows.unset_decoding(sequence)
        else:
            self.prefilling.remove(sequence)

    def settle(self, sequence: Sequence) -> None:
        """Put a running sequence where its progress belongs; it has just been in prefill."""
        if sequence.is_decoding:
            self.prefilling.remove(sequence)
            sequence.rows.set_decoding(sequence, self)

    def unsettle(self, sequence: Sequence) -> None:
        """A decoding sequence has more than its last token to compute."""
        sequence.rows.unset_decoding(sequence)
        self.prefilling.add(sequence)

    def _unlist(self, sequence: Sequence) -> None:
        if sequence.ghost:
            self.ghosts.remove(sequence)
        elif sequence.is_exposed:
            self.exposed.remove(sequence)
