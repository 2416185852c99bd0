"""Decides one step against scratch views; nothing it reads is changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from octavo.schedule.admission import Admissions
from octavo.schedule.cost import StepShape
from octavo.schedule.forecast import step_time
from octavo.schedule.lane import Lane
from octavo.schedule.plan import RowPlan, StepPlan
from octavo.schedule.sequence import Sequence
from octavo.schedule.step_draft import Chunk, StepDraft
from octavo.schedule.step_view import StepLimits, StepView

EARLY_SHARE = 0.5
"""Part of a first-token target by which prefills are to be early: others may come meanwhile."""
MINIMUM_SHARE = 0.1
"""Part of a step's time that a starved class gets before anything but due tokens."""
_INFINITE = float("inf")


class _Turn:
    """A class in this step: who is left, and what it was given.

    `decodes` are its decoding rows that got no time yet, longest unserved first, and `past_tokens`
    the sum of their pasts.
    """

    __slots__ = ("chunk", "decodes", "lane", "next", "past_tokens", "prefills", "seconds")

    def __init__(
        self, lane: Lane, decodes: list[int], past_tokens: int, prefills: Iterator[Sequence]
    ):
        self.lane = lane
        self.decodes = decodes
        self.past_tokens = past_tokens
        self.prefills = prefills
        self.next = next(prefills, None)
        self.chunk: Chunk | None = None
        self.seconds = 0.0

    def advance(self) -> bool:
        """Go on to the next prefill; there is one."""
        self.next = next(self.prefills, None)
        self.chunk = None
        return self.has_prefills

    @property
    def has_prefills(self) -> bool:
        return self.next is not None

    @property
    def has_demand(self) -> bool:
        return len(self.decodes) > 0 or self.has_prefills


