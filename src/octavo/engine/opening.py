"""Opens a model file as an engine: weights, KV cache, scheduler, executor. Knows no text."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.cache_groups import CacheGroups, one_group
from octavo.core.catalog import octavo_home
from octavo.core.clock import Clock, monotonic
from octavo.core.errors import SettingsError
from octavo.core.fingerprint import fingerprint
from octavo.core.gguf import GgufFile
from octavo.core.request import EventSink
from octavo.core.settings import (
    PAGE_SIZES_TOKENS,
    MemorySettings,
    SchedulerSettings,
    Settings,
    page_tokens,
)
from octavo.engine.capacity import Capacity, available_memory_bytes, plan_capacity
from octavo.engine.engine import Engine
from octavo.engine.memory_group import GroupPressure
from octavo.engine.memory_ledger import FixedMemory, MemoryLedger, pages_within
from octavo.engine.prompts import Limits
from octavo.engine.swapping import OpenSwapper, open_swapper, staged_bytes
from octavo.memory.cache import PageCache
from octavo.memory.elastic import ElasticMemory, slab_pages_for
from octavo.memory.layout import TableLayout
from octavo.observe.metrics import EngineMetrics
from octavo.observe.process_memory import proportional_bytes
from octavo.schedule.cost import CostProfile, read_profile
from octavo.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from octavo.compute.batch import StepModel
    from octavo.compute.program import Program
    from octavo.memory.tiers.swapper import Swapper

logger = logging.getLogger("octavo")


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """An engine that is ready to run, and what it was made of.

    `bits_facts` decide the bits of its KV cache, `bits_fingerprint` sums them up. `phase_seconds`
    are the parts of the opening in order, `ledger` says what it may take in memory, `layout` how
    page tables look.
    """

    engine: Engine
    model: StepModel
    capacity: Capacity
    limits: Limits
    bits_facts: Mapping[str, str]
    bits_fingerprint: bytes
    phase_seconds: Mapping[str, float]
    ledger: MemoryLedger
    swap: OpenSwapper
    layout: TableLayout


def open_engine(
    file: GgufFile,
    settings: Settings,
    *,
    emit: EventSink,
    clock: Clock = monotonic,
    bounded_queues: bool = True,
) -> OpenEngine:
    """Load the weights and allocate the cache; `emit` gets every move of a request.

    Without `bounded_queues` no request is refused for the sake of others: one program's own queue
    may be as long as it likes.

    Raises:
        ModelFileError: the file is damaged or not supported.
        SettingsError, CapacityError: the settings do not fit the model or the machine.
    """
    # Late, so that nothing but a running engine needs numpy and the native module.
    from octavo.compute.runner import ComputeOptions, open_model
    from octavo.engine.model_executor import ModelExecutor

    started = clock()
    scheduler, compute = settings.scheduler, settings.compute
    options = ComputeOptions(
        backend=compute.backend,
        threads=compute.threads,
        activations=compute.activations,
        kv_format=settings.memory.kv_format,
        max_batch_tokens=scheduler.token_budget,
        tier=None if compute.cpu_tier == "auto" else compute.cpu_tier,
    )
    opened = open_model(file, options, digest_cache=octavo_home() / "digests.json")
    loaded = clock()
    model, program = opened.model, opened.program
    process_bytes = max(proportional_bytes() - model.weight_bytes, 0)
    try:
        smallest = PAGE_SIZES_TOKENS[0]
        layer_token_bytes = model.page_bytes(smallest) // smallest // program.kv.layers
        tokens = page_tokens(settings.memory.block_size, layer_token_bytes)
        groups = _cache_groups(settings, program)
        layout = TableLayout(
            tokens,
            groups.count,
            groups.window_tokens,
            min(scheduler.max_chunk_tokens or scheduler.token_budget, scheduler.token_budget),
        )
        page_bytes = model.page_bytes(tokens) // program.kv.layers * groups.layers
        fixed = FixedMemory(
            process_bytes=process_bytes,
            weight_bytes=model.weight_bytes,
            workspace_bytes=getattr(model, "workspace_bytes", 0),
            # Executor and gathered step: two tables of page ids.
            table_bytes=8
            * scheduler.max_batch_size
            * layout.blocks_for(program.context_tokens)
            * layout.groups,
            staged_bytes=staged_bytes(settings.memory, page_bytes),
        )
        available_bytes = available_memory_bytes()
        ceiling_bytes = fixed.ceiling(available_bytes, settings.memory.total_bytes)
        capacity = plan_capacity(
            page_tokens=tokens,
            page_bytes=page_bytes,
            ceiling_bytes=pages_within(fixed.room_for_pages(ceiling_bytes), page_bytes),
            model_context_tokens=program.context_tokens,
            max_rows=scheduler.max_batch_size,
            available_bytes=available_bytes,
            kv_bytes=settings.memory.kv_bytes,
            layout=layout,
        )
        if capacity.note:
            logger.warning(capacity.note)
        model.allocate_kv(capacity.pages, tokens, groups)
        executor = ModelExecutor(
            model,
            max_rows=scheduler.max_batch_size,
            max_pages_per_row=layout.blocks_for(capacity.context_tokens) * layout.groups,
            max_batch_tokens=scheduler.token_budget,
            groups=layout.groups,
            clock=clock,
        )
        facts = {**opened.facts, "page_tokens": str(tokens)}
        if layout.windowed:
            facts["cache_groups"] = f"{layout.groups} of {groups.layers} layers"
        bits_fingerprint = fingerprint(facts)
        planner = Scheduler(
            pages=capacity.pages,
            page_tokens=tokens,
            groups=layout.groups,
            window_tokens=layout.window_tokens,
            token_budget=scheduler.token_budget,
            max_rows=scheduler.max_batch_size,
            max_context=capacity.context_tokens,
            max_chunk_tokens=scheduler.max_chunk_tokens,
            fingerprint=bits_fingerprint,
            clock=clock,
            emit=emit,
            profile=stored_cost(file.path, scheduler.profile),
            weight_bytes=model.weight_bytes,
            slab_pages=slab_pages_for(page_bytes),
            keeps_pages=settings.memory.reclaim == "lazy",
            shares_prefixes=settings.memory.prefix_cache,
            separates_tenants=settings.memory.tenant_salts,
            is_contiguous=settings.memory.layout == "contiguous",
            **_promises(scheduler, bounded_queues=bounded_queues),
        )
        swap = open_swapper(settings.memory, model, planner, bits_fingerprint, facts, clock=clock)
        if swap.about and swap.swapper is None:
            logger.warning("pages on disk: %s", swap.about)
        engine = Engine(
            planner,
            executor,
            elastic=_elastic(settings.memory, planner.cache, model, page_bytes, swap.swapper),
            swapper=swap.swapper,
            metrics=EngineMetrics(),
            clock=clock,
        )
        ledger = fixed.ledger(
            pages=capacity.pages, kv_bytes=capacity.kv_bytes, ceiling_bytes=ceiling_bytes
        )
        engine.memory_bytes = ledger.parts
    except BaseException:
        model.close()
        raise
    return OpenEngine(
        engine=engine,
        model=model,
        capacity=capacity,
        limits=Limits(capacity.context_tokens, program.vocabulary_size),
        bits_facts=opened.facts,
        bits_fingerprint=bits_fingerprint,
        swap=swap,
        ledger=ledger,
        layout=layout,
        phase_seconds={"weights": loaded - started, "cache": clock() - loaded},
    )


def _cache_groups(settings: Settings, program: Program) -> CacheGroups:
    """Groups of layers for pages as they are needed; one where whole rows are reserved or padded.

    Padding is computed in the pages of a prompt that comes later, before any window moves.
    """
    if settings.memory.layout == "paged" and not settings.scheduler.static_padding:
        return program.cache_groups()
    return one_group(program.kv.layers)


def stored_cost(model: Path, profile: str | None) -> CostProfile | None:
    """What steps cost by the file `profile`, else by the last calibration of this model, if any.

    Raises:
        SettingsError: the file was named and cannot be used.
    """
    if profile is not None:
        return read_profile(Path(profile).expanduser())
    stored = octavo_home() / "profiles" / f"{model.stem}.json"
    if not stored.exists():
        return None
    try:
        return read_profile(stored)
    except SettingsError as error:
        logger.warning("step times are learned anew: %s", error)
        return None


def _elastic(
    settings: MemorySettings,
    cache: PageCache,
    model: StepModel,
    page_bytes: int,
    swapper: Swapper | None,
) -> ElasticMemory | None:
    """Who gives the memory of this cache back, if the back end can do that.

    With a tier below the cache, what is given up for its age is written down before.
    """
    backing = model.elastic()
    if backing is None:
        return None
    return ElasticMemory(
        cache,
        backing,
        page_bytes=page_bytes,
        idle_seconds=settings.idle_release_seconds,
        is_eager=settings.reclaim == "eager",
        pressure=GroupPressure(),
        may_go=swapper.write_down if swapper else lambda page: True,
    )


def _promises(settings: SchedulerSettings, *, bounded_queues: bool) -> dict[str, Any]:
    """What the scheduler promises to whom."""
    classes = settings.service_classes
    if not bounded_queues:
        classes = tuple(
            replace(each, queue_requests=None, queue_tokens=None, queue_seconds=None, on_miss="run")
            for each in classes
        )
    step = settings.max_step_ms
    return {
        "classes": classes,
        "max_step_seconds": None if step is None else step / 1000,
        "starvation_seconds": settings.starvation_seconds,
        "batching": settings.batching,
        "static_padding": settings.static_padding,
        "max_wait_seconds": settings.max_wait_ms / 1000,
    }
