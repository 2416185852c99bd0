"""Everything the scheduler knows, and the only code that changes it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered

from octavo.core.ids import RequestId
from octavo.core.output import EngineOutput
from octavo.core.request import EventSink, FinishReason, RequestState, move
from octavo.memory.cache import PageCache
from octavo.memory.misses import MissReason
from octavo.schedule.counters import SchedulerCounters
from octavo.schedule.events import Decision
from octavo.schedule.lane import Lane
from octavo.schedule.plan import Admission, Preemption, PrefixWait, RowPlan, StepPlan
from octavo.schedule.planner import Planner
from octavo.schedule.producers import PrefixProducers
from octavo.schedule.rows import Rows
from octavo.schedule.sequence import Sequence
from octavo.schedule.tails import PromptTails

_ASIDE = b"aside "
"""In front of the names that held back requests are parked on; no key of a page begins so."""


class Ledger:
    """Requests, classes, rows and pages.

    With `keeps_rows` a finished request stays on its row as a ghost, which computes on and makes no
    news, until no other one runs.
    """

    def __init__(
        self,
        *,
        lanes: list[Lane],
        cache: PageCache,
        rows: Rows,
        max_rows: int,
        limit_tokens: int,
        keeps_rows: bool,
        is_contiguous: bool,
        emit: EventSink | None,
    ):
        self.lanes = lanes
        self.cache = cache
        self.rows = rows
        self.counters = SchedulerCounters()
        self.producers = PrefixProducers()
        self.tails = PromptTails()
        self.sequences: dict[RequestId, Sequence] = {}
        self.free_rows = set(range(max_rows))
        self.closed_rows: list[int] = []
        self.limit_tokens = limit_tokens
        self.ghosts = 0
        self.keeps_rows = keeps_rows
        self.is_contiguous = is_contiguous
        self._emit = emit

    @property
    def running(self) -> Iterator[Sequence]:
        """Everyone with a row, ghosts too."""
        return (sequence for lane in self.lanes for sequence in lane.running)

    def add(self, sequence: Sequence, now: float) -> None:
        """A request arrives."""
        self._push(sequence, now)
        self._wait(sequence, now)
        self.sequences[sequence.id] = sequence

    def hold_back(self, sequence: Sequence) -> None:
        """Take a waiting request aside until it is let go, unless it sits aside already."""
        if sequence.parked_on is None:
            sequence.lane.queue.remove(sequence)
            self.producers.park(sequence, _ASIDE + sequence.id.encode())
            layout = sequence.layout
            found = layout.look_up(self.cache, sequence.reusable_keys)
            sequence.kept_tokens = len(found) // layout.groups * layout.page_tokens

    def let_go(self, sequence: Sequence, now: float) -> None:
        """Queue a request again that was held back."""
        if self.producers.unpark(sequence):
            self._push(sequence, now)

    def recall(self, now: float) -> int:
        """Queue everybody again who sits aside, whatever for; how many they are."""
        aside = self.producers.forget()
        for sequence in aside:
            self._push(sequence, now)
        return len(aside)

    # What a plan does

    def apply(self, plan: StepPlan, planner: Planner, now: float) -> int:
        """Make a plan true; how many requests that never ran it admitted."""
        self.free_rows.update(plan.closed_rows)
        self.closed_rows = []
        rows = {row.request_id: row for row in plan.chunks} if plan.admissions else {}
        # First, because a victim may be the only one who holds a page that is reused.
        for admission in plan.admissions:
            reused = self._reused_pages(admission, rows[admission.request.id])
            if reused:
                self.cache.share(self.rows.layout.held(reused))
        copied = [page for page, _ in plan.copies]
        if copied:
            self.cache.share(copied)
        for preemption in plan.preemptions:
            self._preempt(preemption, now)
        for page in planner.draft.passed_over:
            self.cache.drop(page)
        joined = 0
        for admission in plan.admissions:
            row = rows[admission.request.id]
            sequence = self.sequences[row.request_id]
            joined += self._admit(sequence, admission, row, plan.number, now)
            pending = len(sequence.known_tokens) - admission.cached_tokens
            if len(row.tokens) < pending and not row.is_padding:
                sequence.home.counters.chunked += 1
                part = f"{len(row.tokens)} of {pending} tokens"
                self._tell("chunked", sequence, now, f"{part}: {planner.why_cut(row)}")
        for wait in plan.waits:
            self._park(wait, now)
        self._take_pages(plan)
        # They are read before anything is written, and the next plan comes later.
        for page in copied:
            self.cache.release([page])
        self.counters.copied_pages += len(copied)
        for sequence in planner.lent_pages:
            sequence.home.counters.lent += 1
            self._tell("lent", sequence, now, "its class holds more pages than its share")
        self.counters.evicted_pages = self.cache.evicted_pages
        return joined

    def charge(self, planner: Planner, spent: dict[Lane, float], scale: float, now: float) -> None:
        """Book the time of a step to its classes; `scale` is measured ÷ predicted time."""
        for lane, quantum, seconds in planner.charges:
            lane.deficit_seconds += quantum - seconds * scale
        for lane in spent:
            lane.served_seconds = now
        for lane in self.lanes:
            if not lane.has_work:
                lane.deficit_seconds = 0.0
                lane.served_seconds = None
            else:
                # Debts of a lonely class must not be held against it for ever.
                lane.deficit_seconds = max(lane.deficit_seconds, -1.0)

    def _preempt(self, preemption: Preemption, now: float) -> None:
        sequence = self._by_row(preemption)
        sequence.lost_tokens, sequence.kept_tokens = self.rows.computed.item(sequence.row), None
        self.free_rows.add(sequence.row)
        self._stop(sequence)
        if sequence.ghost:
            self.ghosts -= 1
            return
        sequence.preemptions += 1
        sequence.extend_keys()
        self._move(sequence, RequestState.PREEMPTED, preemption.reason, now)
        self._wait(sequence, now)
        self._push(sequence, now)
        self.counters.preemptions += 1
        sequence.home.counters.preempted += 1

    def _by_row(self, preemption: Preemption) -> Sequence:
        sequence = self.sequences.get(preemption.request_id)
        if sequence is not None and sequence.row == preemption.row:
            return sequence
        return next(each for each in self.running if each.row == preemption.row)

    def _admit(
        self, sequence: Sequence, admission: Admission, row: RowPlan, step: int, now: float
    ) -> bool:
        lane, home, is_new = sequence.lane, sequence.home, not sequence.was_preempted
        cached_tokens = admission.cached_tokens
        lane.queue.remove(sequence)
        tenant = sequence.request.tenant
        if is_new:
            level = lane.queue.level(tenant)
            sequence.key = (
                level,
                sequence.deadline_step,
                sequence.remaining_tokens,
                sequence.order,
            )
            home.counters.queue_seconds += now - sequence.queued_seconds
        tokens = self._unwait(sequence)
        lane.queue.charge(tenant, tokens - cached_tokens)
        reason = "admitted"
        if not is_new:
            way = sequence.way_back(cached_tokens)
            self.counters.returns[way] += 1
            reason = f"{way}: {cached_tokens} of {sequence.lost_tokens} tokens are there"
        self._move(sequence, RequestState.RUNNING, reason, now)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = cached_tokens
        reused = self._reused_pages(admission, row)
        blocks = sequence.sit_down(admission.row, reused, cached_tokens)
        sequence.padding = admission.padding
        sequence.started_step = step
        self.free_rows.remove(admission.row)
        lane.start(sequence)
        self.producers.mark(sequence, blocks)
        if is_new and blocks < len(sequence.keys):
            self._explain_miss(sequence, blocks, now)
        self.counters.admitted += 1
        held_pages = sequence.held_pages if blocks else 0
        home.pages += held_pages
        self.counters.hit_pages += held_pages
        home.counters.admitted += 1
        return is_new

    def _explain_miss(self, sequence: Sequence, found_pages: int, now: float) -> None:
        """Count and tell why less than possible of a prompt came from the cache, if it did."""
        root = sequence.root
        if root is None or found_pages >= min(sequence.reusable_pages, len(sequence.keys)):
            return
        first_page = None if found_pages else tuple(sequence.tokens[: sequence.page_tokens])
        key = sequence.keys[found_pages]
        reason = self.cache.explain_miss(key, root, first_page).value
        if self.cache.look_up([key]):
            reason = MissReason.EVICTED.value  # of a window that is needed to go on from there
        self.counters.prefix_misses[reason] += 1
        self._tell("prefix_missed", sequence, now, f"{reason} after {found_pages} pages")

    def _reused_pages(self, admission: Admission, row: RowPlan) -> tuple[int, ...]:
        layout = self.rows.layout
        return row.new_pages[: admission.cached_tokens // layout.page_tokens * layout.groups]

    def _take_pages(self, plan: StepPlan) -> None:
        decodes, rows, groups = plan.decodes, self.rows, self.rows.layout.groups
        taken: list[int] = []
        # Not by their ids: ghosts have none any more.
        for place, pages in decodes.new_pages:
            number = decodes.rows[place]
            owner = rows.sequences[number]
            assert owner is not None
            owner.table += pages
            owner.home.pages += groups
            taken += pages
            rows.room[number] += rows.page_tokens
        for row in plan.chunks:
            if row.new_pages:
                sequence = rows.sequences[row.row]
                assert sequence is not None
                # Reused pages of an admission are in the table already.
                pages = row.new_pages[len(sequence.table) - row.table_start * groups :]
                sequence.add_pages(pages)
                sequence.home.pages += len(pages)
                taken += pages
        if taken:
            self.cache.take(taken)

    def _park(self, wait: PrefixWait, now: float) -> None:
        producer = self.producers.marks.get(wait.key)
        if producer is None:  # it lost its row in this very step
            return
        waiting = self.sequences[wait.request_id]
        waiting.lane.queue.remove(waiting)
        self.producers.park(waiting, wait.key)
        self.counters.prefix_waits += 1
        if producer.lane.rank > waiting.lane.rank:
            self._relane(producer, waiting.lane)
            producer.home.counters.lent += 1
            self._tell("lent", producer, now, f"class {waiting.lane.service.name} waits for it")

    def _relane(self, sequence: Sequence, lane: Lane) -> None:
        """Schedule a running sequence in another class."""
        was_decoding = self.rows.is_decoding(sequence)
        sequence.lane.stop(sequence)
        sequence.lane = lane
        lane.start(sequence)
        if was_decoding:
            lane.settle(sequence)

    # Progress and ends

    def publish(self, sequence: Sequence, computed: int) -> None:
        """Make the pages that have become full findable, and wake those who wait for them."""
        tail = sequence.tail
        if tail is not None and not sequence.holds_tail and computed >= sequence.prompt_tokens:
            self.tails.add(sequence, tail)
            self._wake(sequence, [tail])
        full = computed // sequence.page_tokens
        first = sequence.published_pages
        if full > first and sequence.root is not None:
            sequence.extend_keys()
            self._publish_blocks(sequence, first, full)
            if first < sequence.marked_pages:
                self._wake(sequence, sequence.keys[first : min(full, sequence.marked_pages)])
            sequence.published_pages = full
        if sequence.layout.windowed:
            left = sequence.move_window()
            sequence.home.pages -= len(left)
            self.cache.release(left, level=self._level(sequence))

    def _publish_blocks(self, sequence: Sequence, first: int, end: int) -> None:
        """Make the pages of blocks findable; windows need none before theirs."""
        layout = sequence.layout
        if not layout.windowed:
            self.cache.publish_run(sequence.table, sequence.keys, first, end)
            return
        for block in range(first, end):
            key, start = sequence.keys[block], block * layout.groups
            self.cache.publish(sequence.table[start], key, sequence.parent_key(block))
            if block >= sequence.window_block:
                pages = sequence.table[start + 1 : start + layout.groups]
                for page, group_key in zip(pages, layout.block_keys(key), strict=True):
                    self.cache.publish(page, group_key, None)

    def end(self, sequence: Sequence, state: RequestState, reason: str, now: float) -> None:
        """End a request in any state."""
        del self.sequences[sequence.id]
        if sequence.row >= 0:
            sequence.home.note_answer(sequence.generated_tokens)
            stays = self.keeps_rows and state is RequestState.FINISHED and sequence.pending > 0
            if stays and self._others_run(sequence):
                sequence.lane.make_ghost(sequence)
                self.ghosts += 1
            else:
                self.closed_rows.append(sequence.row)
                self._stop(sequence)
        else:
            self._unwait(sequence)
            if not self.producers.unpark(sequence):
                sequence.lane.queue.remove(sequence)
        self._move(sequence, state, reason, now)
        if state is RequestState.FINISHED:
            self.counters.finished += 1
            sequence.home.counters.finished += 1
        elif state is RequestState.CANCELLED:
            self.counters.cancelled += 1
        else:
            self.counters.failed += 1
        if self.ghosts and not self._others_run(sequence):
            self._lay_ghosts()

    def failed(self, sequence: Sequence, error: str, now: float) -> EngineOutput:
        """End a request with an error; the news for its reader."""
        self.end(sequence, RequestState.FAILED, error, now)
        return EngineOutput(
            sequence.id,
            cached_tokens=sequence.cached_tokens or 0,
            finish_reason=FinishReason.ERROR,
            error=error,
        )

    def close_ghost(self, ghost: Sequence) -> None:
        """A ghost leaves its row."""
        self.ghosts -= 1
        self.closed_rows.append(ghost.row)
        self._stop(ghost)

    def _others_run(self, sequence: Sequence) -> bool:
        return any(each is not sequence and not each.ghost for each in self.running)

    def _lay_ghosts(self) -> None:
        for ghost in [ghost for lane in self.lanes for ghost in lane.ghosts]:
            self.close_ghost(ghost)

    def _stop(self, sequence: Sequence) -> None:
        """Take a running sequence off its row and pages; its marks go, who waited wakes up."""
        sequence.lane.stop(sequence)
        sequence.lane = home = sequence.home
        # Marks of pages before that have gone when they were published.
        self._wake(sequence, self.producers.marked_keys(sequence))
        if sequence.holds_tail:
            self.tails.remove(sequence)
        pages = sequence.leave()
        home.pages -= len(pages)
        self.cache.release(pages, level=self._level(sequence))

    def _level(self, sequence: Sequence) -> int:
        """Pages of stricter classes are kept longer."""
        return len(self.lanes) - 1 - sequence.home.rank

    def _wake(self, sequence: Sequence, keys: Ordered[bytes]) -> None:
        for woken in self.producers.clear(sequence, keys) if keys else ():
            woken.lane.queue.push(woken)

    def come_home(self, sequence: Sequence) -> None:
        """A producer that was lent a class returns, unless somebody still waits for it."""
        if not self.producers.has_waiters(sequence):
            self._relane(sequence, sequence.home)

    def _push(self, sequence: Sequence, now: float) -> None:
        lane = sequence.lane
        if lane.served_seconds is None:
            lane.served_seconds = now
        lane.queue.push(sequence)

    def _wait(self, sequence: Sequence, now: float) -> None:
        home = sequence.home
        if not (home.waiting or len(home.prefilling)):
            home.pace.rest()
        home.pace.begin(now)
        home.waiting += 1
        home.waiting_tokens += len(sequence.known_tokens)

    def _unwait(self, sequence: Sequence) -> int:
        """A request waits no more; how many tokens it has."""
        home, tokens = sequence.home, len(sequence.known_tokens)
        home.waiting -= 1
        home.waiting_tokens -= tokens
        return tokens

    def _move(self, sequence: Sequence, after: RequestState, reason: str, now: float) -> None:
        sequence.state = move(
            sequence.id,
            sequence.state,
            after,
            at_seconds=now,
            reason=reason,
            emit=self._emit,
        )

    def _tell(self, kind: str, sequence: Sequence, now: float, reason: str) -> None:
        if self._emit is not None:
            name = sequence.home.service.name
            self._emit(Decision(kind, sequence.id, name, now, reason))

    # Repair

    def repair(self) -> None:
        """Rebuild pool and index from the page tables alone."""
        self.cache.repair([sequence.pages for sequence in self.running])
        for sequence in self.running:
            sequence.published_pages = 0
        self.counters.repairs += 1
