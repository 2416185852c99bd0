"""What the control groups of this process (versions 2 and 1) allow it in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
# Version 1 reports "no limit" as a huge number.
_NO_LIMIT_BYTES = 1 << 60
_SCARCE_SHARE = 0.05
_COMFORTABLE_SHARE = 0.1
_STALLED_PERCENT = 10.0
_STALLED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Room:
    """A limit of a group, and what it leaves; file cache that the kernel would drop counts as free.

    A `soft` limit slows the group down instead of refusing memory.
    """

    limit_bytes: int
    room_bytes: int
    soft: bool = False


def group_rooms(membership: Path, root: Path = CGROUP_ROOT) -> list[Room]:
    """The limits of this process's group and of all above it; `membership` is /proc/self/cgroup."""
    rooms = []
    for level, is_v2 in _levels(membership, root):
        hard, used = ("memory.max", "memory.current") if is_v2 else _V1_NAMES
        rooms.append(_room(level / hard, level / used, soft=False))
        if is_v2:
            rooms.append(_room(level / "memory.high", level / used, soft=True))
    return [room for room in rooms if room is not None]


class GroupPressure:
    """Says how much memory to give back before the kernel takes it, or ends the process.

    That is what keeps a tenth of every limit free once less than a twentieth is, and a fixed amount
    while the kernel reports that the group stalls for memory (pressure stall information).
    """

    def __init__(self, *, proc: Path = Path("/proc"), root: Path = CGROUP_ROOT):
        self._membership = proc / "self" / "cgroup"
        self._root = root

    def wanted_bytes(self) -> int:
        """Bytes that should be given back now; 0 without pressure."""
        wanted = _STALLED_BYTES if self._is_stalled() else 0
        for room in group_rooms(self._membership, self._root):
            if room.room_bytes < room.limit_bytes * _SCARCE_SHARE:
                missing = int(room.limit_bytes * _COMFORTABLE_SHARE) - room.room_bytes
                wanted = max(wanted, missing)
        return wanted

    def _is_stalled(self) -> bool:
        for level, is_v2 in _levels(self._membership, self._root):
            if is_v2:
                return _stalled_percent(level / "memory.pressure") >= _STALLED_PERCENT
        return False


_V1_NAMES = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def _levels(membership: Path, root: Path) -> Iterator[tuple[Path, bool]]:
    """Folders of the process's groups, each from its own upwards, and whether it is version 2."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            base = root
        elif "memory" in controllers.split(","):
            base = root / "memory"
        else:
            continue
        folder = base / path.lstrip("/")
        for level in (folder, *folder.parents):
            yield level, controllers == ""
            if level == base:
                break


def _room(limit: Path, used: Path, *, soft: bool) -> Room | None:
    try:
        limit_bytes = int(limit.read_text())
        if limit_bytes >= _NO_LIMIT_BYTES:
            return None
        room_bytes = limit_bytes - int(used.read_text()) + _reclaimable_bytes(limit.parent)
        return Room(limit_bytes, max(room_bytes, 0), soft)
    except (OSError, ValueError):
        return None


def _reclaimable_bytes(group: Path) -> int:
    """File cache that the kernel drops before it refuses memory to the group."""
    for line in (group / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0


def _stalled_percent(pressure: Path) -> float:
    """Part of the last ten seconds in which somebody in the group waited for memory."""
    try:
        for line in pressure.read_text().splitlines():
            kind, _, values = line.partition(" ")
            if kind == "some":
                return float(values.split()[0].removeprefix("avg10="))
    except (OSError, ValueError, IndexError):
        pass
    return 0.0
