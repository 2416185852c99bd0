"""Collects the numbers of an engine for those who watch it."""

from __future__ import annotations

from octavo.core.clock import Clock
from octavo.engine.engine import Engine
from octavo.observe.process_memory import proportional_bytes, resident_bytes
from octavo.observe.stats import Buckets, EngineStats

PROPORTIONAL_SECONDS = 5.0


class StatsSource:
    """Reads one engine; the memory figure that is dear to get is refreshed every few seconds."""

    def __init__(self, engine: Engine, clock: Clock):
        self._engine = engine
        self._clock = clock
        self._last_step_seconds: float | None = None
        self._pss_bytes = proportional_bytes()
        self._pss_seconds = clock()

    def stepped(self) -> None:
        """A step has just ended."""
        self._last_step_seconds = self._clock()

    def read(
        self, *, ping: int | None, frontends: int, dropped_frontends: int, bad_messages: int
    ) -> EngineStats:
        now = self._clock()
        if now - self._pss_seconds >= PROPORTIONAL_SECONDS:
            self._pss_bytes, self._pss_seconds = proportional_bytes(), now
        scheduler, metrics = self._engine.scheduler, self._engine.metrics
        counters, pool = scheduler.counters, scheduler.cache.pool
        steps = metrics.step_seconds
        return EngineStats(
            at_seconds=now,
            last_step_seconds=self._last_step_seconds,
            waiting=scheduler.waiting_count,
            running=scheduler.running_count,
            pages_free=pool.free_count,
            pages_cached=pool.cached_count,
            pages_held=pool.held_count,
            waste_share=scheduler.waste().share,
            steps=int(metrics.steps.value),
            failed_steps=int(metrics.failed_steps.value),
            computed_tokens=int(metrics.computed_tokens.value),
            generated_tokens=int(metrics.generated_tokens.value),
            admitted=counters.admitted,
            finished=counters.finished,
            cancelled=counters.cancelled,
            failed=counters.failed,
            preemptions=counters.preemptions,
            hit_pages=counters.hit_pages,
            evicted_pages=counters.evicted_pages,
            native_seconds=metrics.native_seconds.value,
            step_seconds=Buckets(tuple(steps.bounds), tuple(steps.counts), steps.total),
            frontends=frontends,
            dropped_frontends=dropped_frontends,
            bad_messages=bad_messages,
            rss_bytes=resident_bytes(),
            pss_bytes=self._pss_bytes,
            ping=ping,
        )
