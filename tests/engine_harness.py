"""Runs requests through the real scheduler and executor on any step model, and records bits."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from octavo.compute.batch import (
    Batch,
    ByteRows,
    Draw,
    ElasticBuffers,
    Float32Array,
    Score,
    StepModel,
    StepOutput,
)
from octavo.core.cache_groups import CacheGroups, one_group
from octavo.core.ids import RequestId
from octavo.core.output import EngineOutput, TokenLogprob
from octavo.core.request import FinishReason, Request, RequestState, Transition
from octavo.core.sampling import SamplingParams
from octavo.engine.engine import Engine
from octavo.engine.model_executor import ModelExecutor
from octavo.memory.layout import TableLayout
from octavo.observe.events import EventRing
from octavo.schedule.scheduler import Scheduler


class RecordingModel:
    """Passes steps through, and keeps a digest of the logits behind every draw.

    Digests are kept by (seed, counter), so a request with a seed of its own is recognised in any
    batch. The step is run twice, which leaves the same cache; every n-th draw is enough where that
    takes long.
    """

    def __init__(self, model: StepModel, watched_seeds: Sequence[int], *, every: int = 1):
        self._model = model
        self._watched = frozenset(watched_seeds)
        self._every = every
        self.program = model.program
        self.weight_bytes = model.weight_bytes
        self.digests: dict[tuple[int, int], str] = {}
        self.largest_batch = 0
        self.steps: list[list[int]] = []
        """Tokens of each row of each step."""

    def page_bytes(self, page_tokens: int) -> int:
        return self._model.page_bytes(page_tokens)

    def allocate_kv(self, pages: int, page_tokens: int, groups: CacheGroups | None = None) -> None:
        self._model.allocate_kv(pages, page_tokens, groups)

    def kv_pages(self) -> ByteRows:
        return self._model.kv_pages()

    def elastic(self) -> ElasticBuffers | None:
        return self._model.elastic()

    def logits(self, batch: Batch, wanted: Sequence[int]) -> Float32Array:
        return self._model.logits(batch, wanted)

    def step(self, batch: Batch, draws: Sequence[Draw], scores: Sequence[Score]) -> StepOutput:
        self.steps.append(np.diff(batch.row_starts).tolist())
        watched = [
            draw for draw in draws if draw.seed in self._watched and draw.counter % self._every == 0
        ]
        if watched:
            logits = self._model.logits(batch, [draw.token for draw in watched])
            for draw, row in zip(watched, logits, strict=True):
                assert np.isfinite(row).all()
                bits = np.ascontiguousarray(row, dtype=np.float32).view(np.uint32).tobytes()
                self.digests[draw.seed, draw.counter] = hashlib.blake2b(bits).hexdigest()
            self.largest_batch = max(self.largest_batch, len(batch.past))
        return self._model.step(batch, draws, scores)

    def close(self) -> None:
        self._model.close()


@dataclass
class Answer:
    """Everything the engine said about one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None

    def accept(self, output: EngineOutput) -> None:
        assert self.finish_reason is None, "news of a request that had ended"
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or ()
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        self.finish_reason = output.finish_reason
        self.error = output.error

    def bits(self) -> list[object]:
        """Tokens and the bits of every log-probability, alternatives too."""
        return [
            (entry.token_id, float_bits(entry.logprob), *_top_bits(entry))
            for entry in (*self.logprobs, *(self.prompt_logprobs or ()))
            if entry is not None
        ] + self.token_ids


def _top_bits(entry: TokenLogprob) -> list[tuple[int, int]]:
    return [(token, float_bits(value)) for token, value in entry.top]


def float_bits(value: float) -> int:
    return int(np.float64(value).view(np.uint64))


class Rig:
    """An engine on a model, with its cache freshly allocated.

    `grouped`: in cache groups, so that layers with a window keep their window only.
    """

    def __init__(
        self,
        model: StepModel,
        *,
        pages: int,
        page_tokens: int = 32,
        max_rows: int = 32,
        token_budget: int = 512,
        max_chunk_tokens: int | None = None,
        max_context: int | None = None,
        grouped: bool = False,
    ):
        layers = model.program.kv.layers
        groups = model.program.cache_groups() if grouped else one_group(layers)
        model.allocate_kv(pages, page_tokens, groups)
        chunk = min(max_chunk_tokens or token_budget, token_budget)
        layout = TableLayout(page_tokens, groups.count, groups.window_tokens, chunk)
        most_tokens = layout.most_tokens(pages)
        context = min(max_context or model.program.context_tokens, most_tokens)
        self.events = EventRing(1 << 16)
        self.scheduler = Scheduler(
            pages=pages,
            page_tokens=page_tokens,
            groups=groups.count,
            window_tokens=groups.window_tokens,
            token_budget=token_budget,
            max_rows=max_rows,
            max_context=context,
            max_chunk_tokens=max_chunk_tokens,
            fingerprint=b"test",
            emit=self.events,
        )
        executor = ModelExecutor(
            model,
            max_rows=max_rows,
            max_pages_per_row=layout.blocks_for(context) * groups.count,
            max_batch_tokens=token_budget,
            groups=groups.count,
        )
        self.engine = Engine(self.scheduler, executor)
        self.answers: dict[str, Answer] = {}

    def add(self, request: Request) -> None:
        """Add a request, whose arrival is far enough from the others' to keep them in order."""
        self.answers[request.id] = Answer()
        arrival = 0.2 * len(self.answers)
        self.engine.add(replace(request, arrival_seconds=arrival))

    def step(self) -> None:
        for output in self.engine.step():
            self.answers[output.request_id].accept(output)

    def run_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def run(self, requests: Sequence[Request] = (), *, limit: int = 100_000) -> dict[str, Answer]:
        for request in requests:
            self.add(request)
        for _ in range(limit):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, f"no end after {limit} steps"
        return self.answers

    def preemptions_of(self, request_id: str) -> int:
        return sum(
            isinstance(event, Transition)
            and event.request_id == request_id
            and event.after is RequestState.PREEMPTED
            for event in self.events.newest()
        )


def make_request(
    name: str,
    prompt: Sequence[int],
    *,
    seed: int,
    max_new_tokens: int = 8,
    stop_ids: Sequence[int] = (),
    **params: object,
) -> Request:
    settings = SamplingParams(**{"temperature": 0.0, "logprobs": 5, **params})  # type: ignore[arg-type]
    return Request(
        id=RequestId(name),
        prompt=tuple(prompt),
        params=settings,
        seed=seed,
        max_new_tokens=max_new_tokens,
        stop_ids=frozenset(stop_ids),
    )


def random_prompt(rng: random.Random, length: int, vocabulary_size: int) -> tuple[int, ...]:
    return tuple(rng.randrange(vocabulary_size) for _ in range(length))
