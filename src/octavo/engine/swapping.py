"""Opens the disk tier that the settings ask for, with everything between it and the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.core.catalog import octavo_home
from octavo.core.clock import Clock
from octavo.core.errors import SettingsError
from octavo.core.settings import MemorySettings
from octavo.core.units import format_bytes
from octavo.engine.kv_pages import KvPages

if TYPE_CHECKING:
    from octavo.compute.batch import StepModel
    from octavo.memory.tiers.swapper import Swapper
    from octavo.schedule.scheduler import Scheduler

_STEP_BYTES = 16 << 20
"""Most bytes copied before a step that somebody waits for: a few milliseconds."""
_STAGED_BYTES = 32 << 20
_DRAIN_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class OpenSwapper:
    """A swapper, if there is one, and in words what lies below the KV cache, or why none."""

    swapper: Swapper | None = None
    about: str | None = None


def swap_folder(settings: MemorySettings) -> Path:
    """Where the folders of all fingerprints lie."""
    chosen = settings.swap_dir
    return octavo_home() / "kv" if chosen is None else Path(chosen).expanduser()


def staged_bytes(settings: MemorySettings, page_bytes: int) -> int:
    """The most memory of pages on their way to the disk and back."""
    if settings.swap_space is None or not settings.reuses_pages:
        return 0
    return 2 * _staged_pages(page_bytes) * page_bytes


def open_swapper(
    settings: MemorySettings,
    model: StepModel,
    scheduler: Scheduler,
    fingerprint: bytes,
    facts: Mapping[str, str],
    *,
    clock: Clock,
) -> OpenSwapper:
    """Open the tier of this fingerprint and start its mover; without `swap_space` nothing.

    Another process that has the tier already is no error: this one runs without.

    Raises:
        CapacityError: `swap_space` holds no page.
        SettingsError: `swap_dir` cannot be used, or is set without `swap_space`.
    """
    if settings.swap_space is None:
        if settings.swap_dir is not None:
            raise SettingsError(
                "a folder alone is not used",
                field="memory.swap_dir",
                remedy="say how much it may hold, for example memory.swap_space=8GB",
            )
        return OpenSwapper()
    if not settings.reuses_pages:
        return OpenSwapper(about="none: no request finds pages of others with these settings")
    # Late, as most engines have no disk tier and all of them should start fast.
    from octavo.memory.tiers.disk import DiskTier, FolderInUse
    from octavo.memory.tiers.mover import PageMover
    from octavo.memory.tiers.swapper import Swapper

    pages = KvPages(model.kv_pages())
    root = swap_folder(settings)
    try:
        tier = DiskTier(
            root,
            fingerprint,
            page_bytes=pages.page_bytes,
            most_bytes=settings.swap_space,
            about=facts,
        )
    except FolderInUse:
        return OpenSwapper(about=f"none: another process uses the pages in {root}")
    mover = PageMover(
        tier, pages.page_bytes, staged_pages=_staged_pages(pages.page_bytes), clock=clock
    )
    swapper = Swapper(
        scheduler.cache,
        pages,
        mover,
        lambda past, tokens: scheduler.cost.chunk(tokens, past),
        page_tokens=scheduler.page_tokens,
        threshold=settings.swap_threshold,
        timeout_seconds=settings.swap_timeout_ms / 1000,
        step_bytes=_STEP_BYTES,
        drain_seconds=_DRAIN_SECONDS,
        clock=clock,
    )
    mover.start()
    capacity = tier.capacity()
    about = (
        f"{format_bytes(settings.swap_space)} in {root}: "
        f"{capacity.pages} of at most {capacity.most_pages} pages kept from before"
    )
    return OpenSwapper(swapper, about)


def _staged_pages(page_bytes: int) -> int:
    """Pages that may be on their way in each direction."""
    return max(_STAGED_BYTES // page_bytes, 2)
