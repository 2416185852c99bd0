"""Draws and scores of a step as flat arrays, the form in which they cross into native code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.compute.batch import Draw, Float32Array, Int32Array, Score, StepOutput
from octavo.core.output import TokenLogprob

ByteArray = NDArray[np.uint8]

JOB = np.dtype(
    [
        ("seed", np.uint64),
        ("counter", np.uint64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("temperature", np.float32),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("row", np.int32),
        ("kind", np.int32),
        ("target", np.int32),
        ("top_k", np.int32),
        ("top", np.int32),
        ("top_begin", np.int32),
        ("bias_begin", np.int32),
        ("bias_count", np.int32),
        ("banned_begin", np.int32),
        ("banned_count", np.int32),
        ("prompt_begin", np.int32),
        ("prompt_count", np.int32),
        ("output_begin", np.int32),
        ("output_count", np.int32),
    ],
    align=True,
)
"""Mirrors `LogitJob` of csrc/octavo/sample.h."""

_RECORD = struct.Struct("=QQddffff14i")
"""The same; filling an array field by field or tuple by tuple takes several times as long."""
_TOP, _TOP_BEGIN = JOB.names.index("top"), JOB.names.index("top_begin")  # type: ignore[union-attr]

RESULT = np.dtype([("logprob", np.float64), ("token", np.int32), ("status", np.int32)], align=True)
"""Mirrors `LogitResult` of csrc/octavo/sample.h."""

DRAW_KIND = 0
SCORE_KIND = 1

STATUS_MESSAGES = {
    1: "the logits of this row are not finite numbers",
    2: "no token is left to choose from: every one is ruled out",
}


_NO_IDS = np.zeros(0, dtype=np.int32)
_NO_BIASES = np.zeros(0, dtype=np.float32)
_NO_LOGPROBS = np.zeros(0, dtype=np.float64)
# They are never written to, being empty, so that all steps can share them.


class PackedJobs(msgspec.Struct, frozen=True, gc=False):
    """The draws and scores of a step, sorted by the batch token they look at.

    `wanted` [W] int32: the distinct batch tokens whose logits are needed, rising; a job's `row`
    is an index into it. Native code fills results, `top_ids` and `top_logprobs`.
    """

    wanted: Int32Array
    job_bytes: ByteArray
    ids: Int32Array
    bias_values: Float32Array
    result_bytes: ByteArray
    top_ids: Int32Array
    top_logprobs: NDArray[np.float64]
    tops: list[tuple[int, int]]
    """`top` and `top_begin` of each job."""
    order: list[int]
    """Job j answers item order[j] of the draws followed by the scores."""
    draw_count: int

    @property
    def jobs(self) -> NDArray[Any]:
        """The jobs as an array of `JOB`."""
        return self.job_bytes.view(JOB)

    @property
    def results(self) -> NDArray[Any]:
        """What native code found, as an array of `RESULT`."""
        return self.result_bytes.view(RESULT)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What native code takes, in the order of `jobs_from_arrays` in bindings/sampling.h."""
        return (
            self.job_bytes,
            self.ids,
            self.bias_values,
            self.result_bytes,
            self.top_ids,
            self.top_logprobs,
        )

    def output(self) -> StepOutput:
        """The answers, in the order of the draws and scores that were packed."""
        count = len(self.order)
        tokens: list[int] = [0] * count
        logprobs: list[TokenLogprob | None] = [None] * count
        errors: dict[int, str] = {}
        for item, (top, begin), (logprob, token, status) in zip(
            self.order, self.tops, self.results.tolist(), strict=True
        ):
            tokens[item] = token
            if status:
                errors[item] = STATUS_MESSAGES[status]
            if top >= 0 and (not status or item >= self.draw_count):
                ids = self.top_ids[begin : begin + top].tolist() if not status else ()
                values = self.top_logprobs[begin : begin + top].tolist() if not status else ()
                logprobs[item] = TokenLogprob(token, logprob, tuple(zip(ids, values, strict=True)))
        draws = self.draw_count
        return StepOutput(
            drawn=tokens[:draws],
            drawn_logprobs=logprobs[:draws],
            scored=[entry for entry in logprobs[draws:] if entry is not None],
            draw_errors={item: text for item, text in sorted(errors.items()) if item < draws},
        )


class _Ids:
    """Gathers sequences of token ids into one flat array."""

    def __init__(self) -> None:
        self._parts: list[Int32Array] = []
        self._length = 0

    def add(self, ids: Sequence[int]) -> tuple[int, int]:
        """Append; returns where the ids begin and how many there are."""
        if not len(ids):
            return self._length, 0
        part = np.asarray(ids, dtype=np.int32)
        self._parts.append(part)
        begin = self._length
        self._length += len(part)
        return begin, len(part)

    def array(self) -> Int32Array:
        return np.concatenate(self._parts) if self._parts else _NO_IDS


