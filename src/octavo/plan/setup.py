"""Builds the scheduler that an engine with these settings would have on a profile's machine."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.clock import Clock
from octavo.core.errors import CapacityError
from octavo.core.settings import Settings, page_tokens
from octavo.plan.profile import Profile
from octavo.schedule.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class SimulatedMemory:
    """The KV cache of a simulated engine."""

    pages: int
    page_tokens: int
    context_tokens: int


def plan_memory(settings: Settings, profile: Profile) -> SimulatedMemory:
    """Pages and served context, as the engine works them out.

    `memory.kv_bytes: auto` is what the engine took when the profile was measured.

    Raises:
        CapacityError: the bytes do not hold one page.
        SettingsError: the page size is too small for this model.
    """
    tokens = page_tokens(settings.memory.block_size, profile.layer_token_bytes)
    page_bytes = profile.layers * profile.layer_token_bytes * tokens
    kv_bytes = settings.memory.kv_bytes or profile.kv_bytes
    pages = kv_bytes // page_bytes
    if pages < 1:
        raise CapacityError(
            f"{kv_bytes} bytes do not hold one page of {page_bytes} bytes",
            field="memory.kv_bytes",
            remedy=f"give at least {page_bytes} bytes",
        )
    return SimulatedMemory(pages, tokens, min(profile.context_tokens, pages * tokens))


def build_scheduler(settings: Settings, memory: SimulatedMemory, clock: Clock) -> Scheduler:
    """A scheduler with these settings on that memory, moved by `clock`."""
    return Scheduler(
        pages=memory.pages,
        page_tokens=memory.page_tokens,
        token_budget=settings.scheduler.token_budget,
        max_rows=settings.scheduler.max_batch_size,
        max_context=memory.context_tokens,
        max_chunk_tokens=settings.scheduler.max_chunk_tokens,
        clock=clock,
    )
