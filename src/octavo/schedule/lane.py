"""One service class at work: who waits, who runs, what it was given."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.core.service_classes import ServiceClass
from octavo.schedule import _steps
from octavo.schedule.counters import ClassCounters
from octavo.schedule.demand import Pace, Tickets, Use
from octavo.schedule.queue import LaneQueue
from octavo.schedule.sequence import Sequence

_ANSWER_LEARNING = 0.05


class ByKey:
    """Running sequences in the order of their keys.

    `by_row` has those of all rows; a sequence keeps row and key as long as it is in here.
    """

    def __init__(self, by_row: list[Sequence | None]) -> None:
        self._by_row = by_row
        self._order = _steps.KeyOrder()

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Sequence]:
        return iter([self._at(row) for row in self._order.rows()])

    def __getitem__(self, place: int) -> Sequence:
        return self._at(self._order.row(place))

    def add(self, sequence: Sequence) -> None:
        self._order.add(sequence.key, sequence.row)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is there."""
        self._order.remove(sequence.key)

    def _at(self, row: int) -> Sequence:
        sequence = self._by_row[row]
        assert sequence is not None
        return sequence


class Lane:
    """Mutable record of one class; `rank` 0 is the strictest.

    `running` is sorted by key, and so are parts of it: `prefilling`, who computes a prompt;
    `ghosts`; and `exposed`, who may be preempted, which is everybody else but those whom that
    happened to often enough. `pages` and `waiting` count by home class.
    `deficit_seconds` is the time it is owed. `answer_tokens` is the usual length of its answers, 0
    until one has ended.
    """

    def __init__(self, service: ServiceClass, rank: int, by_row: list[Sequence | None]):
        self.service = service
        self.rank = rank
        self.queue = LaneQueue()
        self.running = ByKey(by_row)
        self.prefilling = ByKey(by_row)
        self.exposed = ByKey(by_row)
        self.ghosts = ByKey(by_row)
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