class Planner:
    """Policy of one step, used once.

    A step's time goes to one class after the other, strictest first: to tokens due under its
    inter-token target, and to prefills that would miss their first-token target, earliest deadline
    first; classes that starve come after the strictest one's tokens. The rest is shared by weight
    (deficit round robin of Shreedhar and Varghese, SIGCOMM 1995, in predicted seconds). Without a
    limit of time only the tokens are limited, and classes come in order. Pages are taken just in
    time; see `StepDraft` for who gives way.
    """

    def __init__(self, number: int, limits: StepLimits, view: StepView):
        self._number = number
        self._limits = limits
        self._view = view
        self._cost = view.cost
        self._now = view.now_seconds
        self._budget = limits.token_budget
        self.shape = StepShape()
        self._rows = view.rows
        self._columns = view.rows.columns
        self.draft = StepDraft(
            view.lanes, view.cache, view.rows, number, is_contiguous=limits.is_contiguous
        )
        self._made_admissions: Admissions | None = None
        self._turns: list[_Turn] = []
        for lane in view.lanes:
            if lane.has_work:
                decodes, past = view.rows.decoding(lane)
                self._turns.append(_Turn(lane, decodes, past, _prefills(lane)))
        decoding = (turn.lane.service for turn in self._turns if len(turn.decodes))
        most = limits.max_step_seconds
        self._limit, self.is_tight = _INFINITE, False
        if most is not None:
            self._limit, self.is_tight = step_time(decoding, view.cost, most, view.between_seconds)
            if self.is_tight:
                self._limit = max(self._limit, min(self._strictest_seconds(), most))
        self._used = self._cost.constant
        self.starved: list[Lane] = []
        self.charges: list[tuple[Lane, float, float]] = []

    @property
    def spent(self) -> dict[Lane, float]:
        """What classes that got time got of it, in predicted seconds."""
        return {turn.lane: turn.seconds for turn in self._turns if turn.seconds > 0}

    @property
    def now_seconds(self) -> float:
        return self._now

    @property
    def limit_seconds(self) -> float:
        """What the step was allowed to take."""
        return self._limit

    @property
    def may_join(self) -> int | None:
        return self._view.may_join

    @property
    def padded_tokens(self) -> int:
        return self._view.padded_tokens

    @property
    def lent_pages(self) -> list[Sequence]:
        """Those admitted beyond their class's share of pages."""
        made = self._made_admissions
        return [] if made is None else made.lent_pages

    @property
    def _admissions(self) -> Admissions:
        """Made when it is first needed: in most steps nobody comes."""
        if self._made_admissions is None:
            view = self._view
            self._made_admissions = Admissions(
                view.lanes,
                self.draft,
                view.producers,
                view.tails,
                view.free_rows,
                view.closed_rows,
                padded_tokens=view.padded_tokens,
            )
        return self._made_admissions

    def why_cut(self, row: RowPlan) -> str:
        """Why a prompt gets no more than this row in the step."""
        if self._budget < 1:
            return "the tokens of the step are spent"
        if len(row.tokens) >= self._limits.max_chunk_tokens:
            return "a chunk has no more"
        if not self.draft.has_pages:
            return "no page is left"
        return "the time of the step is spent"

    def plan(self) -> StepPlan:
        """Make the plan."""
        if self._fits_everybody():
            for turn in self._turns:
                self._decode(turn, self._left, len(turn.decodes))
        else:
            for place, turn in enumerate(self._turns):
                self._decode(turn, self._left, self._due(turn))
                if place == 0:
                    self._serve_starved()
                self._serve_urgent(turn)
        self._share()
        if not self.draft.has_rows:
            self._force()
        decodes, chunks = self.draft.decode_rows(), self.draft.chunk_rows()
        has_rows = len(decodes.rows) > 0 or len(chunks) > 0
        return StepPlan(
            number=self._number,
            chunks=chunks,
            admissions=self.draft.admissions(),
            preemptions=self.draft.preemptions(),
            closed_rows=tuple(self._view.closed_rows),
            waits=() if self._made_admissions is None else self._made_admissions.waits,
            predicted_seconds=self._cost.predict(self.shape) if has_rows else 0.0,
            decodes=decodes,
            copies=self.draft.copies,
        )

    @property
    def _left(self) -> float:
        return self._limit - self._used

    def _strictest_seconds(self) -> float:
        """What a step takes in which everybody of the strictest class that decodes gets a token.

        Where that is more than its target allows, in parts it would take longer still.
        """
        turn = next(turn for turn in self._turns if len(turn.decodes))
        return self._cost.constant + self._cost.decodes(len(turn.decodes), turn.past_tokens)

    # Decodes

    def _fits_everybody(self) -> bool:
        """All decodes fit and nobody else wants the time."""
        rows = past = 0
        for turn in self._turns:
            if turn.has_prefills:
                return False
            rows += len(turn.decodes)
            past += turn.past_tokens
        return rows <= self._budget and self._cost.decodes(rows, past) <= self._left

    def _due(self, turn: _Turn) -> int:
        """How many of a class, longest unserved first, would miss their target in the next step."""
        target = turn.lane.service.inter_token_seconds
        if self._limit == _INFINITE:
            return len(turn.decodes)
        if target is None:
            return 0
        latest = self._now + 2 * (self._limit + self._view.between_seconds) - target
        return self._columns.count_unserved_since(turn.decodes, latest)

    def _decode(self, turn: _Turn, seconds: float, most: int) -> None:
        """Serve up to `most` of a class's decodes, as `seconds` and the tokens allow, in order."""
        wanted = turn.decodes[: max(min(most, self._budget), 0)]
        count = len(wanted)
        if not count:
            return
        past = turn.past_tokens
        if count < len(turn.decodes):
            past = self._columns.past(wanted)
        spent = self._cost.decodes(count, past)
        if spent > seconds:
            # A time that was computed from these rows has room for them, whatever was rounded.
            count, past, spent = self._columns.run_within(
                wanted, self._cost.decodes(1, 0), self._cost.past_token, seconds * (1 + 1e-9)
            )
            if not count:
                return
        turn.decodes = turn.decodes[count:]
        turn.past_tokens -= past
        self.draft.add_decodes(wanted[:count])
        self.shape.add_decodes(count, past)
        self._budget -= count
        self._used += spent
        turn.seconds += spent

    # Prefills

    def _serve_starved(self) -> None:
        limits = self._limits
        if self._limit == _INFINITE or len(self._turns) < 2:
            return
        for turn in self._turns:
            since = turn.lane.served_seconds
            if since is None or self._now - since < limits.starvation_seconds:
                continue
            if turn.has_demand and not turn.seconds:
                self.starved.append(turn.lane)
                # Never less than one token, whatever the limit of the step is.
                self._serve(turn, max(self._limit * MINIMUM_SHARE, self._least_seconds(turn)))

    def _least_seconds(self, turn: _Turn) -> float:
        if len(turn.decodes):
            return self._cost.decodes(1, self._columns.past(turn.decodes[:1]))
        return 0.0 if turn.next is None else self._token_seconds(turn.next)

    def _token_seconds(self, sequence: Sequence) -> float:
        """What one more token of a prefill takes at most, wherever its next chunk starts."""
        return self._cost.chunk(1, max(sequence.token_count, sequence.position))

    def _serve_urgent(self, turn: _Turn) -> None:
        """Prefills of a class that would miss their target otherwise."""
        lane = turn.lane
        if not turn.has_prefills or self._limit == _INFINITE:
            return
        if lane.service.first_token_seconds is None:
            return
        tokens = lane.waiting_tokens + sum(each.pending for each in lane.prefilling)
        while (sequence := turn.next) is not None and self._is_urgent(sequence, tokens):
            if not self._serve_prefill(turn, self._left):
                break

    def _is_urgent(self, sequence: Sequence, class_tokens: int) -> bool:
        """It, or one of the `class_tokens` of its class, would be late if it went on waiting."""
        pending = sequence.pending
        own = self._cost.chunk(pending, sequence.computed)
        work = own + self._cost.token * max(class_tokens - pending, 0)
        share = max(self._left / self._limit, 0.25)
        target = sequence.lane.service.first_token_seconds or 0.0
        needed = 2 * work / share + 2 * self._limit
        return sequence.deadline_seconds - self._now <= needed + EARLY_SHARE * target

    def _serve_prefill(self, turn: _Turn, seconds: float) -> bool:
        """Give the next prefill of a class what fits into `seconds`; False if nothing does.

        A chunk that has reached its end makes room for the next one of the class.
        """
        sequence = turn.next
        if sequence is None:
            return False
        chunk = turn.chunk
        if chunk is not None and chunk.sequence.order not in self.draft.chunks:
            return turn.advance()
        waits = sequence.row < 0
        past = 0 if waits else sequence.position
        if chunk is not None:
            past = chunk.start + chunk.count
        most = self._most_tokens(seconds, past)
        if most < 1:
            return False
        if chunk is not None:
            before = chunk.count
            room = self._limits.max_chunk_tokens - before
            if self.draft.extend(chunk, min(most, room)) < 1:
                return turn.advance()
            self._charge_chunk(turn, chunk, before)
            return True
        if sequence.order in self.draft.victims:
            return turn.advance()
        if waits:
            turn.chunk = self._admit(turn, sequence, seconds, most)
        else:
            most = min(most, self._limits.max_chunk_tokens)
            turn.chunk = self.draft.add_chunk(sequence, most)
        if turn.chunk is None:
            if turn.next is None:
                return False
            return turn.advance()
        self._charge_chunk(turn, turn.chunk, 0)
        return True

    def _admit(self, turn: _Turn, sequence: Sequence, seconds: float, most: int) -> Chunk | None:
        """Give a waiting sequence a row; if its class gets no more rows now, its turn ends."""
        found = self._admissions.room_for(
            sequence, self._now, may_join=self._view.may_join, max_waits=self._limits.max_rows
        )
        if found is None:
            if not self._admissions.goes_on:
                turn.next = None
            return None
        start = found.tokens(sequence)
        if start:
            most = max(self._most_tokens(seconds, start), 1)
        padding = self._admissions.padding_of(sequence)
        most = min(most, self._limits.max_chunk_tokens)
        chunk = self.draft.admit(sequence, found, most, padding)
        self._admissions.admitted(chunk)
        return chunk

    def _most_tokens(self, seconds: float, past: int) -> int:
        if seconds == _INFINITE:
            return self._budget
        return min(self._budget, self._cost.chunk_within(seconds, past))

    def _charge_chunk(self, turn: _Turn, chunk: Chunk, before: int) -> None:
        added, past = chunk.count - before, chunk.start + before
        self.shape.add_chunk(added, past)
        spent = self._cost.chunk(added, past)
        self._budget -= added
        self._used += spent
        turn.seconds += spent
        if chunk.rest < 1 or chunk.count >= self._limits.max_chunk_tokens:
            turn.advance()

    # The rest of the time

    def _share(self) -> None:
        """Divide what is left by weight; whoever cannot use its part leaves it to the others."""
        waiting = [turn for turn in self._turns if turn.has_demand]
        if not waiting:
            return
        weights = sum(turn.lane.service.weight for turn in waiting)
        left = max(self._left, 0.0)
        for turn in waiting if len(waiting) > 1 and left < _INFINITE else ():
            quantum = left * turn.lane.service.weight / weights
            owed = min(turn.lane.deficit_seconds, 4 * self._limit) + quantum
            spent = self._serve(turn, min(owed, self._left))
            self.charges.append((turn.lane, quantum, spent))
        for turn in sorted(waiting, key=lambda turn: -turn.lane.deficit_seconds):
            if turn.has_demand:
                spent = self._serve(turn, self._left)
                self.charges.append((turn.lane, 0.0, spent))

    def _serve(self, turn: _Turn, seconds: float) -> float:
        """Give a class up to `seconds`: its decodes, then its prefills; the seconds it took."""
        before = turn.seconds
        if len(turn.decodes):
            self._decode(turn, seconds, len(turn.decodes))
        while turn.next is not None and self._budget:
            if not self._serve_prefill(turn, seconds - (turn.seconds - before)):
                break
        return turn.seconds - before

    def _force(self) -> None:
        """Somebody moves in every step, whatever is predicted: one token for the first who can."""
        self.draft.drop_standing()
        for ghost in [ghost for lane in self._view.lanes for ghost in lane.ghosts]:
            if ghost.order not in self.draft.victims:
                self._admissions.preempt(ghost, "its batch needs the room")
        for turn in self._turns:
            turn.prefills = _prefills(turn.lane)
            turn.advance()
            turn.decodes, turn.past_tokens = [], 0
            decoding, _ = self._rows.decoding(turn.lane)
            for place, row in enumerate(decoding):
                sequence = self._rows.sequences[row]
                if sequence is None or sequence.ghost or sequence.order in self.draft.victims:
                    continue
                if sequence.computed < sequence.room or self.draft.force_page_for(sequence):
                    turn.decodes = decoding[place : place + 1]
                    turn.past_tokens = sequence.computed
                    self._budget = max(self._budget, 1)
                    self._decode(turn, _INFINITE, 1)
                    return
            self._budget = max(self._budget, 1)
            while (sequence := turn.next) is not None:
                if sequence.row >= 0 and sequence.order not in self.draft.victims:
                    full = sequence.position >= sequence.room and not self.draft.has_pages
                    if full and not self.draft.force_page_for(sequence):
                        turn.advance()
                        continue
                self._serve_prefill(turn, max(self._token_seconds(sequence), self._left))
                if self.draft.has_rows:
                    return
                if turn.next is sequence:
                    turn.advance()


def _prefills(lane: Lane) -> Iterator[Sequence]:
    """Prefills of a class in key order, then its queue."""
    if not len(lane.prefilling) and not len(lane.queue):
        return iter(())
    return chain(lane.prefilling, lane.queue)
