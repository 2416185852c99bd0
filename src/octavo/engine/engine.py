"""The loop: plan, commit, execute, take the results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from octavo.core.clock import Clock, monotonic
from octavo.core.errors import EngineError
from octavo.core.ids import RequestId
from octavo.core.output import EngineOutput
from octavo.core.request import FinishReason, Request
from octavo.engine.executor import Executor
from octavo.memory.elastic import ElasticMemory
from octavo.observe.metrics import EngineMetrics
from octavo.schedule.plan import RowResult, StepPlan, StepResult
from octavo.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from octavo.memory.tiers.swapper import Swapper

logger = logging.getLogger("octavo")

_MAX_EMPTY_STEPS = 3
_LONGEST_SLEEP_SECONDS = 0.002
_MOST_FETCHES = 2
"""So often are pages fetched for a preempted request, which others may overtake meanwhile."""


class Engine:
    """One scheduler on one executor. Not thread-safe: `Client` has the lock.

    An executor that raises fails only the requests of that step. An interrupt (Ctrl-C) in the
    middle of a step leaves its plan pending, and the next step runs it again: executors give the
    same result for a plan that is run twice.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        swapper: Swapper | None = None,
        elastic: ElasticMemory | None = None,
        metrics: EngineMetrics | None = None,
        clock: Clock = monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.scheduler = scheduler
        self.metrics = metrics or EngineMetrics()
        self.swapper = swapper
        self.elastic = elastic
        self.memory_bytes: Mapping[str, int] = {}
        """The most that each part of the engine may hold, as `MemoryLedger` names them."""
        self._executor = executor
        self._clock = clock
        self._sleep = sleep
        self._pending: StepPlan | None = None
        self._empty_steps = 0
        self._displaced: dict[RequestId, int] = {}
        """Preempted requests, and how often their pages may still be fetched."""

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: it could not even run alone.
        """
        self.scheduler.add(request)
        self.metrics.requests.add()
        self._fetch(request.id)

    def cancel(self, request_id: RequestId) -> bool:
        """End a request without an answer; False if it is not there. It makes no more news."""
        self._forget(request_id)
        return self.scheduler.cancel(request_id)

    def finish(self, request_id: RequestId) -> bool:
        """End a request whose reader has enough; False if it is not there. No more news of it."""
        self._forget(request_id)
        return self.scheduler.finish(request_id, FinishReason.STOP)

    def step(self) -> list[EngineOutput]:
        """Make one step; the news of its requests.

        Raises:
            EngineError: there is work but nothing to run, which is a defect of the scheduler.
        """
        started = self._clock()
        if self.elastic is not None:
            self.elastic.begin(started)
        if self._pending is None:
            # An interrupted plan may still copy pages that nobody holds any more.
            self._swap()
            plan = self.scheduler.plan()
            self.scheduler.commit(plan)
            for preemption in plan.preemptions if self.swapper else ():
                self._displaced[preemption.request_id] = _MOST_FETCHES
            self._pending = plan
        plan = self._pending
        result = self._execute(plan)
        self._pending = None
        outputs = self.scheduler.on_result(result)
        if plan.row_count:
            self._empty_steps = 0
        else:
            self._wait()
        ended = self._clock()
        if self.elastic is not None:
            self.elastic.end(ended)
        self._measure(plan, result, outputs, ended - started)
        return outputs

    def tend(self) -> bool:
        """Do what is put off while there is work; False if there is no more of it."""
        return self.swapper is not None and self.swapper.tend()

    def seconds_to_rest(self) -> float | None:
        """How long the engine may be left alone without work; None: for ever."""
        return None if self.elastic is None else self.elastic.seconds_to_rest(self._clock())

    def rest(self) -> bool:
        """Without work: give memory back that is idle or wanted elsewhere; False if none was."""
        return self.elastic is not None and self.elastic.rest(self._clock())

    def close(self) -> None:
        """Write down what is cached, free weights and cache; safe to call twice."""
        if self.swapper is not None:
            self.swapper.close()
            self.swapper = None
        if self.elastic is not None:
            self.elastic.close()
            self.elastic = None
        self._executor.close()

    def _swap(self) -> None:
        """Move pages between the cache and the tier below, and let go who waited for them."""
        if self.swapper is None:
            return
        scheduler = self.scheduler
        for request_id in self.swapper.poll(is_busy=scheduler.running_count > 0):
            scheduler.let_go(request_id)
        for request_id, fetches in list(self._displaced.items()):
            if not fetches or not scheduler.is_displaced(request_id):
                del self._displaced[request_id]
            elif not self.swapper.awaits(request_id) and self._has_room_for(request_id):
                self._displaced[request_id] = fetches - 1 if self._fetch(request_id) else 0

    def _has_room_for(self, request_id: RequestId) -> bool:
        """Whether a preempted request may soon get a row: sooner, pages would only be evicted."""
        scheduler, pool = self.scheduler, self.scheduler.cache.pool
        layout = scheduler.layout
        tokens = (len(scheduler.reusable_keys(request_id)) + 2) * layout.page_tokens
        needed = layout.most_pages(tokens)
        reserve = 2 * layout.groups * scheduler.running_count + pool.pages // 64
        return pool.pages - pool.held_count >= needed + reserve

    def _fetch(self, request_id: RequestId) -> bool:
        """Have pages brought in that a waiting request could use, and let it wait for them."""
        swapper = self.swapper
        if swapper is None:
            return False
        fetches = swapper.want(
            request_id, self.scheduler.reusable_keys(request_id), self.scheduler.layout
        )
        if fetches:
            self.scheduler.hold_back(request_id)
        return fetches

    def _forget(self, request_id: RequestId) -> None:
        if self.swapper is not None:
            self.swapper.forget(request_id)

    def _execute(self, plan: StepPlan) -> StepResult:
        started = self._clock()
        try:
            return self._executor.execute(plan)
        except Exception as error:
            self.metrics.failed_steps.add()
            message = f"the step failed: {type(error).__name__}: {error}"
            rows = tuple(RowResult(row.row, row.request_id, error=message) for row in plan.rows)
            return StepResult(plan.number, rows, self._clock() - started)

    def _wait(self) -> None:
        """Nothing could run, and there may be a reason for that."""
        patience = self.scheduler.patience_seconds
        if self.swapper and self.swapper.is_loading:
            self.swapper.wait(_LONGEST_SLEEP_SECONDS)
            self._empty_steps = 0
        elif patience > 0:
            # A batch waits for company, but whoever is to bring it has to be heard.
            self._sleep(min(patience, _LONGEST_SLEEP_SECONDS))
        else:
            self._check_progress()

    def _check_progress(self) -> None:
        self._empty_steps = self._empty_steps + 1 if self.has_work else 0
        if self._empty_steps == _MAX_EMPTY_STEPS:
            scheduler = self.scheduler
            logger.error(
                "nothing could run, %d requests had rows and %d waited; please report this: %s",
                scheduler.running_count,
                scheduler.waiting_count,
                scheduler.unstick(),
            )
        elif self._empty_steps > 2 * _MAX_EMPTY_STEPS:
            raise EngineError(
                f"{self.scheduler.waiting_count} requests wait and nothing can run",
                remedy="please report this with the request sizes and memory settings",
            )

    def _measure(
        self, plan: StepPlan, result: StepResult, outputs: list[EngineOutput], seconds: float
    ) -> None:
        rows = plan.row_count
        if not rows:
            self.metrics.rows.set(0)
            return
        self.metrics.note_step(
            rows=rows,
            computed_tokens=plan.token_count,
            generated_tokens=sum([len(output.token_ids) for output in outputs]),
            seconds=seconds,
            predicted_seconds=plan.predicted_seconds,
            native_seconds=result.native_seconds,
        )
