"""How many threads a step should use on this machine, and why."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath


def threads_and_reason(
    *,
    allowed: Iterable[int] | None = None,
    cpus: Path = Path("/sys/devices/system/cpu"),
    cgroups: Path = Path("/sys/fs/cgroup"),
    membership: Path = Path("/proc/self/cgroup"),
) -> tuple[int, str]:
    """Number of threads for the kernels and the reason in words.

    Physical cores this process may run on (hyperthreads share the units the kernels live on), or
    fewer if a control group grants less CPU time. The arguments are for tests.
    """
    ids = sorted(_affinity() if allowed is None else allowed)
    cores = _physical_cores(ids, cpus)
    threads = max(1, cores)
    reason = f"{threads} physical {_cores(threads)} of {len(ids)} allowed CPUs"
    quota = _quota(cgroups, membership)
    if quota is not None and quota < threads:
        threads = max(1, int(quota))
        reason = f"the control group grants the time of {quota:g} CPUs"
    return threads, reason


def _cores(count: int) -> str:
    return "core" if count == 1 else "cores"


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _physical_cores(ids: Iterable[int], cpus: Path) -> int:
    """CPUs that are hyperthreads of one core count once; unknown topology counts every CPU."""
    cores = set()
    for cpu in ids:
        try:
            siblings = (cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(cpu)
        cores.add(siblings)
    return len(cores)


def _quota(cgroups: Path, membership: Path) -> float | None:
    """CPUs' worth of time granted by the process's control group or any above it, if limited."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        group = PurePosixPath(path)
        for part in (group, *group.parents):
            relative = str(part).strip("/")
            if not controllers:
                quotas.append(_quota_v2(cgroups / relative / "cpu.max"))
            elif "cpu" in controllers.split(","):
                quotas.append(_quota_v1(cgroups / "cpu" / relative))
    limits = [quota for quota in quotas if quota is not None]
    return min(limits) if limits else None


def _quota_v2(file: Path) -> float | None:
    try:
        quota, period = file.read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
