"""Measures real steps of many shapes, for a cost to be fitted to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from octavo.core.clock import Clock
from octavo.core.errors import EngineError
from octavo.core.ids import RequestId
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.plan.fit import StepSample
from octavo.plan.shape import shape_of
from octavo.schedule.plan import StepPlan, StepResult
from octavo.schedule.scheduler import Scheduler

_PREFILL_TOKENS = (16, 48, 96, 192, 384, 768)
_DECODE_ROWS = (1, 2, 4, 8, 16, 32)
_DECODE_STEPS = 3
_WARM_UP_STEPS = 3


class StepExecutor(Protocol):
    """Whatever runs a step plan."""

    def execute(self, plan: StepPlan) -> StepResult: ...


@dataclass(frozen=True, slots=True)
class Load:
    """Equal requests that start together; `steps` are measured before they are cancelled."""

    rows: int
    prompt_tokens: int
    steps: int


def standard_loads(*, context_tokens: int, cache_tokens: int, max_rows: int) -> list[Load]:
    """A few dozen steps: prompts short and long, batches small and large, contexts near and far.

    Loads that do not fit the served context or the cache are left out.
    """
    loads = [Load(1, tokens, 1) for tokens in _PREFILL_TOKENS]
    # A prompt beyond the token budget runs in chunks: attention at a growing distance.
    loads += [Load(1, 3072, 8), Load(1, 1536, 4)]
    for rows in _DECODE_ROWS:
        # The first step is the prefill of all rows together.
        loads += [Load(rows, tokens, 1 + _DECODE_STEPS) for tokens in (24, 256)]
    loads += [Load(4, 1024, 5 + _DECODE_STEPS)]
    return [
        load
        for load in loads
        if load.rows <= max_rows
        and load.prompt_tokens + load.steps + 1 < context_tokens
        and load.rows * (load.prompt_tokens + load.steps + 1) < cache_tokens // 2
    ]


class Calibration:
    """Runs loads on a model and keeps the time of each step, from plan to taken result.

    The scheduler must be idle and belong to the executor. Prompts are drawn so that no two share
    a prefix: what is measured is computed, not found in the cache.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: StepExecutor,
        *,
        vocabulary_size: int,
        clock: Clock,
    ):
        self._scheduler = scheduler
        self._executor = executor
        self._vocabulary_size = vocabulary_size
        self._clock = clock
        self._requests = 0

    def run(self, loads: list[Load], progress: Callable[[int], None]) -> list[StepSample]:
        """Measure every load; `progress` is told how many are done.

        Raises:
            EngineError: a step failed.
        """
        for _ in range(_WARM_UP_STEPS):
            self._measure(Load(2, 64, 2))
        samples = []
        for done, load in enumerate(loads, start=1):
            samples += self._measure(load)
            progress(done)
        return samples

    def _measure(self, load: Load) -> list[StepSample]:
        ids = [self._add(load) for _ in range(load.rows)]
        try:
            return [self._step() for _ in range(load.steps)]
        finally:
            for identity in ids:
                self._scheduler.cancel(identity)

    def _add(self, load: Load) -> RequestId:
        self._requests += 1
        identity = RequestId(f"calibration-{self._requests}")
        new_tokens = load.steps + 1
        self._scheduler.add(
            Request(
                id=identity,
                prompt=tuple(self._tokens(load.prompt_tokens)),
                params=SamplingParams(max_tokens=new_tokens, ignore_eos=True),
                seed=self._requests,
                max_new_tokens=new_tokens,
            )
        )
        return identity

    def _tokens(self, count: int) -> Iterator[int]:
        """Tokens from a linear congruential generator (Knuth's MMIX), seeded by the request."""
        state = self._requests
        for _ in range(count):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            yield (state >> 33) % self._vocabulary_size

    def _step(self) -> StepSample:
        started = self._clock()
        plan = self._scheduler.plan()
        self._scheduler.commit(plan)
        result = self._executor.execute(plan)
        self._scheduler.on_result(result)
        seconds = self._clock() - started
        for row in result.rows:
            if row.error is not None:
                raise EngineError(row.error)
        return StepSample(shape_of(plan), seconds)
