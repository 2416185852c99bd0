"""Metrics of a server in the Prometheus text format, fed by its client and its engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from octavo.core.clock import Clock, monotonic
from octavo.observe.calls import CallObserver
from octavo.observe.stats import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_WAIT_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_GAP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_WHOLE_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class ServingMetrics(CallObserver):
    """Everything one frontend can tell; hand it to the client as observer, and to the supervisor.

    Times are measured from the arrival of a call. Engine numbers start anew when the engine does,
    as Prometheus expects of a counter. Not for several threads.
    """

    def __init__(self, model_name: str, *, clock: Clock = monotonic) -> None:
        self.registry = CollectorRegistry()
        self.restarts = 0
        self._open = 0
        self._stats: EngineStats | None = None
        self._clock = clock
        self._model = model_name
        self._requests = self._counter(
            "octavo_requests", "Answers that ended, by how", "outcome", "service_class"
        )
        self._prompt_tokens = self._counter(
            "octavo_prompt_tokens", "Tokens of prompts handed to the engine", "service_class"
        )
        self._cached_tokens = self._counter(
            "octavo_cached_prompt_tokens", "Prompt tokens found in the cache", "service_class"
        )
        self._generated_tokens = self._counter(
            "octavo_generated_tokens", "Tokens of answers", "service_class"
        )
        self._queue_seconds = self._histogram(
            "octavo_queue_seconds", "From arrival to the first step", _WAIT_BOUNDS
        )
        self._first_token_seconds = self._histogram(
            "octavo_time_to_first_token_seconds", "From arrival to the first token", _WAIT_BOUNDS
        )
        self._gap_seconds = self._histogram(
            "octavo_inter_token_seconds", "Between tokens of one answer", _GAP_BOUNDS
        )
        self._whole_seconds = self._histogram(
            "octavo_request_seconds", "From arrival to the end of a call", _WHOLE_BOUNDS
        )
        self.registry.register(_EngineCollector(self))

    def render(self) -> bytes:
        """All metrics as text of type `CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def rejected(self, reason: str, service_class: str = "standard") -> None:
        """A request was refused before it became a call; `reason` is the code of its error."""
        self._requests.labels(self._model, reason, service_class).inc()

    def restarted(self) -> None:
        """The engine was started again."""
        self.restarts += 1
        self._stats = None

    def submitted(self, service_class: str, prompt_tokens: int) -> None:
        self._open += 1
        self._prompt_tokens.labels(self._model, service_class).inc(prompt_tokens)

    def started(self, service_class: str, queue_seconds: float) -> None:
        self._queue_seconds.labels(self._model, service_class).observe(queue_seconds)

    def first_token(self, service_class: str, seconds: float) -> None:
        self._first_token_seconds.labels(self._model, service_class).observe(seconds)

    def tokens(self, service_class: str, count: int, gap_seconds: float | None) -> None:
        self._generated_tokens.labels(self._model, service_class).inc(count)
        if gap_seconds is not None:
            gaps = self._gap_seconds.labels(self._model, service_class)
            for _ in range(count):
                gaps.observe(gap_seconds / count)

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

    def engine_families(self) -> Iterator[Metric]:
        """The state of the engine as metric families, made when they are asked for."""
        yield self._one(CounterMetricFamily, "octavo_engine_restarts", "Restarts", self.restarts)
        yield self._one(
            GaugeMetricFamily, "octavo_open_calls", "Calls that have not ended", self._open
        )
        stats = self._stats
        if stats is None:
            return
        pages = GaugeMetricFamily(
            "octavo_kv_pages", "Pages of the KV cache by state", labels=["model_name", "state"]
        )
        for state in ("free", "cached", "held"):
            pages.add_metric([self._model, state], getattr(stats, f"pages_{state}"))
        yield pages
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
        buckets: list[tuple[str, float]] = []
        so_far = 0
        for bound, count in zip(
            (*stats.step_seconds.bounds, float("inf")), stats.step_seconds.counts, strict=True
        ):
            so_far += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), so_far))
        family.add_metric([self._model], buckets, stats.step_seconds.total)
        return family


class _EngineCollector(Collector):
    def __init__(self, metrics: ServingMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.engine_families()


_ENGINE_GAUGES = {
    "waiting": "Requests without a row",
    "running": "Requests with a row",
    "waste_share": "Unwritten share of the pages that running requests hold",
    "rss_bytes": "Resident memory of the engine",
    "pss_bytes": "Resident memory of the engine, shared pages divided among processes",
    "frontends": "Frontends of the engine",
}
_ENGINE_COUNTERS = {
    "steps": "Steps that computed at least one token",
    "failed_steps": "Steps whose executor raised",
    "computed_tokens": "Tokens computed, prefill and decode",
    "generated_tokens": "Tokens drawn",
    "preemptions": "Times a request lost its row for want of pages",
    "hit_pages": "Pages reused from the cache",
    "evicted_pages": "Cached pages given up",
    "native_seconds": "Time of steps inside kernels",
    "dropped_frontends": "Frontends that did not read",
    "bad_messages": "Messages that could not be read",
}
