"""Percentiles by nearest rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least `percent` of all do not exceed; 0 without values."""
    ordered = sorted(values)
    return _nearest(ordered, percent) if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and tails of some seconds; all None if nothing was measured."""

    p50: float | None
    p90: float | None
    p99: float | None
    longest: float | None


def spread(values: Iterable[float]) -> Spread:
    """Percentiles of `values` by nearest rank."""
    ordered = sorted(values)
    if not ordered:
        return Spread(None, None, None, None)
    p50, p90, p99 = (_nearest(ordered, percent) for percent in (50, 90, 99))
    return Spread(p50, p90, p99, ordered[-1])


def _nearest(ordered: list[float], percent: float) -> float:
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]
