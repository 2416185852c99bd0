"""Collects the numbers of an engine for those who watch it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.clock import Clock
from octavo.engine.engine import Engine
from octavo.observe.process_memory import proportional_bytes, resident_bytes
from octavo.observe.stats import Buckets, ClassStats, EngineStats, SwapStats

if TYPE_CHECKING:
    from octavo.memory.tiers.swapper import Swapper

PROPORTIONAL_SECONDS = 5.0


class StatsSource:
    """Reads one engine; the memory figure that is dear to get is refreshed every few seconds."""

    def __init__(self, engine: Engine, clock: Clock, *, max_rows: int):
        self._engine = engine
        self._clock = clock
        self._max_rows = max_rows
        self._started_seconds = clock()
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
        elastic = self._engine.elastic
        counters, pool = scheduler.counters, scheduler.cache.pool
        steps = metrics.step_seconds
        return EngineStats(
            at_seconds=now,
            started_seconds=self._started_seconds,
            last_step_seconds=self._last_step_seconds,
            waiting=scheduler.waiting_count,
            running=scheduler.running_count,
            pages_free=pool.free_count,
            pages_cached=pool.cached_count,
            pages_held=pool.held_count,
            waste_share=scheduler.waste().share,
            kv_backed_bytes=elastic.backed_bytes if elastic else 0,
            kv_released_bytes=elastic.released_bytes if elastic else 0,
            pressure_releases=elastic.pressure_releases if elastic else 0,
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
            copied_pages=counters.copied_pages,
            prefix_misses=dict(counters.prefix_misses),
            preemption_returns=dict(counters.returns),
            evicted_pages=counters.evicted_pages,
            native_seconds=metrics.native_seconds.value,
            predicted_seconds=metrics.predicted_seconds.value,
            prediction_error=scheduler.cost.error,
            step_cost={**scheduler.cost.learned(), "between": scheduler.between_seconds},
            step_work=scheduler.cost.work(),
            work_seconds=scheduler.cost.observed_seconds,
            row_seconds=metrics.row_seconds.value,
            max_rows=self._max_rows,
            step_seconds=Buckets(tuple(steps.bounds), tuple(steps.counts), steps.total),
            frontends=frontends,
            dropped_frontends=dropped_frontends,
            bad_messages=bad_messages,
            memory_bytes=dict(self._engine.memory_bytes),
            rss_bytes=resident_bytes(),
            pss_bytes=self._pss_bytes,
            classes=self._classes(),
            ping=ping,
            swap=_swap_stats(self._engine.swapper),
        )

    def _classes(self) -> tuple[ClassStats, ...]:
        scheduler = self._engine.scheduler
        loads = scheduler.class_loads()
        return tuple(
            ClassStats(
                name=name,
                waiting=loads[name].waiting,
                running=loads[name].running,
                wait_seconds=loads[name].wait_seconds,
                admitted=counters.admitted,
                preempted=counters.preempted,
                chunked=counters.chunked,
                lent=counters.lent,
                starved=counters.starved,
                degraded=counters.degraded,
            )
            for name, counters in scheduler.class_counters.items()
        )


def _swap_stats(swapper: Swapper | None) -> SwapStats | None:
    if swapper is None:
        return None
    tier = swapper.mover.tier
    capacity, moved, decided = tier.capacity(), tier.counters, swapper.counters
    return SwapStats(
        pages=capacity.pages,
        most_pages=capacity.most_pages,
        bytes=capacity.bytes,
        most_bytes=capacity.most_bytes,
        written_pages=moved.stored,
        loaded_pages=moved.loaded,
        evicted_pages=moved.evicted,
        damaged_pages=moved.damaged,
        failures=moved.failed,
        loads=decided.loads,
        loads_timed_out=decided.loads_timed_out,
        loads_too_slow=decided.loads_too_slow,
    )
