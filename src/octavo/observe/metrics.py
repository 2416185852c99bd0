"""Counters, gauges and histograms of one engine, read as plain numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

STEP_SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class Counter:
    """A number that only grows."""

    name: str
    help: str
    value: float = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Raises ValueError for a negative amount."""
        if amount < 0:
            raise ValueError(f"{self.name}: a counter cannot go down (by {amount})")
        self.value += amount


@dataclass(slots=True)
class Gauge:
    """A number that goes up and down."""

    name: str
    help: str
    value: float = 0.0

    def set(self, value: float) -> None:
        self.value = value


@dataclass(slots=True)
class Histogram:
    """Observations counted by upper bounds (inclusive); the last bucket has no bound."""

    name: str
    help: str
    bounds: Sequence[float] = STEP_SECONDS_BOUNDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        if list(self.bounds) != sorted(set(self.bounds)):
            raise ValueError(f"{self.name}: bounds must rise")
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


Metric = Counter | Gauge | Histogram


class EngineMetrics:
    """Everything an engine counts; one writer (its loop), any number of readers."""

    def __init__(self) -> None:
        self.steps = Counter("steps", "Steps that computed at least one token")
        self.computed_tokens = Counter("computed_tokens", "Tokens computed, prefill and decode")
        self.generated_tokens = Counter("generated_tokens", "Tokens accepted into answers")
        self.requests = Counter("requests", "Requests added")
        self.failed_steps = Counter("failed_steps", "Steps whose executor raised")
        self.step_seconds = Histogram("step_seconds", "Wall time of a step, planning included")
        self.predicted_seconds = Counter("predicted_seconds", "What steps were expected to take")
        self.row_seconds = Counter("row_seconds", "Rows times wall time, over all steps")
        self.native_seconds = Counter("native_seconds", "Time of steps spent inside kernels")
        self.rows = Gauge("rows", "Requests computed by the last step")

    def note_step(
        self,
        *,
        rows: int,
        computed_tokens: int,
        generated_tokens: int,
        seconds: float,
        predicted_seconds: float,
        native_seconds: float,
    ) -> None:
        """A step that computed tokens has ended: everything at once, as every step pays for it."""
        self.rows.value = rows
        self.steps.value += 1
        self.computed_tokens.value += computed_tokens
        self.generated_tokens.value += generated_tokens
        self.step_seconds.observe(seconds)
        self.predicted_seconds.value += predicted_seconds
        self.row_seconds.value += rows * seconds
        self.native_seconds.value += native_seconds

    def all(self) -> tuple[Metric, ...]:
        return tuple(vars(self).values())

    def snapshot(self) -> dict[str, float]:
        """Name to value; a histogram gives `<name>_sum` and `<name>_count`."""
        numbers: dict[str, float] = {}
        for metric in self.all():
            if isinstance(metric, Histogram):
                numbers[f"{metric.name}_sum"] = metric.total
                numbers[f"{metric.name}_count"] = float(metric.count)
            else:
                numbers[metric.name] = metric.value
        return numbers

    @property
    def outside_native_share(self) -> float:
        """Share of the steps' wall time that was not spent in kernels (0 before the first step)."""
        total = self.step_seconds.total
        return 0.0 if total <= 0 else 1.0 - min(self.native_seconds.value / total, 1.0)
