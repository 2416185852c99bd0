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
from octavo.plan.setup import CacheSize
from octavo.plan.shape import shape_of
from octavo.schedule.plan import StepPlan, StepResult
from octavo.schedule.scheduler import Scheduler

_PREFILL_TOKENS = (16, 48, 96, 192, 384, 768)
_CHUNKED_PROMPTS = ((1024, 128), (2048, 256))
"""Tokens of a prompt and of its chunks: attention at a growing distance."""
_DECODES = ((1, 24), (1, 1536), (2, 256), (4, 24), (4, 512), (8, 192), (16, 24), (32, 64))
"""Rows, and the tokens of the prompt of each."""
_DECODE_STEPS = 3
_WARM_UP_LOADS = 3
_MOST_BLOCKS = 1024
"""Enough for every load; a scheduler of more pages takes longer to make."""


class StepExecutor(Protocol):
    """Whatever runs a step plan."""

    def execute(self, plan: StepPlan) -> StepResult: ...


@dataclass(frozen=True, slots=True)
class Load:
    """Equal requests that start together on an idle engine; `steps` steps of it are measured.

    Prompts are computed in chunks of `chunk_tokens`.
    """

    rows: int
    prompt_tokens: int
    steps: int
    chunk_tokens: int = 2048

    @property
    def tokens(self) -> int:
        """Most tokens that the cache holds for it."""
        return self.rows * (self.prompt_tokens + self.steps + 1)


def standard_loads(size: CacheSize, *, max_rows: int) -> list[Load]:
    """A few dozen steps: prompts short and long, batches small and large, contexts near and far.

    Loads that do not fit the served context or the cache are left out.
    """
    cache_tokens = min(size.pages // size.groups, _MOST_BLOCKS) * size.page_tokens
    loads = [Load(1, tokens, 1) for tokens in _PREFILL_TOKENS]
    loads += [Load(1, tokens, tokens // chunk, chunk) for tokens, chunk in _CHUNKED_PROMPTS]
    loads += [Load(rows, tokens, 1 + _DECODE_STEPS) for rows, tokens in _DECODES]
    return [
        load
        for load in loads
        if load.rows <= max_rows
        and load.prompt_tokens + load.steps + 1 < size.context_tokens
        and load.tokens < cache_tokens // 2
    ]


class Calibration:
    """Runs loads on a model and keeps the time of each step, from plan to taken result.

    Each load gets a scheduler of its own with an empty cache, so what is measured is computed.
    `executor` takes `max_rows` rows and `token_budget` tokens a step, and has a cache of `size`.
    """

    def __init__(
        self,
        executor: StepExecutor,
        size: CacheSize,
        *,
        max_rows: int,
        token_budget: int,
        vocabulary_size: int,
        clock: Clock,
    ):
        self._executor = executor
        self._size = size
        self._max_rows = max_rows
        self._token_budget = token_budget
        self._vocabulary_size = vocabulary_size
        self._clock = clock
        self._requests = 0

    def run(self, loads: list[Load], progress: Callable[[int], object]) -> list[StepSample]:
        """Measure every load; `progress` is told how many are done.

        Raises:
            EngineError: a step failed.
        """
        for _ in range(_WARM_UP_LOADS):
            self._measure(Load(2, 64, 2))
        samples = []
        for done, load in enumerate(loads, start=1):
            samples += self._measure(load)
            progress(done)
        return samples

    def _measure(self, load: Load) -> list[StepSample]:
        scheduler = Scheduler(
            pages=min(self._size.pages, _MOST_BLOCKS * self._size.groups),
            page_tokens=self._size.page_tokens,
            groups=self._size.groups,
            window_tokens=self._size.window_tokens,
            token_budget=self._token_budget,
            max_rows=self._max_rows,
            max_context=self._size.context_tokens,
            max_chunk_tokens=min(load.chunk_tokens, self._token_budget),
            clock=self._clock,
        )
        for _ in range(load.rows):
            scheduler.add(self._request(load))
        return [self._step(scheduler) for _ in range(load.steps)]

    def _request(self, load: Load) -> Request:
        self._requests += 1
        new_tokens = load.steps + 1
        return Request(
            id=RequestId(f"calibration-{self._requests}"),
            prompt=tuple(self._tokens(load.prompt_tokens)),
            params=SamplingParams(max_tokens=new_tokens, ignore_eos=True),
            seed=self._requests,
            max_new_tokens=new_tokens,
        )

    def _tokens(self, count: int) -> Iterator[int]:
        """Tokens from a linear congruential generator (Knuth's MMIX), seeded by the request."""
        state = self._requests
        for _ in range(count):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            yield (state >> 33) % self._vocabulary_size

    def _step(self, scheduler: Scheduler) -> StepSample:
        started = self._clock()
        plan = scheduler.plan()
        scheduler.commit(plan)
        result = self._executor.execute(plan)
        scheduler.on_result(result)
        seconds = self._clock() - started
        for row in result.rows:
            if row.error is not None:
                raise EngineError(row.error)
        return StepSample(shape_of(plan), seconds)
