"""Decides one step against scratch views; nothing it reads is changed."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from octavo.memory.cache import PageCache
from octavo.memory.draft import PageDraft
from octavo.schedule.plan import Admission, Preemption, PrefixWait, RowPlan, StepPlan
from octavo.schedule.producers import Producers, find_producer
from octavo.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step: tokens over all rows, rows, tokens of one prefill chunk."""

    token_budget: int
    max_rows: int
    max_chunk_tokens: int


@dataclass(frozen=True, slots=True)
class StepView:
    """What a plan is made from. `running` is sorted by arrival; `closed_rows` may be used again."""

    running: Ordered[Sequence]
    waiting: Iterable[Sequence]
    free_rows: Ordered[int]
    closed_rows: Ordered[int]
    producers: Producers
    cache: PageCache


@dataclass(slots=True)
class _Row:
    """A row in the making; `reused` pages come first in the table of an admission."""

    sequence: Sequence
    row: int
    start: int
    count: int
    table_start: int
    taken: list[int]
    reused: list[int]


class Planner:
    """Policy of one step, used once.

    Decodes first, oldest first; then chunks of running prefills, oldest first; then admissions in
    queue order. A request that lacks a page takes it from the youngest running one if that is
    younger than itself, else it sits out the step: so the oldest always progresses and is never a
    victim. A step that preempted admits nobody.
    """

    def __init__(self, number: int, limits: StepLimits, view: StepView):
        self._number = number
        self._limits = limits
        self._view = view
        self._draft = PageDraft(view.cache)
        self._budget = limits.token_budget
        self._rows: dict[int, _Row] = {}
        self._survivors = len(view.running)
        self._prefills: list[Sequence] = []
        self._preempted: list[Sequence] = []
        self._admitted: list[_Row] = []
        self._marks: dict[bytes, Sequence] = {}
        self._waits: list[PrefixWait] = []

    def plan(self) -> StepPlan:
        """Make the plan."""
        self._place_decodes()
        self._place_prefills()
        if not self._preempted:
            self._admit()
        return StepPlan(
            number=self._number,
            rows=tuple(map(_row_plan, self._rows.values())),
            admissions=tuple(map(_admission, self._admitted)),
            preemptions=tuple(Preemption(victim.row, victim.id) for victim in self._preempted),
            closed_rows=tuple(self._view.closed_rows),
            waits=tuple(self._waits),
        )

    def _place_decodes(self) -> None:
        running = self._view.running
        place = 0
        while place < self._survivors:
            sequence = running[place]
            # The budget lasts: a step admits only after everyone who runs got a token of it.
            if sequence.is_decoding:
                self._place(sequence, 1)
            else:
                self._prefills.append(sequence)
            place += 1

    def _place_prefills(self) -> None:
        for sequence in self._prefills:
            if not self._budget or sequence.order > self._youngest().order:
                return
            self._place(sequence, self._chunk(sequence.chunk_limit(sequence.computed)))

    def _youngest(self) -> Sequence:
        """Youngest running sequence that this step does not preempt."""
        return self._view.running[self._survivors - 1]

    def _chunk(self, tokens: int) -> int:
        return min(tokens, self._budget, self._limits.max_chunk_tokens)

    def _place(self, sequence: Sequence, count: int) -> None:
        """Give a running sequence up to `count` tokens, as many as pages can be had for."""
        held = len(sequence.table)
        room = held * sequence.page_tokens - sequence.computed
        if room < 1:
            while self._draft.available < 1 and self._preempt_for(sequence):
                pass
            if self._draft.available < 1:
                return
        taken: list[int] = []
        if count > room:
            count = min(count, room + self._draft.available * sequence.page_tokens)
            missing = sequence.pages_for(sequence.computed + count) - held
            taken = [self._draft.take() for _ in range(missing)]
        self._add(_Row(sequence, sequence.row, sequence.computed, count, held, taken, []))

    def _add(self, row: _Row) -> None:
        self._rows[row.sequence.order] = row
        self._budget -= row.count

    def _preempt_for(self, sequence: Sequence) -> bool:
        """Preempt the youngest running sequence; False if none is younger than `sequence`."""
        victim = self._youngest()
        if victim.order <= sequence.order:
            return False
        self._survivors -= 1
        self._preempted.append(victim)
        row = self._rows.pop(victim.order, None)
        if row is not None:
            self._budget += row.count
            self._draft.give_back(row.taken)
        self._draft.release(victim.table)
        return True

    def _admit(self) -> None:
        limits, view = self._limits, self._view
        free_rows = sorted((*view.free_rows, *view.closed_rows))
        if not free_rows:
            return
        outstanding = self._outstanding_pages()
        for sequence in view.waiting:
            if not self._budget or len(self._admitted) == len(free_rows):
                return
            if len(self._waits) == limits.max_rows:
                return
            reused = self._draft.look_up(sequence.keys[: sequence.reusable_pages])
            found = find_producer(sequence, len(reused), view.producers, self._marks)
            if found is not None:
                producer, page = found
                self._waits.append(PrefixWait(sequence.id, producer.id, sequence.keys[page]))
                continue
            needed = sequence.pages_for(len(sequence.tokens)) - len(reused)
            if not self._fits(needed + outstanding + self._draft.unheld(reused)):
                return
            row = self._start(sequence, free_rows[len(self._admitted)], reused)
            outstanding += needed - len(row.taken)

    def _outstanding_pages(self) -> int:
        """Pages that running prefills will still need for the tokens they have."""
        pages = 0
        for sequence in self._prefills:
            row = self._rows.get(sequence.order)
            held = len(sequence.table) + (len(row.taken) if row else 0)
            pages += max(sequence.pages_for(len(sequence.tokens)) - held, 0)
        return pages

    def _fits(self, pages: int) -> bool:
        """Admission leaves a page for everyone who runs, so that it does not cause preemption."""
        running = len(self._view.running) + len(self._admitted)
        return running == 0 or pages + running <= self._draft.available

    def _start(self, sequence: Sequence, row_id: int, reused: list[int]) -> _Row:
        self._draft.share(reused)
        start = len(reused) * sequence.page_tokens
        count = self._chunk(sequence.chunk_limit(start))
        missing = sequence.pages_for(start + count) - len(reused)
        taken = [self._draft.take() for _ in range(missing)]
        row = _Row(sequence, row_id, start, count, 0, taken, reused)
        self._admitted.append(row)
        self._add(row)
        for key in sequence.keys[len(reused) :]:
            self._marks.setdefault(key, sequence)
        return row


def _row_plan(row: _Row) -> RowPlan:
    sequence, end = row.sequence, row.start + row.count
    return RowPlan(
        row=row.row,
        request_id=sequence.id,
        start=row.start,
        tokens=tuple(sequence.tokens[row.start : end]),
        table_start=row.table_start,
        new_pages=(*row.reused, *row.taken),
        wants_token=end == len(sequence.tokens) and sequence.request.max_new_tokens > 0,
        score_prompt=sequence.needs_scores(row.start),
    )


def _admission(row: _Row) -> Admission:
    sequence = row.sequence
    return Admission(
        row=row.row,
        request=sequence.request,
        generated=tuple(sequence.tokens[sequence.prompt_tokens :]),
        cached_tokens=row.start,
    )
