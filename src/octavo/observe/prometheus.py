"""Metrics of a server in the Prometheus text format, fed by its client and its engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from octavo.core.clock import Clock, monotonic
from octavo.core.service_classes import BUILT_IN, ServiceClass
from octavo.observe import metrics
from octavo.observe.calls import CallObserver
from octavo.observe.stats import ClassStats, EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# The targets of the built-in classes are among the bounds.
_WAIT_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_GAP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0)
_WHOLE_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@dataclass(slots=True)
class _Tokens:
    """Answers' tokens of one class, counted without a lock: there is one for every token."""

    generated: int = 0
    gap_seconds: metrics.Histogram = field(
        default_factory=lambda: metrics.Histogram("gap_seconds", "", _GAP_BOUNDS)
    )


class ServingMetrics(CallObserver):
    """Everything one frontend can tell; hand it to the client as observer, and to the supervisor.

    Times are measured from the arrival of a call. Engine numbers start anew when the engine does,
    as Prometheus expects of a counter. `classes` have the targets that answers are held against.
    Not for several threads.
    """

    def __init__(
        self,
        model_name: str,
        *,
        classes: Iterable[ServiceClass] = BUILT_IN,
        clock: Clock = monotonic,
    ) -> None:
        self.registry = CollectorRegistry()
        self.restarts = 0
        self._open = 0
        self._stats: EngineStats | None = None
        self._clock = clock
        self._model = model_name
        self._requests = self._counter(
            "octavo_requests", "Answers that ended, by how", "outcome", "service_class"
        )
        self._classes = {each.name: each for each in classes}
        self._offered = self._counter(
            "octavo_offered_requests",
            "Requests that asked for work, refused or not",
            "service_class",
        )
        self._refused = self._counter(
            "octavo_refused_requests",
            "Offered requests that were refused, by the bound they met",
            "reason",
            "service_class",
        )
        self._kept = self._counter(
            "octavo_kept_requests",
            "Whole answers within the target of the class they were sent to",
            "target",
            "service_class",
        )
        self._prompt_tokens = self._counter(
            "octavo_prompt_tokens", "Tokens of prompts handed to the engine", "service_class"
        )
        self._cached_tokens = self._counter(
            "octavo_cached_prompt_tokens", "Prompt tokens found in the cache", "service_class"
        )
        self._queue_seconds = self._histogram(
            "octavo_queue_seconds", "From arrival to the first step", _WAIT_BOUNDS
        )
        self._first_token_seconds = self._histogram(
            "octavo_time_to_first_token_seconds", "From arrival to the first token", _WAIT_BOUNDS
        )
        self._tokens: dict[str, _Tokens] = {}
        self._whole_seconds = self._histogram(
            "octavo_request_seconds", "From arrival to the end of a call", _WHOLE_BOUNDS
        )
        self.registry.register(_LateCollector(self))

    def render(self) -> bytes:
        """All metrics as text of type `CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def rejected(self, code: str, service_class: str = "standard") -> None:
        """A request ended before it became a call, with the error of that code."""
        self._requests.labels(self._model, code, service_class).inc()

    def turned_away(self, service_class: str, code: str, reason: str) -> None:
        """A request was refused for want of room before it became a call."""
        self.rejected(code, service_class)
        self._offered.labels(self._model, service_class).inc()
        self.refused(service_class, reason)

    def restarted(self) -> None:
        """The engine was started again."""
        self.restarts += 1
        self._stats = None

    def submitted(self, service_class: str, prompt_tokens: int) -> None:
        self._open += 1
        self._offered.labels(self._model, service_class).inc()
        self._prompt_tokens.labels(self._model, service_class).inc(prompt_tokens)

    def refused(self, service_class: str, reason: str) -> None:
        self._refused.labels(self._model, reason, service_class).inc()

    def delivered(
        self, service_class: str, first_token_seconds: float, token_seconds: float | None
    ) -> None:
        promise = self._classes.get(service_class, ServiceClass(service_class))
        first = _within(first_token_seconds, promise.first_token_seconds)
        rest = _within(token_seconds or 0.0, promise.inter_token_seconds)
        for target, kept in (
            ("first_token", first),
            ("inter_token", rest),
            ("both", first and rest),
        ):
            self._kept.labels(self._model, target, service_class).inc(kept)

    def started(self, service_class: str, queue_seconds: float) -> None:
        self._queue_seconds.labels(self._model, service_class).observe(queue_seconds)

    def first_token(self, service_class: str, seconds: float) -> None:
        self._first_token_seconds.labels(self._model, service_class).observe(seconds)

    def tokens(self, service_class: str, count: int, gap_seconds: float | None) -> None:
        tokens = self._tokens.get(service_class)
        if tokens is None:
            tokens = self._tokens[service_class] = _Tokens()
        tokens.generated += count
        if gap_seconds is not None:
            tokens.gap_seconds.observe(gap_seconds / count, count)

    def ended(
        self, service_class: str, outcomes: Sequence[str], cached_tokens: int, seconds: float
    ) -> None:
        self._open -= 1
        self._cached_tokens.labels(self._model, service_class).inc(cached_tokens)
        self._whole_seconds.labels(self._model, service_class).observe(seconds)
        for outcome in outcomes:
            self._requests.labels(self._model, outcome, service_class).inc()

    def engine_stats(self, stats: EngineStats) -> None:
        self._stats = stats

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, ("model_name", *labels), registry=self.registry)

    def _histogram(self, name: str, about: str, bounds: Sequence[float]) -> Histogram:
        labels = ("model_name", "service_class")
        return Histogram(name, about, labels, buckets=bounds, registry=self.registry)

    def families(self) -> Iterator[Metric]:
        """Answers' tokens and the state of the engine, made when they are asked for."""
        yield from self._token_families()
        yield self._one(CounterMetricFamily, "octavo_engine_restarts", "Restarts", self.restarts)
        yield self._one(
            GaugeMetricFamily, "octavo_open_calls", "Calls that have not ended", self._open
        )
        stats = self._stats
        if stats is None:
            return
        yield self._by(
            GaugeMetricFamily,
            "octavo_kv_pages",
            "Pages of the KV cache by state",
            state={
                "free": stats.pages_free,
                "cached": stats.pages_cached,
                "held": stats.pages_held,
            },
        )
        yield self._by(
            CounterMetricFamily,
            "octavo_prefix_misses",
            "Prompts of which less than possible came from the cache, by reason",
            reason=stats.prefix_misses,
        )
        yield self._by(
            CounterMetricFamily,
            "octavo_preemption_returns",
            "Preempted requests that run again, by what became of their pages",
            mode=stats.preemption_returns,
        )
        yield self._by(
            GaugeMetricFamily,
            "octavo_step_cost_seconds",
            "What was learned of the time of steps, by what it is spent on",
            per=stats.step_cost,
        )
        yield self._by(
            CounterMetricFamily,
            "octavo_step_work",
            "What the steps that were learned from have done, by what their time is spent on",
            per=stats.step_work,
        )
        yield self._by(
            GaugeMetricFamily,
            "octavo_memory_bytes",
            "The most that a part of the engine may hold",
            part=stats.memory_bytes,
        )
        yield from self._class_families(stats.classes)
        for name, about in _ENGINE_GAUGES.items():
            yield self._one(GaugeMetricFamily, f"octavo_{name}", about, getattr(stats, name))
        for name, about in _ENGINE_COUNTERS.items():
            yield self._one(
                CounterMetricFamily, f"octavo_engine_{name}", about, getattr(stats, name)
            )
        if stats.last_step_seconds is not None:
            age = max(self._clock() - stats.last_step_seconds, 0.0)
            about = "Since the engine's last step"
            yield self._one(GaugeMetricFamily, "octavo_last_step_age_seconds", about, age)
        yield self._steps(stats)
        if stats.swap is not None:
            for name, about in _SWAP_GAUGES.items():
                value = getattr(stats.swap, name)
                yield self._one(GaugeMetricFamily, f"octavo_swap_{name}", about, value)
            for name, about in _SWAP_COUNTERS.items():
                value = getattr(stats.swap, name)
                yield self._one(CounterMetricFamily, f"octavo_swap_{name}", about, value)

    def _token_families(self) -> Iterator[Metric]:
        labels = ["model_name", "service_class"]
        generated = CounterMetricFamily(
            "octavo_generated_tokens", "Tokens of answers", labels=labels
        )
        gaps = HistogramMetricFamily(
            "octavo_inter_token_seconds", "Between tokens of one answer", labels=labels
        )
        for service_class, tokens in self._tokens.items():
            values = [self._model, service_class]
            generated.add_metric(values, tokens.generated)
            seconds = tokens.gap_seconds
            gaps.add_metric(values, _so_far(seconds.bounds, seconds.counts), seconds.total)
        yield generated
        yield gaps

    def _class_families(self, classes: Sequence[ClassStats]) -> Iterator[Metric]:
        labels = ["model_name", "service_class"]
        for name, about in _CLASS_GAUGES.items():
            gauge = GaugeMetricFamily(f"octavo_class_{name}", about, labels=labels)
            for each in classes:
                gauge.add_metric([self._model, each.name], getattr(each, name))
            yield gauge
        for name, about in _CLASS_COUNTERS.items():
            counter = CounterMetricFamily(f"octavo_class_{name}", about, labels=labels)
            for each in classes:
                counter.add_metric([self._model, each.name], getattr(each, name))
            yield counter

    def _by(
        self,
        family: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        about: str,
        **labelled: Mapping[str, float],
    ) -> Metric:
        """A metric with a value for each value of its only label."""
        ((label, values),) = labelled.items()
        made = family(name, about, labels=["model_name", label])
        for each, value in values.items():
            made.add_metric([self._model, each], value)
        return made

    def _one(
        self,
        family: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        about: str,
        value: float,
    ) -> Metric:
        made = family(name, about, labels=["model_name"])
        made.add_metric([self._model], value)
        return made

    def _steps(self, stats: EngineStats) -> Metric:
        family = HistogramMetricFamily(
            "octavo_step_seconds", "Wall time of a step", labels=["model_name"]
        )
        seconds = stats.step_seconds
        family.add_metric([self._model], _so_far(seconds.bounds, seconds.counts), seconds.total)
        return family


