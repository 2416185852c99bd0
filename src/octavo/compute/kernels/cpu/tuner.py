"""Measures which knobs of the linear kernels suit a shape on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from octavo.compute.kernels.cpu import _native
from octavo.compute.kernels.cpu.tuning import DEFAULT, Knobs, values
from octavo.compute.load.source import RawTensor

_COLD_BYTES = 96 << 20
"""Copies of a weight take turns, so that one row finds it outside of the caches."""

_BURST_SECONDS = 0.004
_BURSTS = 5
_LEAST_GAIN = 0.03
"""Less than this is noise, and the default stays."""

CANDIDATES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "tile_rows": ((2, 3, 4, 5, 6), (16, 64)),
    "spread_rows": ((4, 12, 24, 48, 1 << 20), (4, 16, 32)),
    "block_rows": ((24, 48, 96), (64, 192)),
    "chunks_per_thread": ((2, 4, 8, 16, 32), (1, 16)),
    "prefetch_bytes": ((512, 1024, 2048, 4096, 8192), (1,)),
}
"""Values to try of each knob, and the numbers of rows at which it matters."""

Seconds = Callable[[Knobs, int], float]
"""Seconds of a call with these knobs and this many rows, the mean of a burst."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best knobs found, and how much less time they take than the default, as a share of it."""

    knobs: Knobs
    gain: float


def search(seconds: Seconds) -> Tuned:
    """One knob after the other by its effect where it matters, then all together once more."""
    best = DEFAULT
    for name, (candidates, rows) in CANDIDATES.items():
        chosen, chosen_share = best, 1.0 - _LEAST_GAIN
        for candidate in candidates:
            trial = replace(best, **{name: candidate})
            if trial != best:
                share = _time_share(seconds, trial, best, rows)
                if share < chosen_share:
                    chosen, chosen_share = trial, share
        best = chosen
    if best == DEFAULT:
        return Tuned(DEFAULT, 0.0)
    rows = tuple(sorted({count for _, rows in CANDIDATES.values() for count in rows}))
    share = _time_share(seconds, best, DEFAULT, rows)
    return Tuned(best, 1.0 - share) if share < 1.0 - _LEAST_GAIN else Tuned(DEFAULT, 0.0)


def _time_share(seconds: Seconds, trial: Knobs, other: Knobs, rows: Sequence[int]) -> float:
    """Time with `trial` over time with `other`, the mean over `rows`.

    Bursts of both alternate, and the less favourable of two readings counts, so that what else the
    machine does cannot pass for a gain.
    """
    shares = []
    for count in rows:
        pairs = [(seconds(trial, count), seconds(other, count)) for _ in range(_BURSTS)]
        median = statistics.median(mine / theirs for mine, theirs in pairs)
        best = min(mine for mine, _ in pairs) / min(theirs for _, theirs in pairs)
        shares.append(max(median, best))
    return statistics.fmean(shares)


def measure_tensor(tensor: RawTensor, tier: str, threads: int) -> Tuned:
    """Tune one weight matrix.

    Raises:
        ValueError: the kernels do not take it.
    """
    channels, width = tensor.shape
    copies = max(1, -(-_COLD_BYTES // max(1, tensor.data.nbytes)))
    timer = _native.LinearTimer(
        tier, threads, tensor.data, int(tensor.ggml_type), channels, width, copies
    )
    rng = np.random.default_rng(0)

    def seconds(knobs: Knobs, rows: int) -> float:
        timer.set_knobs(*values(knobs))
        x = rng.standard_normal((rows, width), dtype=np.float32)
        first = timer.run(x, 2)
        calls = max(2, min(copies, round(_BURST_SECONDS / max(min(first), 1e-7))))
        return sum(timer.run(x, calls)) / calls

    return search(seconds)
