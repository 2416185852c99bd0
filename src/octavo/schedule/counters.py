"""What the scheduler has done since it was made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SchedulerCounters:
    """Counts that only grow.

    `admitted` counts returns after preemption too; `hit_pages` are pages reused at admissions,
    `copied_pages` those whose beginning was copied;
    `chunks` are prefill rows; `prefix_waits` how often a request was parked for a page another one
    computes; `finished`, `cancelled` and `failed` how requests ended. `prefix_misses` are first
    admissions that found less of their prompt than could be reused, by `MissReason`. `returns` tell
    what became of preempted requests' pages: "keep" (all full ones were still there), "swap" (some
    came back from the tier below) or "recompute" (some were lost, and none came back).
    """

    steps: int = 0
    computed_tokens: int = 0
    chunks: int = 0
    admitted: int = 0
    preemptions: int = 0
    hit_pages: int = 0
    copied_pages: int = 0
    evicted_pages: int = 0
    prefix_waits: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    repairs: int = 0
    prefix_misses: Counter[str] = field(default_factory=Counter)
    returns: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """Requests of one class; `wait_seconds` is how long the last one in its queue will wait."""

    waiting: int
    running: int
    wait_seconds: float


@dataclass(slots=True)
class ClassCounters:
    """Counts of one class that only grow.

    `offered` counts refused requests too. `first_tokens` came, `first_tokens_kept` of them within
    the target; of the `gaps` between tokens, `gaps_missed` were longer than theirs. `starved`
    counts how often the class was given its minimum share, `lent` how often it computed for a
    stricter class or held pages beyond its share.
    """

    offered: int = 0
    refused: int = 0
    degraded: int = 0
    admitted: int = 0
    preempted: int = 0
    chunked: int = 0
    lent: int = 0
    starved: int = 0
    finished: int = 0
    first_tokens: int = 0
    first_tokens_kept: int = 0
    gaps: int = 0
    gaps_missed: int = 0
    queue_seconds: float = 0.0
