"""Runs programs with numpy: slow, readable, and what the other interpreters are compared with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from octavo.compute.batch import (
    Batch,
    ByteRows,
    Draw,
    ElasticBuffers,
    Float32Array,
    Score,
    StepOutput,
)
from octavo.compute.kernels.reference import operators
from octavo.compute.kernels.reference.cache import FORMATS, PagedCache, head_bytes
from octavo.compute.kernels.reference.operators import Floats
from octavo.compute.load.source import WeightSource
from octavo.compute.program import (
    Add,
    Attention,
    Embedding,
    GeluMul,
    KvWrite,
    Linear,
    Logits,
    Operator,
    Program,
    RmsNorm,
    Rope,
    SiluMul,
)
from octavo.compute.quant.dequantise import dequantise, dequantise_rows
from octavo.compute.sample.reference import draw_and_score
from octavo.core.cache_groups import CacheGroups
from octavo.core.errors import EngineError, SettingsError
from octavo.core.output import TokenLogprob

PAGE_TOKENS = (16, 32, 64, 128, 256)
_LOGIT_ROWS = 64
"""Rows of logits held at once in `step`."""


class ReferenceModel:
    """A program on numpy, with weights dequantised to `dtype` and a paged KV cache.

    Activations are never quantised. Results agree with the definition of the operators up to
    rounding; the bits of a row may depend on the batch, unlike those of the production back ends.

    Raises:
        SettingsError: the KV format is unknown.
    """

    def __init__(
        self,
        program: Program,
        weights: WeightSource,
        *,
        kv_format: str = "fp16",
        dtype: type[np.float32] | type[np.float64] = np.float32,
    ) -> None:
        if kv_format not in FORMATS:
            raise SettingsError(
                f"unknown KV format {kv_format!r}",
                field="memory.kv_format",
                remedy=f"use one of {', '.join(FORMATS)}",
            )
        self.program = program
        self._kv_format = kv_format
        self._dtype: np.dtype[np.floating] = np.dtype(dtype)
        # Of an embedding only some rows are read a step, so it stays as stored.
        self._embeddings = {name: weights.raw(name) for name in _embeddings(program)}
        self._weights: dict[str, Floats] = {
            name: dequantise(*weights.raw(name)).astype(dtype, copy=False)
            for name in _dense_weights(program)
        }
        self.weight_bytes = sum(values.nbytes for values in self._weights.values())
        self._cache: PagedCache | None = None

    def page_bytes(self, page_tokens: int) -> int:
        """Bytes of one KV page of `page_tokens` tokens, all layers."""
        layout = self.program.kv
        token_bytes = 2 * head_bytes(self._kv_format, layout.head_dim)
        return layout.layers * layout.kv_heads * token_bytes * page_tokens

    def allocate_kv(self, pages: int, page_tokens: int, groups: CacheGroups | None = None) -> None:
        """(Re)allocate the cache; contents are lost."""
        if page_tokens not in PAGE_TOKENS or pages < 1:
            raise ValueError(f"{pages} pages of {page_tokens} tokens: sizes are {PAGE_TOKENS}")
        self._cache = PagedCache(self.program.kv, self._kv_format, pages, page_tokens, groups)

    def kv_pages(self) -> ByteRows:
        """The cache as bytes [pages, bytes of a page], not a copy."""
        return self._kv().page_bytes()

    def elastic(self) -> ElasticBuffers | None:
        """None: numpy's arrays stay where they are."""
        return None

    def logits(self, batch: Batch, wanted: Sequence[int]) -> Float32Array:
        """Run a step; return logits [len(wanted), vocabulary] of the batch tokens in `wanted`.

        Raises:
            ValueError: the batch does not fit the model or the cache.
        """
        return self._head(self._run(batch), wanted)

    def step(self, batch: Batch, draws: Sequence[Draw], scores: Sequence[Score]) -> StepOutput:
        """Run a step, draw and score, with at most a block of logit rows at once."""
        started = time.perf_counter()
        hidden = self._run(batch)
        wanted = sorted({draw.token for draw in draws} | {score.token for score in scores})
        drawn: dict[int, tuple[int, TokenLogprob | None]] = {}
        scored: dict[int, TokenLogprob] = {}
        output = StepOutput()
        for start in range(0, len(wanted), _LOGIT_ROWS):
            block = wanted[start : start + _LOGIT_ROWS]
            held = set(block)
            draw_ids = [index for index, draw in enumerate(draws) if draw.token in held]
            score_ids = [index for index, score in enumerate(scores) if score.token in held]
            answer = draw_and_score(
                self._head(hidden, block),
                block,
                [draws[index] for index in draw_ids],
                [scores[index] for index in score_ids],
            )
            pairs = zip(answer.drawn, answer.drawn_logprobs, strict=True)
            drawn.update(zip(draw_ids, pairs, strict=True))
            scored.update(zip(score_ids, answer.scored, strict=True))
            for index, error in answer.draw_errors.items():
                output.draw_errors[draw_ids[index]] = error
        output.drawn = [drawn[index][0] for index in range(len(draws))]
        output.drawn_logprobs = [drawn[index][1] for index in range(len(draws))]
        output.scored = [scored[index] for index in range(len(scores))]
        output.native_seconds = time.perf_counter() - started
        return output

    def close(self) -> None:
        """Free weights and cache."""
        self._weights, self._embeddings = {}, {}
        self._cache = None

    def _run(self, batch: Batch) -> Floats:
        """All operators but the head; returns the head's input [tokens, hidden]."""
        cache = self._kv()
        check_batch(batch, self.program.vocabulary_size, cache)
        step = _Step(self, batch, cache)
        for operator in self.program.operators[:-1]:
            step.apply(operator)
        return step.values[_head_operator(self.program).x]

    def _kv(self) -> PagedCache:
        if self._cache is None:
            raise EngineError("no KV cache", remedy="call allocate_kv first")
        return self._cache

    def _head(self, x: Floats, wanted: Sequence[int] | NDArray[np.int32]) -> Float32Array:
        head = _head_operator(self.program)
        rows = np.asarray(wanted, dtype=np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(x)):
            raise ValueError(f"wanted tokens lie outside the batch of {len(x)}")
        logits = operators.linear(x[rows], self._weights[head.weight])
        return operators.soft_cap(logits, head.softcap).astype(np.float32, copy=False)


