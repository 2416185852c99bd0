"""Replays a trace through the real scheduler against a clock that steps move by their cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from octavo.core.errors import CapacityError, EngineError, Overloaded, PromptTooLong
from octavo.core.output import EngineOutput
from octavo.plan.records import Outcome, Record, Recorder, StepTotals
from octavo.plan.shape import shape_of
from octavo.plan.synthetic import SyntheticPrompts, answer_token
from octavo.plan.traces import TraceRequest
from octavo.schedule.cost import CostModel, CostProfile
from octavo.schedule.plan import RowResult, StepPlan, StepResult
from octavo.schedule.scheduler import Scheduler

Progress = Callable[[int, int], object]
"""Called now and then with the requests that have ended and all of them."""

_LEAST_WAIT_SECONDS = 0.001
_MAX_WAITS = 10_000
_PROGRESS_STEPS = 512
_MEDIAN_DEVIATIONS = 0.6745
"""The median of absolute errors, in standard deviations of a normal distribution."""
_LEAST_FACTOR = 0.5


class SimulatedClock:
    """Seconds since the first arrival; only the simulation moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class StepNoise:
    """By what factor steps differ from their cost: the same factors each time.

    `error` is the median relative error, as a profile has it. Each deviation is followed by its
    opposite (antithetic variates), so that no stretch of the simulation is on a faster or slower
    machine than another: a busy one of a few dozen steps would decide the percentiles.
    """

    def __init__(self, error: float):
        self._standard_deviation = error / _MEDIAN_DEVIATIONS
        self._chance = random.Random("step noise")
        self._opposite: float | None = None

    def factor(self) -> float:
        """Of the next step."""
        deviation = self._opposite
        if deviation is None:
            deviation = self._standard_deviation * self._chance.gauss()
            self._opposite = -deviation
        else:
            self._opposite = None
        return max(1.0 + deviation, _LEAST_FACTOR)


class ClockExecutor:
    """Computes nothing: a step moves the clock by what it costs, each row gets its token.

    Before each step pass `between_seconds`, which are no part of its own time.
    """

    def __init__(self, cost: CostProfile, clock: SimulatedClock, *, between_seconds: float = 0.0):
        self._cost = CostModel(cost)
        self._noise = StepNoise(cost.error)
        self._clock = clock
        self._between_seconds = between_seconds

    def execute(self, plan: StepPlan) -> StepResult:
        """The result that a model would give, at the time it would give it."""
        seconds = self._cost.predict(shape_of(plan)) * self._noise.factor()
        self._clock.seconds += self._between_seconds + seconds
        rows = tuple(
            RowResult(
                row.row,
                row.request_id,
                (answer_token(row.request_id),) if row.wants_token else (),
            )
            for row in plan.chunks
        )
        decoded = list(map(answer_token, plan.decodes.request_ids))
        return StepResult(plan.number, rows, seconds, seconds, decoded)

    def close(self) -> None:
        """Nothing is held."""


class Simulation:
    """One replay of one trace, event by event: arrivals come between steps, idle time is skipped.

    The scheduler must have been made with `clock`. Two runs with equal arguments give equal
    records. `default_class` is the service class of requests that name none.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: CostProfile,
        clock: SimulatedClock,
        trace: Sequence[TraceRequest],
        *,
        default_class: str = "standard",
        between_seconds: float = 0.0,
        progress: Progress | None = None,
    ):
        self._scheduler = scheduler
        self._executor = ClockExecutor(cost, clock, between_seconds=between_seconds)
        self._clock = clock
        self._trace = trace
        self._default_class = default_class
        self._progress = progress
        self._prompts = SyntheticPrompts()
        self._arrived = 0
        self._waits = 0
        self.recorder = Recorder()

    @property
    def records(self) -> list[Record]:
        """One record a request, in order of arrival."""
        return self.recorder.records

    @property
    def totals(self) -> StepTotals:
        """Sums over all steps."""
        return self.recorder.totals

    def run(self) -> None:
        """Replay everything, until the last request has ended.

        Raises:
            EngineError: requests wait and nothing runs.
            InvalidRequest: a request names a service class that is not there.
        """
        while True:
            self._take_arrivals()
            if self._scheduler.has_work:
                self._step()
            elif self._arrived < len(self._trace):
                self._skip_to_next_arrival()
            else:
                break
        self._report_progress(len(self._trace))

    def _take_arrivals(self) -> None:
        trace, now = self._trace, self._clock.seconds
        while self._arrived < len(trace) and trace[self._arrived].arrival_seconds <= now:
            number = self._arrived
            traced = trace[number]
            service_class = traced.service_class or self._default_class
            record = self.recorder.arrive(traced, service_class)
            self._arrived += 1
            try:
                self._scheduler.add(self._prompts.request(traced, number, service_class))
            except Overloaded as error:
                self.recorder.refuse(record, Outcome.REFUSED, str(error), now)
            except (PromptTooLong, CapacityError) as error:
                self.recorder.refuse(record, Outcome.UNSERVABLE, str(error), now)

    def _step(self) -> None:
        scheduler = self._scheduler
        plan = scheduler.plan()
        scheduler.commit(plan)
        self.recorder.admit(plan, self._clock.seconds)
        result = self._executor.execute(plan)
        outputs: list[EngineOutput] = scheduler.on_result(result)
        self.recorder.take(outputs, self._clock.seconds)
        if plan.is_empty:
            if scheduler.has_work:
                self._wait()
            return
        self._waits = 0
        pool = scheduler.cache.pool
        self.recorder.totals.add(plan, result.elapsed_seconds, pool.held_count / pool.pages)
        if not self.recorder.totals.steps % _PROGRESS_STEPS:
            self._report_progress(self.recorder.ended)

    def _wait(self) -> None:
        """The scheduler waits for company: go on when it wants to, or at the next arrival."""
        self._waits += 1
        if self._waits > _MAX_WAITS:
            raise EngineError(
                f"{self._scheduler.waiting_count} requests wait and nothing runs",
                remedy="please report this with the trace and the settings",
            )
        until = self._clock.seconds + max(self._scheduler.patience_seconds, _LEAST_WAIT_SECONDS)
        if self._arrived < len(self._trace):
            until = min(until, self._trace[self._arrived].arrival_seconds)
        self._clock.seconds = until

    def _skip_to_next_arrival(self) -> None:
        self._clock.seconds = self._trace[self._arrived].arrival_seconds

    def _report_progress(self, ended: int) -> None:
        if self._progress is not None:
            self._progress(ended, len(self._trace))
