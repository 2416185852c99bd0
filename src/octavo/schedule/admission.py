"""Who gets a row in a step, and who has to give one up for that."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Ordered

from octavo.schedule.lane import Lane
from octavo.schedule.plan import PrefixWait
from octavo.schedule.producers import Producers, computed_keys, find_producer
from octavo.schedule.sequence import Sequence
from octavo.schedule.step_draft import Chunk, Found, StepDraft
from octavo.schedule.tails import PromptTails

WATERMARK_SHARE = 0.01
"""Part of the pages that admissions leave for those who run."""


class Admissions:
    """Admissions of one step.

    Needed are a row and pages for all tokens the request has, beside what running prefills still
    need, one page for everyone who runs and the watermark, unless nothing runs. A step in which a
    page had to be taken from somebody admits nobody. A class over its share of pages is admitted
    only while no other one waits; a stricter class takes rows and pages of lower ones, or of those
    over their share, by preemption.
    """

    def __init__(
        self,
        lanes: Ordered[Lane],
        draft: StepDraft,
        producers: Producers,
        tails: PromptTails,
        free_rows: Collection[int],
        closed_rows: Ordered[int],
        *,
        padded_tokens: int,
    ):
        self._waits: dict[int, PrefixWait] = {}
        self.goes_on = True
        """After a refusal: others of the class may be asked for."""
        self.lent_pages: list[Sequence] = []
        self._lanes = lanes
        self._draft = draft
        self._producers = producers
        self._tails = tails
        self._rows = (free_rows, closed_rows)
        self._padded_tokens = padded_tokens
        self._free_rows: list[int] | None = None
        self._marks: dict[bytes, Sequence] = {}
        self._counts: dict[Lane, int] = {}
        self._victims: dict[tuple[Lane, bool], list[Lane]] = {}
        self._granted: dict[Lane, int] = {}
        self._wanted = 0
        self._is_lent = False
        self._joined = 0
        self._running = sum(len(lane.running) for lane in lanes)
        self._outstanding: int | None = None
        self._groups = draft.groups
        self._watermark = int(draft.pages.available * WATERMARK_SHARE)

    @property
    def waits(self) -> tuple[PrefixWait, ...]:
        """Requests that sit aside from this step on, each once however often it is asked for."""
        return tuple(self._waits.values())

    def room_for(
        self, sequence: Sequence, now_seconds: float, *, may_join: int | None, max_waits: int
    ) -> Found | None:
        """A row and what is reused; None if there is no room, or it waits for a prefix."""
        lane, draft = sequence.lane, self._draft
        self.goes_on = self._is_lent = False
        if draft.is_short_of_pages or self._is_held(sequence, lane, now_seconds, may_join):
            return None
        if sequence.order in self._waits:
            self.goes_on = True
            return None
        if len(self._waits) >= max_waits:
            return None
        layout, keys = sequence.layout, sequence.reusable_keys
        reused = layout.look_up(draft.pages, keys) if keys else []
        blocks = len(reused) // layout.groups
        tail = self._tails.find(sequence, blocks, draft.victims)
        if tail is None:
            found = find_producer(sequence, keys, blocks, self._producers, self._marks)
            if found is not None:
                producer, key = found
                self._waits[sequence.order] = PrefixWait(sequence.id, producer.id, key)
                self.goes_on = True
                return None
        padding = self.padding_of(sequence)
        most_pages = draft.pages_to_start(sequence, padding)
        if not self._may_hold(lane, most_pages):
            return None
        row = self._free_row()
        held = self._new_pages(most_pages, layout.held(reused))
        if row is None or not self._fits(held):
            if not self._make_room(sequence, held, layout.held(reused)):
                return None
            row = self._free_row()
            if keys:
                # Pages of victims that were found are now as free as any other.
                reused = layout.look_up(draft.pages, keys)
                held = self._new_pages(most_pages, layout.held(reused))
            if row is None or not self._fits(held):
                return None
            tail = self._tails.find(sequence, len(reused) // layout.groups, draft.victims)
        return Found(row, reused, tail)

    def _new_pages(self, most_pages: int, reused: Ordered[int]) -> int:
        """How many pages would stop being available, to others than who holds some of `reused`."""
        if not reused:
            return most_pages
        return most_pages - len(reused) + self._draft.pages.unheld(reused)

    def padding_of(self, sequence: Sequence) -> int:
        """Tokens by which its prompt is shorter than the longest of its batch."""
        if not self._padded_tokens or sequence.was_preempted:
            return 0
        return max(self._padded_tokens - sequence.prompt_tokens, 0)

    def admitted(self, chunk: Chunk) -> None:
        """The row of the last answer was used."""
        sequence = chunk.sequence
        lane = sequence.lane
        self._granted[lane] = self._granted.get(lane, 0) + self._wanted
        if self._is_lent:
            self.lent_pages.append(sequence)
        assert self._free_rows is not None
        self._free_rows.remove(chunk.row)
        self._counts[lane] = self._counts.get(lane, 0) + 1
        self._joined += not sequence.was_preempted
        if self._outstanding is not None:
            self._outstanding += self._missing(sequence, chunk)
        self._running += 1
        for key in computed_keys(sequence, len(chunk.reused) // self._groups):
            self._marks.setdefault(key, sequence)

    def preempt(self, victim: Sequence, reason: str) -> None:
        """Take row and pages away, for whoever comes next."""
        self._free_row()
        assert self._free_rows is not None
        if self._outstanding is not None and not victim.rows.is_decoding(victim):
            chunk = self._draft.chunks.get(victim.order)
            self._outstanding -= self._missing(victim, chunk)
        self._draft.preempt(victim, reason)
        self._free_rows.append(victim.row)
        self._running -= 1

    def _is_held(
        self, sequence: Sequence, lane: Lane, now_seconds: float, may_join: int | None
    ) -> bool:
        """The class has had its rows of this step, waits for company, or its batch is closed."""
        service = lane.service
        count = self._counts.get(lane, 0)
        if count >= service.admit_max:
            return True
        if sequence.was_preempted:
            return False
        if may_join is not None and self._joined >= may_join:
            return True
        return (
            count == 0
            and len(lane.queue) < service.admit_min
            and now_seconds - sequence.queued_seconds < service.longest_wait_seconds
            and self._running > 0
        )

    def _may_hold(self, lane: Lane, pages: int) -> bool:
        """Beyond its share a class gets only pages that nobody else waits for."""
        draft = self._draft
        self._wanted = pages
        if lane.pages + self._granted.get(lane, 0) + pages <= draft.kv_limit(lane):
            return True
        if any(
            len(other.queue) and not draft.is_over(other)
            for other in self._lanes
            if other is not lane
        ):
            # A request that is larger than the share of its class runs when its class is idle.
            return not lane.running and self._counts.get(lane, 0) == 0
        self._is_lent = True
        return True

    def _free_row(self) -> int | None:
        if self._free_rows is None:
            self._free_rows = sorted((*self._rows[0], *self._rows[1]))
        return self._free_rows[0] if self._free_rows else None

    def _fits(self, pages: int) -> bool:
        if self._draft.is_contiguous:
            return self._draft.pages.find_run(pages) is not None
        if self._running <= 0:
            return True
        return self._wanted_pages(pages) <= self._draft.pages.available

    def _wanted_pages(self, pages: int) -> int:
        """Pages that must be available for an admission that takes `pages`."""
        if self._outstanding is None:
            self._outstanding = self._outstanding_pages()
        return pages + self._outstanding + self._running * self._groups + self._watermark

    def _make_room(self, sequence: Sequence, pages: int, reused: Ordered[int]) -> bool:
        """Preempt for a waiting sequence, if that is enough: others may hold a victim's pages."""
        draft, lane = self._draft, sequence.lane
        # What a victim leaves in a contiguous layout need not be where a run is wanted.
        wanted = lane.pages + self._granted.get(lane, 0) + pages
        if draft.is_contiguous or wanted > draft.kv_limit(lane):
            return False
        fits_row = self._free_row() is not None
        lanes = self._victim_lanes(lane, fits_row)
        chosen: list[Sequence] = []
        held: list[int] = []
        freed = 0
        missing = self._wanted_pages(pages) - draft.pages.available
        for victim in draft.candidates(lanes):
            if fits_row and freed >= missing:
                break
            chosen.append(victim)
            held += victim.pages
            freed += victim.held_pages + self._groups
            fits_row = True
            if freed >= missing > 0:
                freed = draft.pages.freed(held, reused) + len(chosen) * self._groups
        if not fits_row or freed < missing:
            return False
        reason = f"made room for class {lane.service.name}"
        for victim in chosen:
            self.preempt(victim, reason)
        return True

    def _victim_lanes(self, lane: Lane, has_row: bool) -> list[Lane]:
        """Classes that give way to `lane`: lower ones, for pages also those over their share."""
        lanes = self._victims.get((lane, has_row))
        if lanes is None:
            lower = [each for each in self._lanes[::-1] if each.rank > lane.rank]
            others = [each for each in self._lanes[::-1] if each is not lane]
            over = [each for each in others if self._draft.is_over(each)]
            first = over if has_row else [each for each in over if each in lower]
            lanes = self._victims[lane, has_row] = list(dict.fromkeys([*first, *lower]))
        return lanes

    def _outstanding_pages(self) -> int:
        """Pages that prefills will still need for the tokens they have."""
        draft, pages = self._draft, 0
        for lane in self._lanes:
            for sequence in lane.prefilling:
                if sequence.order not in draft.victims:
                    pages += self._missing(sequence, draft.chunks.get(sequence.order))
        for chunk in draft.chunks.values():
            if chunk.is_admission:
                pages += self._missing(chunk.sequence, chunk)
        return pages

    @staticmethod
    def _missing(sequence: Sequence, chunk: Chunk | None) -> int:
        layout, blocks = sequence.layout, sequence.blocks if chunk is None else chunk.blocks
        missing = layout.blocks_for(sequence.token_count) - blocks
        if missing <= 0:
            return 0
        window_block = sequence.window_block
        if chunk is not None and chunk.is_admission:
            window_block = layout.first_block(
                len(chunk.reused) // layout.groups * layout.page_tokens
            )
        return layout.pages_to_come(missing, blocks - window_block)
