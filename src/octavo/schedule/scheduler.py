"""Which request computes what in each step: plan, commit, on_result."""

from __future__ import annotations

from bisect import bisect_left, insort

from octavo.core.clock import Clock, monotonic
from octavo.core.errors import EngineError, InvalidRequest, SettingsError
from octavo.core.ids import RequestId
from octavo.core.output import EngineOutput
from octavo.core.request import EventSink, FinishReason, Request, RequestState, move
from octavo.memory.cache import PageCache
from octavo.memory.waste import Waste, measure_waste
from octavo.schedule.accept import accept_tokens, check_fits, collect_scores
from octavo.schedule.counters import SchedulerCounters
from octavo.schedule.plan import Admission, Preemption, RowPlan, RowResult, StepPlan, StepResult
from octavo.schedule.planner import Planner, StepLimits, StepView
from octavo.schedule.producers import PrefixProducers
from octavo.schedule.queue import WaitingQueue
from octavo.schedule.sequence import Sequence


def _ignore(event: object) -> None:
    """The sink of those who want no events."""


def _order(sequence: Sequence) -> int:
    return sequence.order


class Scheduler:
    """Continuous batching over a paged KV cache.

    One step is `plan()`, `commit(plan)`, the executor, `on_result(result)`. `plan` decides and
    changes nothing; `cancel`, `finish`, `fail` and `repair` make a plan that is not yet committed
    void, `add` does not. They may come while a step is in flight: what it brings for a request that
    has ended is dropped. Not thread-safe; the same calls give the same plans.
    """

    def __init__(
        self,
        *,
        pages: int,
        page_tokens: int,
        token_budget: int = 2048,
        max_rows: int = 64,
        max_context: int,
        max_chunk_tokens: int | None = None,
        fingerprint: bytes = b"",
        clock: Clock = monotonic,
        emit: EventSink = _ignore,
        slab_pages: int = 64,
    ):
        for name, value in (
            ("page_tokens", page_tokens),
            ("token_budget", token_budget),
            ("max_rows", max_rows),
            ("max_context", max_context),
            ("max_chunk_tokens", token_budget if max_chunk_tokens is None else max_chunk_tokens),
        ):
            if value < 1:
                raise SettingsError(f"must be at least 1, not {value}", field=name)
        self.cache = PageCache(pages, slab_pages=slab_pages)
        self.counters = SchedulerCounters()
        self.page_tokens = page_tokens
        self.max_context = max_context
        self._limits = StepLimits(
            token_budget, max_rows, token_budget if max_chunk_tokens is None else max_chunk_tokens
        )
        self._limit_tokens = min(max_context, pages * page_tokens)
        self._fingerprint = fingerprint
        self._clock = clock
        self._emit = emit
        self._sequences: dict[RequestId, Sequence] = {}
        self._running: list[Sequence] = []
        self._waiting = WaitingQueue()
        self._producers = PrefixProducers()
        self._free_rows = set(range(max_rows))
        self._closed_rows: list[int] = []
        self._arrivals = 0
        self._committed = 0
        self._planned: StepPlan | None = None
        self._in_flight: StepPlan | None = None

    @property
    def has_work(self) -> bool:
        """A request has not ended."""
        return bool(self._sequences)

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """Requests without a row, those that wait for a prefix included."""
        return len(self._sequences) - len(self._running)

    @property
    def limit_tokens(self) -> int:
        """Most tokens, prompt and answer, that a request can have: context or whole cache."""
        return self._limit_tokens

    def waste(self) -> Waste:
        """Unwritten part of the pages that running requests hold."""
        tables = ((sequence.table, sequence.computed) for sequence in self._running)
        return measure_waste(tables, self.page_tokens)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: its id is in use or its prompt is empty.
            PromptTooLong: the prompt does not fit the served context.
            CapacityError: the prompt does not fit the whole KV cache.
        """
        if request.id in self._sequences:
            raise InvalidRequest(f"a request {request.id} is already there", field="id")
        pool_tokens = self.cache.pool.pages * self.page_tokens
        check_fits(request, max_context=self.max_context, pool_tokens=pool_tokens)
        sequence = Sequence(request, self._arrivals, self.page_tokens, self._fingerprint)
        self._arrivals += 1
        self._sequences[request.id] = sequence
        self._waiting.push(sequence)

    def cancel(self, request_id: RequestId) -> bool:
        """End a request in any state at once; False if it is not there (any more)."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return False
        self._end(sequence, RequestState.CANCELLED, "cancelled")
        return True

    def finish(self, request_id: RequestId, reason: FinishReason = FinishReason.STOP) -> bool:
        """End a request whose answer is complete for its reader (a stop string was found)."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return False
        self._end(sequence, RequestState.FINISHED, reason.value)
        return True

    def fail(self, request_id: RequestId, error: str) -> EngineOutput | None:
        """End a request with an error; the news for its reader, None if it is not there."""
        sequence = self._sequences.get(request_id)
        return None if sequence is None else self._failed(sequence, error)

    def plan(self) -> StepPlan:
        """Decide the next step; it has rows whenever there is work.

        Raises:
            ValueError: a step is in flight.
        """
        if self._in_flight is not None:
            raise ValueError(f"step {self._in_flight.number} has no result yet")
        view = StepView(
            running=self._running,
            waiting=self._waiting,
            free_rows=tuple(self._free_rows),
            closed_rows=tuple(self._closed_rows),
            producers=self._producers.marks,
            cache=self.cache,
        )
        # Remembered only to recognise it in commit.
        self._planned = Planner(self._committed, self._limits, view).plan()
        return self._planned

    def commit(self, plan: StepPlan) -> None:
        """Apply the latest plan; a plan with rows is then in flight until its result.

        Raises:
            ValueError: it is not the latest plan, or something ended since it was made.
        """
        if plan != self._planned:
            raise ValueError(f"plan {plan.number} is void: the state has changed since")
        self._planned = None
        self._committed += 1
        self._free_rows.update(plan.closed_rows)
        self._closed_rows = []
        for preemption in plan.preemptions:
            self._preempt(preemption)
        rows = {row.request_id: row for row in plan.rows}
        for admission in plan.admissions:
            self._admit(admission, rows[admission.request.id])
        for wait in plan.waits:
            waiting = self._sequences[wait.request_id]
            self._waiting.remove(waiting)
            self._producers.park(waiting, wait.key)
            self.counters.prefix_waits += 1
        for row in plan.rows:
            self._take_pages(row)
        self.counters.evicted_pages = self.cache.evicted_pages
        if not plan.is_empty:
            self.counters.steps += 1
            self._in_flight = plan

    def on_result(self, result: StepResult) -> list[EngineOutput]:
        """Take the result of the step in flight; the news of its requests, in row order.

        A row that is missing in the result has not happened and is planned again. Results of
        requests that have ended are dropped.

        Raises:
            ValueError: the result is not that of the step in flight, or has a row the plan lacks.
        """
        plan = self._in_flight
        if plan is None or plan.number != result.number:
            if plan is None and not result.rows and result.number == self._committed - 1:
                return []
            raise ValueError(f"step {result.number} is not in flight")
        rows = {(row.row, row.request_id): row for row in plan.rows}
        for row_result in result.rows:
            if (row_result.row, row_result.request_id) not in rows:
                raise ValueError(f"row {row_result.row} is not part of step {plan.number}")
        self._in_flight = None
        self._planned = None
        outputs = []
        for row_result in result.rows:
            sequence = self._sequences.get(row_result.request_id)
            if sequence is None or sequence.row != row_result.row:
                continue
            row = rows[row_result.row, row_result.request_id]
            output = self._advance(sequence, row, row_result)
            if output is not None:
                outputs.append(output)
        return outputs

    def audit(self) -> list[str]:
        """Findings against the invariants of pages and rows; empty when all hold."""
        findings = self.cache.audit([sequence.table for sequence in self._running])
        used = [sequence.row for sequence in self._running]
        rows = sorted((*used, *self._free_rows, *self._closed_rows))
        if rows != list(range(self._limits.max_rows)):
            findings.append(f"rows are used, free or closed as {rows}")
        waiting = len(self._waiting) + self._producers.parked_count
        if waiting != self.waiting_count:
            findings.append(f"{waiting} requests are queued, {self.waiting_count} wait")
        return findings

    def repair(self) -> None:
        """Rebuild pool and index from the page tables; running requests go on undisturbed."""
        self.cache.repair([sequence.table for sequence in self._running])
        for sequence in self._running:
            sequence.published_pages = 0
        self.counters.repairs += 1
        self._planned = None

    def _advance(self, sequence: Sequence, row: RowPlan, result: RowResult) -> EngineOutput | None:
        if result.error is not None:
            return self._failed(sequence, result.error)
        try:
            prompt_logprobs = collect_scores(sequence, row, result)
        except EngineError as error:
            return self._failed(sequence, str(error))
        self.counters.computed_tokens += len(row.tokens)
        self.counters.chunks += not sequence.is_decoding
        sequence.computed = row.start + len(row.tokens)
        self._publish(sequence)
        tokens, reason = accept_tokens(sequence, result, self._limit_tokens)
        if reason is not None:
            self._end(sequence, RequestState.FINISHED, reason.value)
        if not tokens and prompt_logprobs is None and reason is None:
            return None
        return EngineOutput(
            request_id=sequence.id,
            token_ids=tokens,
            logprobs=None if result.logprobs is None else result.logprobs[: len(tokens)],
            prompt_logprobs=prompt_logprobs,
            cached_tokens=sequence.cached_tokens or 0,
            finish_reason=reason,
        )

    def _publish(self, sequence: Sequence) -> None:
        full = sequence.computed // self.page_tokens
        if full == sequence.published_pages:
            return
        for page in range(sequence.published_pages, full):
            self.cache.publish(sequence.table[page], sequence.keys[page], sequence.parent_key(page))
        self._wake(sequence, sequence.published_pages, full)
        sequence.published_pages = full

    def _wake(self, sequence: Sequence, first_page: int, last_page: int) -> None:
        for woken in self._producers.clear(sequence, first_page, last_page):
            self._waiting.push(woken)

    def _preempt(self, preemption: Preemption) -> None:
        sequence = self._sequences[preemption.request_id]
        self._free_rows.add(sequence.row)
        self._stop(sequence)
        self._move(sequence, RequestState.PREEMPTED, "out of pages")
        self._waiting.push(sequence)
        self.counters.preemptions += 1

    def _admit(self, admission: Admission, row: RowPlan) -> None:
        sequence = self._sequences[admission.request.id]
        self._waiting.remove(sequence)
        self._move(sequence, RequestState.RUNNING, "admitted")
        reused_pages = admission.cached_tokens // self.page_tokens
        self.cache.share(row.new_pages[:reused_pages])
        sequence.table = list(row.new_pages[:reused_pages])
        sequence.published_pages = reused_pages
        sequence.computed = admission.cached_tokens
        sequence.row = admission.row
        if sequence.cached_tokens is None:
            sequence.cached_tokens = admission.cached_tokens
        self._free_rows.remove(admission.row)
        insort(self._running, sequence, key=_order)
        self._producers.mark(sequence, reused_pages)
        self.counters.admitted += 1
        self.counters.hit_pages += reused_pages

    def _take_pages(self, row: RowPlan) -> None:
        table = self._sequences[row.request_id].table
        # Reused pages of an admission are in the table already.
        for page in row.new_pages[len(table) - row.table_start :]:
            self.cache.take(page)
            table.append(page)

    def _stop(self, sequence: Sequence) -> None:
        """Take a running sequence off its row and pages; its marks go, who waited wakes up."""
        del self._running[bisect_left(self._running, sequence.order, key=_order)]
        self._wake(sequence, 0, sequence.marked_pages)
        self.cache.release(sequence.leave())

    def _failed(self, sequence: Sequence, error: str) -> EngineOutput:
        self._end(sequence, RequestState.FAILED, error)
        return EngineOutput(
            sequence.id,
            cached_tokens=sequence.cached_tokens or 0,
            finish_reason=FinishReason.ERROR,
            error=error,
        )

    def _end(self, sequence: Sequence, state: RequestState, reason: str) -> None:
        del self._sequences[sequence.id]
        if sequence.state is RequestState.RUNNING:
            self._closed_rows.append(sequence.row)
            self._stop(sequence)
        elif not self._producers.unpark(sequence):
            self._waiting.remove(sequence)
        self._move(sequence, state, reason)
        self.counters.finished += state is RequestState.FINISHED
        self.counters.cancelled += state is RequestState.CANCELLED
        self.counters.failed += state is RequestState.FAILED
        self._planned = None

    def _move(self, sequence: Sequence, after: RequestState, reason: str) -> None:
        sequence.state = move(
            sequence.id,
            sequence.state,
            after,
            at_seconds=self._clock(),
            reason=reason,
            emit=self._emit,
        )