class _Step:
    """The named activations of one step."""

    def __init__(self, model: ReferenceModel, batch: Batch, cache: PagedCache) -> None:
        self._model = model
        self._batch = batch
        self._cache = cache
        self.values: dict[str, Floats] = {}
        counts = np.diff(batch.row_starts)
        within = np.arange(len(batch.tokens)) - np.repeat(batch.row_starts[:-1], counts)
        self._positions = within + np.repeat(batch.past, counts)

    def apply(self, operator: Operator) -> None:
        values, weights = self.values, self._model._weights
        match operator:
            case Embedding(out, weight, scale):
                raw = self._model._embeddings[weight]
                rows = dequantise_rows(*raw, self._batch.tokens).astype(self._model._dtype)
                values[out] = rows * self._model._dtype.type(scale)
            case RmsNorm(out, x, weight, eps, heads):
                values[out] = operators.rms_norm(values[x], weights[weight], eps, heads)
            case Linear(out, x, weight, bias):
                values[out] = operators.linear(
                    values[x], weights[weight], None if bias is None else weights[bias]
                )
            case Rope():
                factors = None if operator.factors is None else weights[operator.factors]
                values[operator.out] = operators.rope(
                    operator, values[operator.x], self._positions, factors
                )
            case KvWrite():
                self._write(operator)
            case Attention():
                self._attend(operator)
            case SiluMul(out, gate, up):
                values[out] = operators.silu_mul(values[gate], values[up])
            case GeluMul(out, gate, up):
                values[out] = operators.gelu_mul(values[gate], values[up])
            case Add(out, a, b):
                values[out] = values[a] + values[b]
            case Logits():
                raise ValueError("the head stands before the end of the program")

    def _write(self, operator: KvWrite) -> None:
        layout, batch = self._model.program.kv, self._batch
        shape = (-1, layout.kv_heads, layout.head_dim)
        k, v = self.values[operator.k].reshape(shape), self.values[operator.v].reshape(shape)
        for row, span in enumerate(_spans(batch)):
            self._cache.write(
                operator.layer, batch.tables[row], int(batch.past[row]), k[span], v[span]
            )

    def _attend(self, operator: Attention) -> None:
        batch, q = self._batch, self.values[operator.q]
        out = np.empty_like(q)
        for row, span in enumerate(_spans(batch)):
            past, new = int(batch.past[row]), span.stop - span.start
            first = max(past + 1 - operator.window, 0) if operator.window else 0
            k, v = self._cache.read(operator.layer, batch.tables[row], past + new, q.dtype, first)
            out[span] = operators.attention(operator, q[span], k, v, past)
        self.values[operator.out] = out


def check_batch(batch: Batch, vocabulary: int, cache: PagedCache) -> None:
    """Raise ValueError unless every index of a batch is in range."""
    starts, past = batch.row_starts, batch.past
    rows, tokens = len(past), len(batch.tokens)
    if len(starts) != rows + 1 or starts[0] != 0 or starts[-1] != tokens:
        raise ValueError("row_starts must run from 0 to the number of tokens, one more than rows")
    if np.any(np.diff(starts) < 1) or np.any(past < 0):
        raise ValueError("every row needs at least one token and a past that is not negative")
    if np.any(batch.tokens < 0) or np.any(batch.tokens >= vocabulary):
        raise ValueError(f"token ids must be from 0 to {vocabulary - 1}")
    if batch.tables.ndim != 2 or len(batch.tables) != rows:
        raise ValueError("tables must have one line a row")
    groups = cache.groups
    needed = -(-(past + np.diff(starts)) // cache.page_tokens)
    if np.any(needed > batch.tables.shape[1] // groups.count):
        raise ValueError("a page table is too short for its row")
    unseen = np.maximum(past + 1 - groups.window_tokens, 0) // cache.page_tokens
    for group in range(groups.count):
        pages = batch.tables[:, group :: groups.count]
        places = np.arange(pages.shape[1])
        used = places < needed[:, None]
        if group:
            used &= places >= unseen[:, None]
        ids = pages[used]
        if np.any(ids < 0) or np.any(ids >= cache.pages):
            raise ValueError(f"page ids must be from 0 to {cache.pages - 1}")


def _spans(batch: Batch) -> list[slice]:
    starts = batch.row_starts.tolist()
    return [slice(start, end) for start, end in pairwise(starts)]


def _head_operator(program: Program) -> Logits:
    head = program.operators[-1]
    if not isinstance(head, Logits):
        raise ValueError("the last operator of a program is its head")
    return head


def _dense_weights(program: Program) -> list[str]:
    """Weights that are used whole."""
    names: list[str | None] = []
    for operator in program.operators:
        match operator:
            case Linear():
                names += [operator.weight, operator.bias]
            case RmsNorm() | Logits():
                names.append(operator.weight)
            case Rope():
                names.append(operator.factors)
            case _:
                pass
    return list(dict.fromkeys(name for name in names if name is not None))


def _embeddings(program: Program) -> list[str]:
    return [item.weight for item in program.operators if isinstance(item, Embedding)]