def pack_jobs(draws: Sequence[Draw], scores: Sequence[Score], vocabulary_size: int) -> PackedJobs:
    """Lay out `draws` and `scores` for native code, which checks them (as `check_jobs` does).

    Raises:
        ValueError: a batch token or `top` is negative, a bias has ids without values, or a number
            does not fit its field.
    """
    tokens = [draw.token for draw in draws] + [score.token for score in scores]
    order = sorted(range(len(tokens)), key=tokens.__getitem__)
    wanted = sorted(set(tokens))
    if wanted and wanted[0] < 0:
        raise ValueError("a draw or score looks at a negative batch token")
    if any((draw.top or 0) < 0 for draw in draws) or any(score.top < 0 for score in scores):
        raise ValueError("top, the number of alternatives, must not be negative")
    row_of = {token: row for row, token in enumerate(wanted)}
    ids = _Ids()
    bias_values: list[float] = []
    biases = []
    records: list[tuple[Any, ...]] = []
    top_begin = 0
    try:
        for draw in draws:  # first of all ids, so that ids and values have equal indices
            if len(draw.bias_ids) != len(draw.bias_values):
                raise ValueError("bias_ids and bias_values differ in length")
            biases.append(ids.add(draw.bias_ids))
            bias_values.extend(draw.bias_values)
        for draw, bias in zip(draws, biases, strict=True):
            top = -1 if draw.top is None else min(draw.top, vocabulary_size)
            records.append(_draw_record(draw, row_of[draw.token], top, top_begin, bias, ids))
            top_begin += max(top, 0)
        for score in scores:
            top = min(score.top, vocabulary_size)
            records.append(_score_record(score, row_of[score.token], top, top_begin))
            top_begin += max(top, 0)
        packed = bytearray().join([_RECORD.pack(*records[item]) for item in order])
    except (OverflowError, struct.error) as error:
        raise ValueError(f"a number of a draw or score is too large: {error}") from None
    return PackedJobs(
        wanted=np.array(wanted, dtype=np.int32),
        job_bytes=np.frombuffer(packed, dtype=np.uint8),
        ids=ids.array(),
        bias_values=np.array(bias_values, dtype=np.float32) if bias_values else _NO_BIASES,
        result_bytes=np.zeros(len(order) * RESULT.itemsize, dtype=np.uint8),
        top_ids=np.zeros(top_begin, dtype=np.int32) if top_begin else _NO_IDS,
        top_logprobs=np.zeros(top_begin, dtype=np.float64) if top_begin else _NO_LOGPROBS,
        tops=[(records[item][_TOP], records[item][_TOP_BEGIN]) for item in order],
        order=order,
        draw_count=len(draws),
    )


def draw_bytes(draw: Draw) -> bytes:
    """The bytes of a draw's `JOB`, without its batch token, counter and ids.

    Raises:
        struct.error: a number does not fit its field.
    """
    top = -1 if draw.top is None else draw.top
    return _RECORD.pack(*_settings(draw, 0), 0, DRAW_KIND, 0, draw.top_k, top, *(0,) * 9)


def _settings(draw: Draw, counter: int) -> tuple[Any, ...]:
    return (
        draw.seed & (2**64 - 1),
        counter,
        draw.top_p,
        draw.min_p,
        draw.temperature,
        draw.repetition_penalty,
        draw.presence_penalty,
        draw.frequency_penalty,
    )


def _draw_record(
    draw: Draw, row: int, top: int, top_begin: int, bias: tuple[int, int], ids: _Ids
) -> tuple[Any, ...]:
    sees = draw.looks_back
    return (
        *_settings(draw, draw.counter),
        row,
        DRAW_KIND,
        0,
        draw.top_k,
        top,
        top_begin,
        *bias,
        *ids.add(draw.banned),
        *ids.add(draw.history_prompt if sees else ()),
        *ids.add(draw.history_output if sees else ()),
    )


def _score_record(score: Score, row: int, top: int, top_begin: int) -> tuple[Any, ...]:
    settings = (0, 0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0)
    return (*settings, row, SCORE_KIND, score.target, 0, top, top_begin) + (0,) * 8


def check_jobs(packed: PackedJobs, vocabulary_size: int) -> None:
    """The checks of native code, for interpreters without it.

    Raises:
        ValueError: a setting is out of its domain or a token id not in the vocabulary.
    """
    jobs = packed.jobs
    for name, low, high in (
        ("top_p", 0.0, 1.0),
        ("min_p", 0.0, 1.0),
        ("temperature", 0.0, np.finfo(np.float32).max),
        ("repetition_penalty", np.finfo(np.float32).tiny, np.finfo(np.float32).max),
        ("presence_penalty", np.finfo(np.float32).min, np.finfo(np.float32).max),
        ("frequency_penalty", np.finfo(np.float32).min, np.finfo(np.float32).max),
        ("top_k", 0, 2**31 - 1),
        ("target", 0, vocabulary_size - 1),
    ):
        values = jobs[name]
        wrong = ~((values >= low) & (values <= high))  # also true for NaN
        if wrong.any():
            raise ValueError(f"{name} must be from {low} to {high}, not {values[wrong][0]}")
    if not np.isfinite(packed.bias_values).all():
        raise ValueError("logit bias values must be finite")
    wrong = (packed.ids < 0) | (packed.ids >= vocabulary_size)
    if wrong.any():
        raise ValueError(f"token id {packed.ids[wrong][0]} is not in the vocabulary")
