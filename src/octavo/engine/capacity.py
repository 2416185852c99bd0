"""How much KV cache to take, and the context that it lets the engine serve."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from octavo.core.errors import CapacityError

_CGROUP_ROOT = Path("/sys/fs/cgroup")
# Version 1 reports "no limit" as a huge number.
_NO_LIMIT_BYTES = 1 << 60


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
    kv_bytes: int | None = None,
) -> Capacity:
    """Divide memory into pages.

    Without `kv_bytes`: half of the available memory, but no more than `max_rows` full contexts.
    The served context is lowered to what the pages hold, so that a request within it never fails.

    Raises:
        CapacityError: `kv_bytes` is more than there is, or does not hold one page.
    """
    if kv_bytes is not None and kv_bytes > available_bytes:
        raise CapacityError(
            f"a KV cache of {kv_bytes} bytes is more than the {available_bytes} bytes available",
            field="memory.kv_bytes",
            remedy="give less, or auto",
        )
    row_pages = -(-model_context_tokens // page_tokens)
    budget_bytes = available_bytes // 2 if kv_bytes is None else kv_bytes
    pages = budget_bytes // page_bytes
    if kv_bytes is None:
        pages = min(pages, max_rows * row_pages)
    if pages < 1:
        raise CapacityError(
            f"a KV cache of {budget_bytes} bytes does not hold one page of {page_bytes} bytes",
            field="memory.kv_bytes",
            remedy=f"give at least {page_bytes} bytes or use smaller pages",
        )
    served_tokens = min(model_context_tokens, pages * page_tokens)
    note = None
    if served_tokens < model_context_tokens:
        note = (
            f"serving a context of {served_tokens} tokens instead of {model_context_tokens}:"
            f" the KV cache of {pages * page_bytes} bytes holds no more"
        )
    return Capacity(pages, page_tokens, served_tokens, pages * page_bytes, note)


def available_memory_bytes(*, proc: Path = Path("/proc"), cgroup_root: Path = _CGROUP_ROOT) -> int:
    """Memory this process may still take: the machine's, or its control group's if that is less."""
    machine = _machine_bytes(proc / "meminfo")
    group = _cgroup_bytes(proc / "self" / "cgroup", cgroup_root)
    return machine if group is None else min(machine, group)


def _machine_bytes(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    # Not Linux: there is no portable measure of what is free, so take half of what is there.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _cgroup_bytes(membership: Path, root: Path) -> int | None:
    """The least room of this process's control group and its ancestors (versions 2 and 1)."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    rooms = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            base, limit, used = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, used = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = base / path.lstrip("/")
        for level in (folder, *folder.parents):
            room = _room_bytes(level / limit, level / used)
            if room is not None:
                rooms.append(room)
            if level == base:
                break
    return min(rooms, default=None)


def _room_bytes(limit: Path, used: Path) -> int | None:
    try:
        limit_bytes = int(limit.read_text())
        if limit_bytes >= _NO_LIMIT_BYTES:
            return None
        return max(limit_bytes - int(used.read_text()) + _reclaimable_bytes(limit.parent), 0)
    except (OSError, ValueError):
        return None


def _reclaimable_bytes(group: Path) -> int:
    """File cache that the kernel drops before it refuses memory to the group."""
    for line in (group / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0
