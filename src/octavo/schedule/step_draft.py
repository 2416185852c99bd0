"""The rows of a step in the making: pages taken, victims chosen, beside the real state."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from operator import attrgetter

from octavo.memory.cache import PageCache
from octavo.memory.draft import PageDraft
from octavo.schedule.lane import ByKey, Lane
from octavo.schedule.plan import Admission, DecodeRows, Preemption, RowPlan
from octavo.schedule.rows import Rows
from octavo.schedule.sequence import Sequence

SHORTEST_RUN_STEPS = 4
"""A request that just began to run is no victim of one of its own class,"""
MARGIN_STEPS = 10
"""unless that one's deadline is so many steps of `DEADLINE_STEP_SECONDS` earlier."""


class Chunk:
    """A prefill row in the making, which takes pages as it grows.

    It begins at token `start` behind `table_start` blocks, or behind the `reused` pages of an
    admission. With `padding` left at its start it computes nothing else.
    """

    def __init__(
        self,
        sequence: Sequence,
        row: int,
        start: int,
        table_start: int,
        reused: list[int],
        *,
        is_admission: bool,
        padding: int,
    ):
        self.sequence = sequence
        self.row = row
        self.start = start
        self.count = 0
        self.table_start = table_start
        self.taken: list[int] = []
        self.reused = reused
        self.is_admission = is_admission
        self.padding = padding
        self.most = padding or sequence.chunk_limit(start)

    @property
    def rest(self) -> int:
        """Tokens that could still be added."""
        return self.most - self.count

    @property
    def blocks(self) -> int:
        """Length of the table with what this chunk adds."""
        added = len(self.reused) + len(self.taken)
        return self.table_start + added // self.sequence.layout.groups


class Found:
    """What a waiting sequence starts with: a row, a table to reuse, pages to copy its tail from."""

    def __init__(self, row: int, reused: list[int], tail: tuple[int, ...] | None):
        self.row = row
        self.reused = reused
        self.tail = tail

    def tokens(self, sequence: Sequence) -> int:
        """Tokens that need no computation."""
        if self.tail is not None:
            return sequence.prompt_tokens - 1
        return len(self.reused) // sequence.layout.groups * sequence.page_tokens


