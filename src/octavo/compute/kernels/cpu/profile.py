"""Where the time of steps goes, by kind of operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from octavo.compute.kernels.cpu.lower import Opcode

TABLES = "tables"
"""Checks, token places and rope tables in front of the operations."""

SAMPLING = "sampling"
_NAMES = (*(code.name.lower() for code in Opcode), TABLES, SAMPLING)


@dataclass(frozen=True, slots=True)
class StepPart:
    """One kind of operation: how often it ran and the seconds it took, all threads at work."""

    name: str
    calls: int
    seconds: float


@runtime_checkable
class Profiled(Protocol):
    """A model that can tell where the time of its steps goes."""

    def enable_profile(self, enabled: bool = True) -> None: ...

    def profile(self) -> tuple[StepPart, ...]: ...


def step_parts(measured: Sequence[tuple[int, float]]) -> tuple[StepPart, ...]:
    """Names for what `csrc/octavo/profile.h` counts, without the parts that never ran."""
    return tuple(
        StepPart(name, calls, seconds)
        for name, (calls, seconds) in zip(_NAMES, measured, strict=True)
        if calls
    )


def profile_lines(
    parts: Sequence[StepPart], *, steps: int, step_seconds: float, native_seconds: float
) -> Iterator[str]:
    """A table, the slowest part first; `step_seconds` is all that steps took, planning included.

    What is left of the native call after all parts is the step's own housekeeping.
    """
    steps = max(steps, 1)
    whole = max(step_seconds, 1e-9)
    rest = native_seconds - sum(part.seconds for part in parts)
    rows = [
        *sorted(parts, key=lambda part: -part.seconds),
        StepPart("rest of the native call", steps, max(rest, 0.0)),
        StepPart("outside the native call", steps, max(step_seconds - native_seconds, 0.0)),
    ]
    yield f"{'part':24} {'calls/step':>10} {'us/step':>10} {'share':>7}"
    for part in rows:
        yield (
            f"{part.name:24} {part.calls / steps:10.1f} {part.seconds / steps * 1e6:10.1f}"
            f" {part.seconds / whole:7.1%}"
        )
