"""What is compared, and by how much Octavo is better."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.rounds import OURS, PEER_LOADS, Run
from benchmarks.serving.report import latency

_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Figure:
    """`read` gives None where a run has no such number."""

    name: str
    read: Callable[[Run], float | None]
    more_is_better: bool = False

    def ratio(self, ours: float, theirs: float) -> float:
        """Above 1: Octavo is better."""
        better, worse = (ours, theirs) if self.more_is_better else (theirs, ours)
        return better / max(worse, _TINY)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of the medians; `low` and `high` are the worst and the best of single rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one load: medians by engine, ratios by peer."""

    load: str
    figure: str
    medians: Mapping[str, float]
    ratios: Mapping[str, Ratio]


def _latency(name: str, key: str, part: str) -> Figure:
    return Figure(name, lambda run: latency(run.summary, key, part))


def _decode_rate(run: Run) -> float | None:
    milliseconds = latency(run.summary, "tpot", "p50")
    return None if not milliseconds else 1000 / milliseconds


THROUGHPUT = Figure(
    "output tokens/s", lambda run: run.summary.output_tokens_per_second, more_is_better=True
)
DECODE = Figure("decode tokens/s", _decode_rate, more_is_better=True)
TTFT = _latency("TTFT p50, ms", "ttft", "p50")
TTFT_P99 = _latency("TTFT p99, ms", "ttft", "p99")
TPOT = _latency("TPOT p50, ms", "tpot", "p50")
TPOT_P99 = _latency("TPOT p99, ms", "tpot", "p99")
MEMORY = Figure("peak memory, MB", lambda run: run.peak_bytes / 1e6)
SECONDS = Figure("all requests, s", lambda run: run.summary.seconds)
START = Figure("start to first token, s", lambda run: run.start_seconds)

FIGURES: Mapping[str, Sequence[Figure]] = {
    "crowd": (THROUGHPUT, TTFT, TTFT_P99, TPOT, TPOT_P99, MEMORY),
    "one": (DECODE, TTFT, MEMORY),
    "long": (TTFT, MEMORY),
    "prefix": (SECONDS, TTFT, TTFT_P99, MEMORY),
}
ANY_LOAD = "any"


def compare(runs: Sequence[Run]) -> list[Row]:
    """Rows of every load that ran; the start counts whatever the load was."""
    rows = []
    for load in dict.fromkeys(run.load for run in runs):
        chosen = [run for run in runs if run.load == load]
        rows += [row_of(load, figure, chosen) for figure in FIGURES[load]]
    return [*rows, row_of(ANY_LOAD, START, runs)] if runs else []


def row_of(load: str, figure: Figure, runs: Sequence[Run]) -> Row:
    """Engines without the figure are left out of the row."""
    values: dict[str, dict[tuple[int, str], float]] = {}
    for run in runs:
        value = figure.read(run)
        if value is not None:
            values.setdefault(run.engine, {})[run.round, run.load] = value
    medians = {engine: statistics.median(found.values()) for engine, found in values.items()}
    ratios = {}
    for peer in medians.keys() - {OURS}:
        ours, theirs = values.get(OURS, {}), values[peer]
        single = [figure.ratio(ours[each], theirs[each]) for each in ours.keys() & theirs.keys()]
        if single:
            median = figure.ratio(medians[OURS], medians[peer])
            ratios[peer] = Ratio(median, min(single), max(single))
    return Row(load, figure.name, medians, ratios)


def remarks(runs: Sequence[Run]) -> list[str]:
    """What makes a run less than it should be."""
    found = []
    for run in runs:
        summary, where = run.summary, f"{run.engine}, {run.load}, round {run.round + 1}"
        for kind, count in summary.failures.items():
            found.append(f"{where}: {count} x {kind}: {summary.first_messages[kind]}")
        if summary.answers_of_other_length or summary.prompts_of_other_length:
            found.append(f"{where}: lengths differ from what was wanted")
        if summary.cached_tokens and not PEER_LOADS[run.load].prefix_tokens:
            found.append(f"{where}: {summary.cached_tokens} prompt tokens came from a cache")
    return found