def _so_far(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """How many are within each bound, as Prometheus counts them."""
    names = (*map(str, bounds), "+Inf")
    return list(zip(names, itertools.accumulate(counts), strict=True))


def _within(seconds: float, target: float | None) -> bool:
    return target is None or seconds <= target


class _LateCollector(Collector):
    def __init__(self, metrics: ServingMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families()


_ENGINE_GAUGES = {
    "waiting": "Requests without a row",
    "running": "Requests with a row",
    "waste_share": "Unwritten share of the pages that running requests hold",
    "kv_backed_bytes": "Memory behind the KV cache",
    "rss_bytes": "Resident memory of the engine",
    "pss_bytes": "Resident memory of the engine, shared pages divided among processes",
    "frontends": "Frontends of the engine",
    "prediction_error": "Usual relative error of predicted step times, of late",
    "batch_fullness": "Share of the rows in use, over all steps",
    "max_rows": "Rows that a step may have",
}
_SWAP_GAUGES = {
    "pages": "Pages in the tier below the KV cache",
    "most_pages": "Pages that it may hold",
    "bytes": "Bytes that its files take",
    "most_bytes": "Bytes that they may take",
}
_SWAP_COUNTERS = {
    "written_pages": "Pages written down",
    "loaded_pages": "Pages read back",
    "evicted_pages": "Pages of the tier that made way for others",
    "damaged_pages": "Pages and index entries that were not what they should be",
    "failures": "Reads and writes that the system refused or cut short",
    "loads": "Prefixes that were fetched",
    "loads_timed_out": "Fetches given up for the time they took",
    "loads_too_slow": "Fetches left out because computing was predicted to be quicker",
}
_ENGINE_COUNTERS = {
    "steps": "Steps that computed at least one token",
    "failed_steps": "Steps whose executor raised",
    "computed_tokens": "Tokens computed, prefill and decode",
    "generated_tokens": "Tokens drawn",
    "preemptions": "Times a request lost its row",
    "hit_pages": "Pages reused from the cache",
    "copied_pages": "Pages copied for answers of equal prompts",
    "evicted_pages": "Cached pages given up",
    "predicted_seconds": "Time that steps were expected to take",
    "work_seconds": "Time of the steps that were learned from",
    "row_seconds": "Rows times wall time, over all steps",
    "idle_seconds": "Time without a step",
    "kv_released_bytes": "Memory of the KV cache that went back to the system",
    "pressure_releases": "Times memory went back because the control group ran short",
    "native_seconds": "Time of steps inside kernels",
    "dropped_frontends": "Frontends that did not read",
    "bad_messages": "Messages that could not be read",
}
_CLASS_GAUGES = {
    "waiting": "Requests of the class without a row",
    "running": "Requests scheduled in the class that have a row",
    "wait_seconds": "How long the last one in the queue of the class is predicted to wait",
}
_CLASS_COUNTERS = {
    "admitted": "Rows given to the class, returns after preemption included",
    "preempted": "Times a request of the class lost its row",
    "chunked": "Prompts of the class computed in parts",
    "lent": "Times the class computed for a stricter one, or held pages beyond its share",
    "starved": "Times the class was given its minimum of a step's time",
    "degraded": "Requests of the class that a lower one took",
}
