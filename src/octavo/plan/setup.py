"""Builds the scheduler that an engine with these settings would have on a profile's machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.clock import Clock
from octavo.core.errors import CapacityError
from octavo.core.settings import Settings, page_tokens
from octavo.plan.profile import Profile
from octavo.plan.report import Report, Targets, make_report
from octavo.plan.simulator import Progress, SimulatedClock, Simulation
from octavo.plan.traces import TraceRequest
from octavo.schedule.cost import CostProfile
from octavo.schedule.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The pages of a KV cache, and the longest context served from them."""

    pages: int
    page_tokens: int
    context_tokens: int


def plan_cache(settings: Settings, profile: Profile) -> CacheSize:
    """Pages and served context, as the engine works them out.

    `memory.kv_bytes: auto` is what the engine took when the profile was measured.

    Raises:
        CapacityError: the bytes do not hold one page.
        SettingsError: the page size is too small for this model.
    """
    tokens = page_tokens(settings.memory.block_size, profile.engine.layer_token_bytes)
    page_bytes = profile.engine.layers * profile.engine.layer_token_bytes * tokens
    kv_bytes = settings.memory.kv_bytes or profile.engine.kv_bytes
    pages = kv_bytes // page_bytes
    if pages < 1:
        raise CapacityError(
            f"{kv_bytes} bytes do not hold one page of {page_bytes} bytes",
            field="memory.kv_bytes",
            remedy=f"give at least {page_bytes} bytes",
        )
    return CacheSize(pages, tokens, min(profile.engine.context_tokens, pages * tokens))


def build_scheduler(
    settings: Settings, size: CacheSize, cost: CostProfile, clock: Clock
) -> Scheduler:
    """A scheduler with these settings on pages of that size, moved by `clock`."""
    chosen = settings.scheduler
    return Scheduler(
        pages=size.pages,
        page_tokens=size.page_tokens,
        token_budget=chosen.token_budget,
        max_rows=chosen.max_batch_size,
        max_context=size.context_tokens,
        max_chunk_tokens=chosen.max_chunk_tokens,
        clock=clock,
        classes=chosen.service_classes,
        max_step_seconds=None if chosen.max_step_ms is None else chosen.max_step_ms / 1000,
        starvation_seconds=chosen.starvation_seconds,
        batching=chosen.batching,
        static_padding=chosen.static_padding,
        max_wait_seconds=chosen.max_wait_ms / 1000,
        keeps_pages=settings.memory.reclaim == "lazy",
        shares_prefixes=settings.memory.prefix_cache,
        separates_tenants=settings.memory.tenant_salts,
        is_contiguous=settings.memory.layout == "contiguous",
        profile=cost,
    )


def simulate(
    settings: Settings,
    profile: Profile,
    trace: Sequence[TraceRequest],
    *,
    progress: Progress | None = None,
) -> Report:
    """Replay a trace on an engine with these settings; the same arguments give the same report.

    Raises:
        CapacityError, SettingsError: the settings do not fit the profile's model.
    """
    clock = SimulatedClock()
    scheduler = build_scheduler(settings, plan_cache(settings, profile), profile.cost, clock)
    simulation = Simulation(scheduler, profile.cost, clock, trace, progress=progress)
    simulation.run()
    return make_report(
        simulation.records,
        simulation.totals,
        scheduler.counters,
        targets={
            each.name: Targets(each.first_token_seconds, each.inter_token_seconds)
            for each in scheduler.classes
        },
        max_rows=settings.scheduler.max_batch_size,
        token_budget=settings.scheduler.token_budget,
    )