class StepDraft:
    """Pages, rows and victims of one step; nothing it reads is changed."""

    def __init__(
        self,
        lanes: Ordered[Lane],
        cache: PageCache,
        rows: Rows,
        number: int,
        *,
        is_contiguous: bool = False,
    ):
        self._cache = cache
        self._made_pages: PageDraft | None = None
        self.chunks: dict[int, Chunk] = {}
        self.victims: dict[int, tuple[Sequence, str]] = {}
        self.copies: tuple[tuple[int, int], ...] = ()
        self.is_short_of_pages = False
        self.is_contiguous = is_contiguous
        self._lanes = lanes
        self._rows = rows
        self._number = number
        self._total_pages = cache.pool.pages
        self.groups = rows.layout.groups
        self._decodes: list[list[int]] = []
        self._grown: dict[int, list[int]] = {}
        self._standing: set[int] = set()
        self._passed: dict[ByKey, int] = {}

    @property
    def pages(self) -> PageDraft:
        """Made when it is first needed: most steps take no page."""
        if self._made_pages is None:
            self._made_pages = PageDraft(self._cache)
        return self._made_pages

    @property
    def passed_over(self) -> list[int]:
        """Pages whose content must go, see `PageDraft`."""
        return [] if self._made_pages is None else self._made_pages.passed_over

    @property
    def has_rows(self) -> bool:
        """Somebody computes something: whoever was chosen may have lost its row since."""
        if self.chunks:
            return True
        out = self._out
        if not out:
            return any(map(len, self._decodes))
        return any(row not in out for chosen in self._decodes for row in chosen)

    @property
    def _out(self) -> set[int]:
        """Rows that compute nothing, chosen or not."""
        if not self.victims:
            return self._standing
        return self._standing | {victim.row for victim, _ in self.victims.values()}

    def kv_limit(self, lane: Lane) -> float:
        return lane.service.kv_share * self._total_pages

    def pages_to_start(self, sequence: Sequence, padding: int) -> int:
        """Pages of an admission: for the tokens there are, or a run for the whole answer."""
        tokens = sequence.end_tokens if self.is_contiguous else sequence.token_count
        return sequence.layout.most_pages(max(tokens, padding))

    @property
    def has_pages(self) -> bool:
        """There are pages for one more block."""
        return self.pages.available >= self.groups

    def is_over(self, lane: Lane) -> bool:
        return lane.pages > self.kv_limit(lane)

    def add_decodes(self, chosen: list[int]) -> None:
        """Add decoding rows; those that need a page first get it in the order of their keys."""
        self._decodes.append(chosen)
        rows = self._rows
        wanting = [
            sequence
            for sequence in rows.sequences_of(rows.columns.without_room(chosen))
            if sequence.order not in self.victims
        ]
        if not wanting:
            return
        wanting.sort(key=attrgetter("key"))
        groups = self.groups
        if groups * len(wanting) <= self.pages.available:
            pages = self.pages.take(groups * len(wanting))
            for place, sequence in enumerate(wanting):
                self._grown[sequence.row] = pages[place * groups : (place + 1) * groups]
            return
        for sequence in wanting:
            # Those before it may have taken its row.
            if sequence.order not in self.victims:
                if self._has_page_for(sequence):
                    self._grown[sequence.row] = self.pages.take(self.groups)
                else:
                    self._standing.add(sequence.row)

    def add_chunk(self, sequence: Sequence, count: int) -> Chunk | None:
        """Give a running sequence up to `count` tokens, as many as pages can be had for."""
        start, held = sequence.position, sequence.blocks
        padding = sequence.padding_left
        chunk = Chunk(sequence, sequence.row, start, held, [], is_admission=False, padding=padding)
        if sequence.room - start < 1 and not self._has_page_for(sequence):
            return None
        self.extend(chunk, count)
        self.chunks[sequence.order] = chunk
        return chunk

    def admit(self, sequence: Sequence, found: Found, count: int, padding: int) -> Chunk:
        """Start a waiting sequence; the pages must be there."""
        if found.reused:
            self.pages.share(sequence.layout.held(found.reused))
        chunk = Chunk(
            sequence,
            found.row,
            found.tokens(sequence),
            0,
            found.reused,
            is_admission=True,
            padding=padding,
        )
        if self.is_contiguous:
            chunk.taken = self.pages.take_run(self.pages_to_start(sequence, padding))
        if found.tail is not None:
            # Whoever has it may yet be preempted, and must not leave it to somebody else.
            self.pages.share(found.tail)
        self.extend(chunk, count)
        if found.tail is not None:
            self.copies += tuple(zip(found.tail, chunk.taken, strict=False))
        self.chunks[sequence.order] = chunk
        return chunk

    def extend(self, chunk: Chunk, count: int) -> int:
        """Add up to `count` tokens to a chunk, without preemption; how many were added."""
        layout, blocks, end = chunk.sequence.layout, chunk.blocks, chunk.start + chunk.count
        added = min(count, chunk.rest)
        missing = layout.blocks_for(end + added) - blocks
        # Padding may have been longer than what follows it, and a run holds the whole answer.
        if missing > 0:
            available = self.pages.available // layout.groups
            if missing > available:
                missing = available
                added = (blocks + available) * layout.page_tokens - end
            chunk.taken += self.pages.take(missing * layout.groups)
        chunk.count += added
        return added

    def preempt(self, victim: Sequence, reason: str) -> None:
        """Take a running sequence's row and pages away, those of this step too."""
        self.victims[victim.order] = (victim, reason)
        if victim.row in self._grown:
            self.pages.give_back(self._grown.pop(victim.row))
        chunk = self.chunks.pop(victim.order, None)
        if chunk is not None:
            self.pages.give_back(chunk.taken)
        self.pages.release(victim.pages)

    def candidates(self, lanes: Ordered[Lane], *, spared: bool = False) -> Iterator[Sequence]:
        """Running sequences of the given classes that may still be preempted, worst first.

        Ghosts come first in a class, as they compute nothing that anybody waits for. `spared`: also
        those who were preempted often enough.
        """
        for lane in lanes:
            yield from self._worst_first(lane.ghosts)
            yield from self._worst_first(lane.running if spared else lane.exposed)

    def _worst_first(self, part: ByKey) -> Iterator[Sequence]:
        """Those of a part of a class who are no victims yet."""
        passed = self._passed.get(part, 0)
        is_run = True
        for place in range(len(part) - 1 - passed, -1, -1):
            victim = part[place]
            if victim.order not in self.victims:
                is_run = False
                yield victim
            elif is_run:
                # Victims stay victims: the next search begins behind them.
                passed += 1
                self._passed[part] = passed

    def drop_standing(self) -> None:
        """Forget decodes that got no page: nobody moves, so another choice is to be made."""
        self._decodes.clear()
        self._standing.clear()

    def force_page_for(self, sequence: Sequence) -> bool:
        """See that there is a free page, by preempting whoever is last; False if there is none."""
        if self.has_pages:
            return True
        for victim in self.candidates(self._lanes[::-1], spared=True):
            if victim is not sequence:
                self.preempt(victim, "nobody could move otherwise")
                self.is_short_of_pages = True
                if self.has_pages:
                    return True
        return False

    def _has_page_for(self, sequence: Sequence) -> bool:
        while not self.has_pages:
            victim = self._victim_for(sequence)
            if victim is None:
                return False
            self.preempt(victim, "out of pages")
            self.is_short_of_pages = True
        return True

    def _victim_for(self, sequence: Sequence) -> Sequence | None:
        """Who gives way: classes over their share of pages, else the lowest class, worst key."""
        if sequence.ghost:
            return None
        lane = sequence.lane
        over = [each for each in self._lanes[::-1] if self.is_over(each) and each.running]
        lanes = over or [each for each in self._lanes[::-1] if each.rank >= lane.rank]
        for victim in self._behind(sequence, lanes):
            if victim.ghost or self._has_lost(victim, sequence):
                return victim
        if sequence is not lane.running[0]:
            return None
        return next(self._behind(sequence, lanes, spared=True), None)

    def _behind(
        self, sequence: Sequence, lanes: Ordered[Lane], *, spared: bool = False
    ) -> Iterator[Sequence]:
        """Those of `lanes` that a sequence may take pages from, but for their own protection."""
        lane = sequence.lane
        for victim in self.candidates(lanes, spared=spared):
            if victim.lane is lane:
                if victim.key <= sequence.key:
                    return
            elif victim.lane.rank < lane.rank and self.is_over(lane):
                continue
            yield victim

    def _has_lost(self, victim: Sequence, sequence: Sequence) -> bool:
        """Hysteresis inside a class: the victim ran for a while, or its deadline is far behind."""
        return (
            victim.lane is not sequence.lane
            or self._number - victim.started_step >= SHORTEST_RUN_STEPS
            or victim.key[1] - sequence.key[1] >= MARGIN_STEPS
        )

    # The finished step

    def decode_rows(self) -> DecodeRows:
        """Everybody who decodes."""
        grown = self._grown
        numbers, request_ids, starts, tokens, table_starts, places = self._rows.columns.decodes(
            self._decodes, self._out, self._rows.request_ids, list(grown)
        )
        new_pages: tuple[tuple[int, tuple[int, ...]], ...] = ()
        if grown:
            new_pages = tuple(
                [(place, tuple(pages)) for place, pages in zip(places, grown.values(), strict=True)]
            )
        return DecodeRows(numbers, request_ids, starts, tokens, table_starts, new_pages)

    def chunk_rows(self) -> tuple[RowPlan, ...]:
        """Everybody else."""
        if not self.chunks:
            return ()
        return tuple([_chunk_row(chunk) for chunk in self.chunks.values()])

    def admissions(self) -> tuple[Admission, ...]:
        if not self.chunks:
            return ()
        return tuple(
            [
                Admission(
                    chunk.row,
                    chunk.sequence.request,
                    tuple(chunk.sequence.known_tokens[chunk.sequence.prompt_tokens :]),
                    chunk.start,
                    chunk.padding,
                )
                for chunk in self.chunks.values()
                if chunk.is_admission
            ]
        )

    def preemptions(self) -> tuple[Preemption, ...]:
        if not self.victims:
            return ()
        return tuple(
            [Preemption(victim.row, victim.id, reason) for victim, reason in self.victims.values()]
        )


def _chunk_row(chunk: Chunk) -> RowPlan:
    sequence, end = chunk.sequence, chunk.start + chunk.count
    if chunk.padding:
        tokens, wants_token, scores = (0,) * chunk.count, False, False
    else:
        # Who computes a chunk has no tokens of plain steps.
        known = sequence.known_tokens
        tokens = tuple(known[chunk.start : end])
        wants_token = end == len(known) and sequence.request.max_new_tokens > 0
        scores = sequence.needs_scores(chunk.start)
    return RowPlan(
        row=chunk.row,
        request_id=sequence.id,
        start=chunk.start,
        tokens=tokens,
        table_start=chunk.table_start,
        new_pages=(*chunk.reused, *chunk.taken),
        wants_token=wants_token,
        score_prompt=scores,
        is_padding=chunk.padding > 0,
    )
