"""Drives the real scheduler with answers that cost nothing: pages and rows are what counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.ids import RequestId
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.schedule.plan import RowResult, StepPlan, StepResult
from octavo.schedule.scheduler import Scheduler

STEP_SECONDS = 0.04
_STOP = 1


@dataclass(frozen=True, slots=True)
class Visitor:
    """A request whose answer ends after `answer_tokens` of the `max_tokens` that it may have."""

    prompt: tuple[int, ...]
    answer_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Stay:
    """Means and peaks over the steps in which somebody ran."""

    steps: int
    mean_running: float
    peak_running: int
    peak_held_pages: int
    waste_share: float
    preemptions: int
    computed_tokens: int
    hit_pages: int


class Crowd:
    """Visitors who come in order, `at_once` of them in the scheduler at a time."""

    def __init__(self, scheduler: Scheduler, clock: list[float]):
        self._scheduler = scheduler
        self._clock = clock
        self._answers: dict[str, int] = {}
        self._generated: dict[str, int] = {}

    @classmethod
    def of(cls, **settings: object) -> Crowd:
        """A crowd in front of a scheduler of its own."""
        clock = [0.0]
        made = Scheduler(clock=lambda: clock[0], max_context=8192, **settings)  # type: ignore[arg-type]
        return cls(made, clock)

    def serve(self, visitors: Sequence[Visitor], at_once: int) -> Stay:
        """Until the last one has left."""
        coming = deque(enumerate(visitors))
        scheduler = self._scheduler
        running: list[int] = []
        held: list[int] = []
        unwritten = capacity = 0
        while coming or scheduler.has_work:
            while coming and len(self._answers) < at_once:
                self._add(*coming.popleft())
            plan = scheduler.plan()
            scheduler.commit(plan)
            running.append(scheduler.running_count)
            held.append(scheduler.cache.pool.held_count)
            self._clock[0] += STEP_SECONDS
            outputs = scheduler.on_result(self._result(plan))
            waste = scheduler.waste()
            unwritten += waste.unwritten_tokens
            capacity += waste.held_pages * waste.page_tokens
            for output in outputs:
                if output.finish_reason is not None:
                    del self._answers[output.request_id], self._generated[output.request_id]
        counters = scheduler.counters
        return Stay(
            steps=len(running),
            mean_running=sum(running) / len(running),
            peak_running=max(running),
            peak_held_pages=max(held),
            waste_share=unwritten / max(capacity, 1),
            preemptions=counters.preemptions,
            computed_tokens=counters.computed_tokens,
            hit_pages=counters.hit_pages,
        )

    def _add(self, number: int, visitor: Visitor) -> None:
        name = RequestId(str(number))
        self._answers[name] = visitor.answer_tokens
        self._generated[name] = 0
        self._scheduler.add(
            Request(
                id=name,
                prompt=visitor.prompt,
                params=SamplingParams(max_tokens=visitor.max_tokens),
                seed=0,
                max_new_tokens=visitor.max_tokens,
                stop_ids=frozenset({_STOP}),
                arrival_seconds=self._clock[0],
            )
        )

    def _result(self, plan: StepPlan) -> StepResult:
        rows = []
        for row in plan.rows:
            tokens: tuple[int, ...] = ()
            if row.wants_token:
                self._generated[row.request_id] += 1
                is_last = self._generated[row.request_id] >= self._answers[row.request_id]
                tokens = (_STOP if is_last else 2,)
            rows.append(RowResult(row.row, row.request_id, tokens))
        return StepResult(plan.number, tuple(rows), STEP_SECONDS)
