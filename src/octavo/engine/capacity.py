"""How much KV cache to take, and the context that it lets the engine serve."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from octavo.core.errors import CapacityError
from octavo.engine.memory_group import CGROUP_ROOT, group_rooms
from octavo.memory.layout import TableLayout


@dataclass(frozen=True, slots=True)
class Capacity:
    """The KV cache of one engine; `note` says why less than the model's context is served."""

    pages: int
    page_tokens: int
    context_tokens: int
    kv_bytes: int
    note: str | None = None


def plan_capacity(
    *,
    page_tokens: int,
    page_bytes: int,
    model_context_tokens: int,
    max_rows: int,
    available_bytes: int,
    ceiling_bytes: int | None = None,
    kv_bytes: int | None = None,
    layout: TableLayout | None = None,
) -> Capacity:
    """Divide memory into pages.

    Without `kv_bytes`: half of the available memory, but no more than `max_rows` full contexts.
    `ceiling_bytes` is what everything else leaves for pages; the cache never takes more.
    The served context is lowered to what the pages hold, so that a request within it never fails.
    `layout` says what pages requests hold; None: those of one cache group.

    Raises:
        CapacityError: `kv_bytes` is more than there is or the ceiling leaves, or does not hold one
            page.
    """
    most_bytes = available_bytes if ceiling_bytes is None else min(available_bytes, ceiling_bytes)
    if kv_bytes is not None and kv_bytes > most_bytes:
        raise CapacityError(
            f"a KV cache of {kv_bytes} bytes is more than the {most_bytes} bytes available",
            field="memory.kv_bytes",
            remedy=f"give at most {most_bytes} bytes, or auto",
        )
    layout = layout or TableLayout(page_tokens)
    row_pages = layout.most_pages(model_context_tokens)
    budget_bytes = min(available_bytes // 2, most_bytes) if kv_bytes is None else kv_bytes
    pages = budget_bytes // page_bytes
    if kv_bytes is None:
        pages = min(pages, max_rows * row_pages)
    if pages < layout.groups:
        least_bytes = layout.groups * page_bytes
        raise CapacityError(
            f"a KV cache of {budget_bytes} bytes does not hold one page of {least_bytes} bytes",
            field="memory.kv_bytes",
            remedy=f"give at least {least_bytes} bytes or use smaller pages",
        )
    served_tokens = min(model_context_tokens, layout.most_tokens(pages))
    note = None
    if served_tokens < model_context_tokens:
        note = (
            f"serving a context of {served_tokens} tokens instead of {model_context_tokens}:"
            f" the KV cache of {pages * page_bytes} bytes holds no more"
        )
    return Capacity(pages, page_tokens, served_tokens, pages * page_bytes, note)


def available_memory_bytes(*, proc: Path = Path("/proc"), cgroup_root: Path = CGROUP_ROOT) -> int:
    """Memory this process may still take: the machine's, or its control group's if that is less."""
    rooms = group_rooms(proc / "self" / "cgroup", cgroup_root)
    return min(
        [_machine_bytes(proc / "meminfo"), *(room.room_bytes for room in rooms if not room.soft)]
    )


def _machine_bytes(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    # Not Linux: there is no portable measure of what is free, so take half of what is there.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
