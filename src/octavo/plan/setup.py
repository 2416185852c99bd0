"""Builds the scheduler that an engine with these settings would have on a profile's machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.clock import Clock
from octavo.core.errors import CapacityError
from octavo.core.settings import Settings, page_tokens
from octavo.memory.layout import TableLayout
from octavo.plan.profile import Profile
from octavo.plan.report import Report, Targets, make_report
from octavo.plan.simulator import Progress, SimulatedClock, Simulation
from octavo.plan.traces import TraceRequest
from octavo.schedule.cost import CostProfile
from octavo.schedule.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The pages of a KV cache, its cache groups, and the longest context served from them."""

    pages: int
    page_tokens: int
    context_tokens: int
    groups: int = 1
    window_tokens: int = 0


def plan_cache(settings: Settings, profile: Profile) -> CacheSize:
    """Pages and served context, as the engine works them out.

    `memory.kv_bytes: auto` is what the engine took when the profile was measured.

    Raises:
        CapacityError: the bytes do not hold one page.
        SettingsError: the page size is too small for this model.
    """
    engine, chosen = profile.engine, settings.scheduler
    tokens = page_tokens(settings.memory.block_size, engine.layer_token_bytes)
    layers, groups, window_tokens = engine.layers, 1, 0
    if settings.memory.layout == "paged" and not chosen.static_padding:
        layers, groups = engine.group_layers or engine.layers, engine.cache_groups
        window_tokens = engine.window_tokens
    page_bytes = layers * engine.layer_token_bytes * tokens
    kv_bytes = settings.memory.kv_bytes or engine.kv_bytes
    pages = kv_bytes // page_bytes
    if pages < groups:
        raise CapacityError(
            f"{kv_bytes} bytes do not hold one page of {groups * page_bytes} bytes",
            field="memory.kv_bytes",
            remedy=f"give at least {groups * page_bytes} bytes",
        )
    chunk_tokens = min(chosen.max_chunk_tokens or chosen.token_budget, chosen.token_budget)
    most_tokens = TableLayout(tokens, groups, window_tokens, chunk_tokens).most_tokens(pages)
    context_tokens = min(engine.context_tokens, most_tokens)
    return CacheSize(pages, tokens, context_tokens, groups, window_tokens)


def build_scheduler(
    settings: Settings, size: CacheSize, cost: CostProfile, clock: Clock
) -> Scheduler:
    """A scheduler with these settings on pages of that size, moved by `clock`."""
    chosen = settings.scheduler
    return Scheduler(
        pages=size.pages,
        page_tokens=size.page_tokens,
        groups=size.groups,
        window_tokens=size.window_tokens,
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
    simulation = Simulation(
        scheduler,
        profile.cost,
        clock,
        trace,
        between_seconds=profile.between_seconds,
        progress=progress,
    )
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
