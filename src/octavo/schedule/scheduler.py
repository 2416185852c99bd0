"""Which request computes what in each step: plan, commit, on_result."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from functools import partial

from octavo.core.clock import Clock, monotonic
from octavo.core.errors import InvalidRequest, Overloaded, SettingsError
from octavo.core.ids import RequestId
from octavo.core.output import EngineOutput
from octavo.core.request import EventSink, FinishReason, Request, RequestState
from octavo.core.service_classes import UNIFORM, ServiceClass, check_classes
from octavo.memory.cache import PageCache
from octavo.memory.layout import TableLayout
from octavo.memory.waste import Waste, measure_waste
from octavo.schedule.accept import check_fits
from octavo.schedule.audit import audit_ledger
from octavo.schedule.batching import Batching
from octavo.schedule.between import Between
from octavo.schedule.cost import CostModel, CostProfile
from octavo.schedule.counters import ClassCounters, ClassLoad, SchedulerCounters
from octavo.schedule.events import Decision, Starved
from octavo.schedule.forecast import Forecast
from octavo.schedule.gate import choose_lane, note_work, outlook_of
from octavo.schedule.lane import Lane
from octavo.schedule.ledger import Ledger
from octavo.schedule.plan import StepPlan, StepResult
from octavo.schedule.planner import Planner
from octavo.schedule.results import take_results
from octavo.schedule.rows import Rows
from octavo.schedule.sequence import Sequence, tenant_salt
from octavo.schedule.step_view import StepLimits, StepView


class Scheduler:
    """Continuous batching over a paged KV cache, with promises to service classes.

    One step is `plan()`, `commit(plan)`, the executor, `on_result(result)`. `plan` decides and
    changes nothing; `cancel`, `finish`, `fail` and `repair` make a plan that is not yet committed
    void, `add` does not. They may come while a step is in flight: what it brings for a request that
    has ended is dropped. Not thread-safe; the same calls at the same times give the same plans.

    Without `classes` everybody is alike, and a request may name any class. Without
    `max_step_seconds` steps are bounded in tokens only. `profile` warms the cost model up; without
    one, the size of the weights gives a first guess. `keeps_pages` is that of `PageCache`. Without
    `shares_prefixes` no request reuses a page of another; with `separates_tenants` none reuses a
    page of another tenant. Of several cache `groups` all but the first keep the last
    `window_tokens` of a request only, see `TableLayout`. `is_contiguous` reserves, to compare with,
    one run of pages for prompt and answer at each admission; then nothing is shared and nobody is
    preempted for pages.
    """

    def __init__(
        self,
        *,
        pages: int,
        page_tokens: int,
        groups: int = 1,
        window_tokens: int = 0,
        token_budget: int = 2048,
        max_rows: int = 64,
        max_context: int,
        max_chunk_tokens: int | None = None,
        fingerprint: bytes = b"",
        clock: Clock = monotonic,
        emit: EventSink | None = None,
        slab_pages: int = 64,
        keeps_pages: bool = True,
        shares_prefixes: bool = True,
        separates_tenants: bool = False,
        is_contiguous: bool = False,
        classes: Ordered[ServiceClass] = UNIFORM,
        max_step_seconds: float | None = None,
        starvation_seconds: float = 5.0,
        batching: str = "continuous",
        static_padding: bool = False,
        max_wait_seconds: float = 0.1,
        profile: CostProfile | None = None,
        weight_bytes: int | None = None,
    ):
        chunk = token_budget if max_chunk_tokens is None else max_chunk_tokens
        for name, value in (
            ("page_tokens", page_tokens),
            ("groups", groups),
            ("token_budget", token_budget),
            ("max_rows", max_rows),
            ("max_context", max_context),
            ("max_chunk_tokens", chunk),
        ):
            if value < 1:
                raise SettingsError(f"must be at least 1, not {value}", field=name)
        if groups > 1 and (is_contiguous or static_padding):
            raise SettingsError("must be 1 for contiguous layouts and padding", field="groups")
        self.page_tokens = page_tokens
        self.max_context = max_context
        self.is_contiguous = is_contiguous
        self._start_cost = partial(CostModel, profile, weight_bytes=weight_bytes)
        self.cost = self._start_cost()
        self._limits = StepLimits(
            token_budget, max_rows, chunk, max_step_seconds, starvation_seconds, is_contiguous
        )
        self.layout = TableLayout(page_tokens, groups, window_tokens, min(chunk, token_budget))
        self._limit_tokens = min(max_context, self.layout.most_tokens(pages))
        shares = shares_prefixes and not is_contiguous
        self._fingerprint = fingerprint if shares else None
        self._separates_tenants = separates_tenants
        self._clock = clock
        self._emit = emit
        rows = Rows(max_rows, self.layout)
        self._ledger = Ledger(
            lanes=[
                Lane(each, rank, rows.sequences) for rank, each in enumerate(check_classes(classes))
            ],
            cache=PageCache(
                pages, slab_pages=slab_pages, keeps_pages=keeps_pages, levels=len(classes)
            ),
            rows=rows,
            max_rows=max_rows,
            limit_tokens=self._limit_tokens,
            keeps_rows=batching == "static",
            is_contiguous=is_contiguous,
            emit=emit,
        )
        self._batching = Batching(batching, max_rows, max_wait_seconds, pads=static_padding)
        self._lanes = self._ledger.lanes
        self._by_name = {lane.service.name: lane for lane in self._lanes}
        self._arrivals = 0
        self._between = Between()
        self._committed = 0
        self._planned: tuple[StepPlan, Planner] | None = None
        self._in_flight: tuple[StepPlan, Planner] | None = None

    @property
    def cache(self) -> PageCache:
        return self._ledger.cache

    @property
    def counters(self) -> SchedulerCounters:
        return self._ledger.counters

    @property
    def class_counters(self) -> dict[str, ClassCounters]:
        """Counts by the name of the class."""
        return {name: lane.counters for name, lane in self._by_name.items()}

    @property
    def classes(self) -> tuple[ServiceClass, ...]:
        """Strictest first."""
        return tuple(lane.service for lane in self._lanes)

    def class_loads(self) -> dict[str, ClassLoad]:
        """How much there is of each class at this moment."""
        forecast, now = self._forecast(), self._clock()
        for lane in self._lanes:
            lane.tickets.expire(now)
        return {
            name: ClassLoad(
                waiting=lane.waiting,
                running=len(lane.running),
                wait_seconds=outlook_of(lane, forecast, now).wait_seconds,
            )
            for name, lane in self._by_name.items()
        }

    @property
    def between_seconds(self) -> float:
        """What usually passes between the computations of two steps."""
        return self._between.seconds

    @property
    def has_work(self) -> bool:
        """A request has not ended."""
        return bool(self._ledger.sequences)

    @property
    def running_count(self) -> int:
        return sum(len(lane.running) for lane in self._lanes) - self._ledger.ghosts

    @property
    def waiting_count(self) -> int:
        """Requests without a row, those that wait for a prefix included."""
        return len(self._ledger.sequences) - self.running_count

    @property
    def limit_tokens(self) -> int:
        """Most tokens, prompt and answer, that a request can have: context or whole cache."""
        return self._limit_tokens

    @property
    def patience_seconds(self) -> float:
        """How long an empty plan waits for company (policy "dynamic"); 0 if it does not."""
        return self._batching.patience(self._lanes, self._clock())

    def class_of(self, request_id: RequestId) -> str | None:
        """The class a request was taken in, which `on_miss: degrade` may have lowered."""
        sequence = self._ledger.sequences.get(request_id)
        return None if sequence is None else sequence.home.service.name

    def waste(self) -> Waste:
        """Unwritten part of the pages that running requests hold."""
        tables = (part for each in self._ledger.running for part in each.written_parts())
        return measure_waste(tables, self.page_tokens)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: its id is in use, its prompt is empty or its class unknown.
            PromptTooLong: the prompt does not fit the served context.
            CapacityError: the prompt does not fit the whole KV cache.
            Overloaded: its class takes no more, or would miss its target and refuses that.
        """
        if request.id in self._ledger.sequences:
            raise InvalidRequest(f"a request {request.id} is already there", field="id")
        wanted = self._lane_of(request)
        pool_tokens = self.layout.most_tokens(self.cache.pool.pages)
        check_fits(request, max_context=self.max_context, pool_tokens=pool_tokens)
        now = self._clock()
        lane = self._admit_to(request, wanted, now)
        sequence = Sequence(
            request,
            self._arrivals,
            self._fingerprint,
            lane,
            self._ledger.rows,
            now_seconds=now,
            limit_tokens=self._limit_tokens,
            reuses=not self._batching.pads,
            salt=tenant_salt(request) if self._separates_tenants else request.cache_salt,
        )
        self._arrivals += 1
        self._ledger.add(sequence, now)

    def reusable_keys(self, request_id: RequestId) -> Ordered[bytes]:
        """Keys of the pages that a request could take from the cache, if they were there."""
        sequence = self._ledger.sequences[request_id]
        return sequence.reusable_keys

    def is_displaced(self, request_id: RequestId) -> bool:
        """A request was preempted and has no row yet."""
        sequence = self._ledger.sequences.get(request_id)
        return sequence is not None and sequence.was_preempted

    def hold_back(self, request_id: RequestId) -> None:
        """Plan a request without a row only after `let_go`: its pages are on their way."""
        self._planned = None
        self._ledger.hold_back(self._ledger.sequences[request_id])

    def let_go(self, request_id: RequestId) -> None:
        """Plan a request that was held back, if it has not ended."""
        sequence = self._ledger.sequences.get(request_id)
        if sequence is not None:
            self._planned = None
            self._ledger.let_go(sequence, self._clock())

    def cancel(self, request_id: RequestId) -> bool:
        """End a request in any state at once; False if it is not there (any more)."""
        return self._end(request_id, RequestState.CANCELLED, "cancelled")

    def finish(self, request_id: RequestId, reason: FinishReason = FinishReason.STOP) -> bool:
        """End a request whose answer is complete for its reader (a stop string was found)."""
        return self._end(request_id, RequestState.FINISHED, reason.value)

    def fail(self, request_id: RequestId, error: str) -> EngineOutput | None:
        """End a request with an error; the news for its reader, None if it is not there."""
        sequence = self._ledger.sequences.get(request_id)
        if sequence is None:
            return None
        self._planned = None
        return self._ledger.failed(sequence, error, self._clock())

    def plan(self) -> StepPlan:
        """Decide the next step.

        It has rows whenever there is work, unless a policy waits for company
        (`patience_seconds`).

        Raises:
            ValueError: a step is in flight.
        """
        if self._in_flight is not None:
            raise ValueError(f"step {self._in_flight[0].number} has no result yet")
        ledger, now = self._ledger, self._clock()
        view = StepView(
            lanes=self._lanes,
            rows=ledger.rows,
            free_rows=ledger.free_rows,
            closed_rows=ledger.closed_rows,
            producers=ledger.producers.marks,
            tails=ledger.tails,
            cache=ledger.cache,
            cost=self.cost,
            now_seconds=now,
            may_join=self._batching.may_join(self._lanes, now),
            padded_tokens=self._batching.padded_tokens(self._lanes),
            between_seconds=self.between_seconds,
        )
        planner = Planner(self._committed, self._limits, view)
        # Remembered to recognise the plan in commit.
        self._planned = (planner.plan(), planner)
        return self._planned[0]

    def commit(self, plan: StepPlan) -> None:
        """Apply the latest plan; a plan with rows is then in flight until its result.

        Raises:
            ValueError: it is not the latest plan, or something ended since it was made.
        """
        planned = self._planned
        if planned is None or not (plan is planned[0] or plan == planned[0]):
            raise ValueError(f"plan {plan.number} is void: the state has changed since")
        self._planned = None
        self._committed += 1
        _, planner = planned
        now = planner.now_seconds
        joined = self._ledger.apply(plan, planner, now)
        waiting = sum(len(lane.queue) for lane in self._lanes)
        self._batching.started(
            joined, planner.may_join, waiting, padded_tokens=planner.padded_tokens
        )
        for lane in planner.starved:
            lane.counters.starved += 1
            if self._emit is not None:
                since = now - (lane.served_seconds or now)
                self._emit(Starved(lane.service.name, now, since))
        if not plan.is_empty:
            self.counters.steps += 1
            self._in_flight = planned

    def on_result(self, result: StepResult) -> list[EngineOutput]:
        """Take the result of the step in flight; the news of its requests, in row order.

        A row that is missing in the result has not happened and is planned again. Results of
        requests that have ended are dropped.

        Raises:
            ValueError: the result is not that of the step in flight, or has a row the plan lacks.
        """
        flying = self._in_flight
        if flying is None or flying[0].number != result.number:
            if flying is None and not result.rows and result.number == self._committed - 1:
                return []
            raise ValueError(f"step {result.number} is not in flight")
        plan, planner = flying
        now = self._clock()
        outputs = take_results(self._ledger, plan, result, now)
        self._in_flight = None
        self._planned = None
        measured = result.elapsed_seconds
        predicted = plan.predicted_seconds
        passed = self._between.since_last(now)
        is_long = planner.is_tight and 2 * predicted >= planner.limit_seconds
        if is_long and passed is not None:
            self.cost.note_overrun(predicted + self.between_seconds, passed)
        self._between.note(now - measured, now, goes_on=self.has_work)
        scale = measured / predicted if measured > 0 and predicted > 0 else 1.0
        scale = min(max(scale, 0.1), 10.0)
        note_work(planner.draft.chunks.values(), self._lanes, now)
        spent = planner.spent
        for lane in self._lanes:
            if lane in spent or lane.use.share:
                passed_seconds = measured if passed is None else passed
                lane.use.note(spent.get(lane, 0.0) * scale, passed_seconds)
        self._ledger.charge(planner, spent, scale, now)
        if len(result.rows) + len(result.decoded) == plan.row_count:
            self.cost.observe(planner.shape, measured)
        return outputs

    def forget(self) -> None:
        """Start all counters over, and what was learned of the time of steps: it was a warm-up."""
        self._ledger.counters = SchedulerCounters()
        for lane in self._lanes:
            lane.forget()
        self.cost = self._start_cost()
        self._between = Between()

    def audit(self) -> list[str]:
        """Findings against the invariants of pages, rows and classes; empty when all hold."""
        return audit_ledger(self._ledger)

    def repair(self) -> None:
        """Rebuild pool and index from the page tables; running requests go on undisturbed."""
        self._ledger.repair()
        self._planned = None

    def unstick(self) -> str:
        """Let everybody be planned again after nothing could run; what was found, for the log.

        That is a defect, which must not cost the requests that are there their answers.
        """
        findings = self.audit()
        self.repair()
        findings.append(f"{self._ledger.recall(self._clock())} requests sat aside")
        return "; ".join(findings)

    def _end(self, request_id: RequestId, state: RequestState, reason: str) -> bool:
        sequence = self._ledger.sequences.get(request_id)
        if sequence is None:
            return False
        self._planned = None
        self._ledger.end(sequence, state, reason, self._clock())
        return True

    def _lane_of(self, request: Request) -> Lane:
        if len(self._lanes) == 1:
            return self._lanes[0]
        lane = self._by_name.get(request.service_class)
        if lane is None:
            names = ", ".join(self._by_name)
            raise InvalidRequest(f"must be one of {names}", field="service_class")
        return lane

    def _forecast(self) -> Forecast:
        return Forecast(
            self._lanes,
            self.cost,
            page_tokens=self.page_tokens,
            most_seconds=self._limits.max_step_seconds,
            between_seconds=self.between_seconds,
        )

    def _admit_to(self, request: Request, wanted: Lane, now: float) -> Lane:
        wanted.counters.offered += 1
        try:
            lane = choose_lane(
                self._lanes,
                wanted,
                request,
                now_seconds=now,
                arrival_seconds=min(request.arrival_seconds or now, now),
                forecast=self._forecast(),
            )
        except Overloaded as error:
            wanted.counters.refused += 1
            self._tell("refused", request.id, wanted, now, error.message)
            raise
        if lane is not wanted:
            wanted.counters.degraded += 1
            self._tell("degraded", request.id, lane, now, f"late in class {wanted.service.name}")
        return lane

    def _tell(self, kind: str, request_id: RequestId, lane: Lane, now: float, reason: str) -> None:
        if self._emit is not None:
            self._emit(Decision(kind, request_id, lane.service.name, now, reason))
