"""Norm, rope and sampling, by the bytes they have to read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from benchmarks.kernels.cases import Case, Work

from octavo.compute.batch import Draw
from octavo.compute.kernels.cpu import _native
from octavo.compute.sample.params import pack_jobs

_ROWS = 256
_LOGIT_ROWS = 16
_DRAWS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "top-p": {"temperature": 0.7, "top_p": 0.9},
    "top-k": {"temperature": 0.7, "top_k": 50},
}


def cases(tier: str, threads: int) -> Iterator[Case]:
    """Norm and rope of a prompt's chunk, and every way to draw a token from a batch's logits."""
    yield _rms_norm(tier, threads, 576)
    yield _rms_norm(tier, threads, 2048)
    yield _rope(tier, threads, 9, 64)
    for vocabulary_size in (49152, 151936):
        for name, settings in _DRAWS.items():
            yield _sampling(threads, vocabulary_size, name, settings)


def _rms_norm(tier: str, threads: int, width: int) -> Case:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((_ROWS, width), dtype=np.float32)
    weight, out = np.ones(width, dtype=np.float32), np.empty_like(x)
    return Case(
        group="other",
        name=f"rms norm {_ROWS}x{width}",
        work=Work(x.nbytes, 3.0 * x.size, "fma"),
        rotation=1,
        run=lambda calls: _native.time_rms_norm(tier, threads, x, weight, out, calls),
    )


def _rope(tier: str, threads: int, heads: int, head_dim: int) -> Case:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((_ROWS, heads * head_dim), dtype=np.float32)
    table, out = np.ones((_ROWS, head_dim), dtype=np.float32), np.empty_like(x)
    return Case(
        group="other",
        name=f"rope {_ROWS} x {heads} heads, d{head_dim}",
        work=Work(x.nbytes + table.nbytes, 3.0 * x.size, "fma"),
        rotation=1,
        run=lambda calls: _native.time_rope(tier, threads, x, table, heads, out, calls),
    )


def _sampling(threads: int, vocabulary_size: int, name: str, settings: dict[str, float]) -> Case:
    rng = np.random.default_rng(0)
    logits = 3.0 * rng.standard_normal((_LOGIT_ROWS, vocabulary_size), dtype=np.float32)
    draws = [Draw(token=row, seed=row, counter=0, **settings) for row in range(_LOGIT_ROWS)]  # type: ignore[arg-type]
    packed = pack_jobs(draws, [], vocabulary_size)
    sampler = _native.Sampler(vocabulary_size, threads)
    arrays = packed.arrays()
    return Case(
        group="other",
        name=f"sampling {_LOGIT_ROWS}x{vocabulary_size}, {name}",
        work=Work(logits.nbytes, 0.0, "fma"),
        rotation=1,
        run=_timed(lambda: sampler.sample(logits, *arrays)),
    )


def _timed(call: Callable[[], None]) -> Callable[[int], list[float]]:
    def run(calls: int) -> list[float]:
        seconds = []
        for _ in range(calls):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        return seconds

    return run
