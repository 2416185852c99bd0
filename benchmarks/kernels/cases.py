"""A kernel under measurement: the work of a call, how to repeat it, and its share of the limit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.kernels.limits import Limits

_BURST_SECONDS = 0.004
_ROUND_SECONDS = 0.08


@dataclass(frozen=True, slots=True)
class Work:
    """What one call cannot do without: bytes read, and operations of one kind of arithmetic."""

    read_bytes: float
    operations: float
    kind: str
    """Field of `Limits` that bounds the operations."""

    def seconds(self, limits: Limits) -> tuple[float, str]:
        """Least time of a call, and the limit that sets it."""
        reading = self.read_bytes / (limits.read * 1e9)
        computing = self.operations / (getattr(limits, self.kind) * 1e9)
        return max((reading, "read"), (computing, self.kind))


@dataclass(frozen=True, slots=True)
class Case:
    """`run(calls)` gives the seconds of each call; `rotation` calls see all of the cold data."""

    group: str
    name: str
    work: Work
    rotation: int
    run: Callable[[int], list[float]]
    aim: float | None = None
    """Share of the limit that this kernel should reach."""


@dataclass(frozen=True, slots=True)
class Result:
    """Shares are of the least time that `limits` allow; `best` and `median` are bursts' means."""

    group: str
    name: str
    bound: str
    best_microseconds: float
    median_microseconds: float
    rate: float
    share: float
    median_share: float
    aim: float | None
    limits: Limits


def measure(case: Case, limits_now: Callable[[], Limits], seconds: float) -> Result:
    """Bursts of whole rotations for about `seconds`, at least three of them.

    Limits are taken before, after and in between, for a shared machine changes its speed all the
    time; of each its best counts, as of the bursts.
    """
    limits = limits_now()
    first = case.run(case.rotation)
    mean = sum(first) / len(first)
    rotations = max(1, round(_BURST_SECONDS / (mean * case.rotation)))
    bursts: list[float] = []
    began = round_began = time.perf_counter()
    while len(bursts) < 3 or time.perf_counter() - began < seconds:
        times = case.run(rotations * case.rotation)
        bursts.append(sum(times) / len(times))
        if time.perf_counter() - round_began > _ROUND_SECONDS:
            limits = limits.or_better(limits_now())
            round_began = time.perf_counter()
    limits = limits.or_better(limits_now())
    best, median = min(bursts), statistics.median(bursts)
    least, bound = case.work.seconds(limits)
    amount = case.work.read_bytes if bound == "read" else case.work.operations
    return Result(
        group=case.group,
        name=case.name,
        bound=bound,
        best_microseconds=best * 1e6,
        median_microseconds=median * 1e6,
        rate=amount / best / 1e9,
        share=least / best,
        median_share=least / median,
        aim=case.aim,
        limits=limits,
    )
