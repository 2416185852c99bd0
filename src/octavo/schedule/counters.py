"""What the scheduler has done since it was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerCounters:
    """Counts that only grow.

    `admitted` counts returns after preemption too; `hit_pages` are pages reused at admissions;
    `chunks` are prefill rows; `prefix_waits` how often a request was parked for a page another one
    computes; `finished`, `cancelled` and `failed` how requests ended.
    """

    steps: int = 0
    computed_tokens: int = 0
    chunks: int = 0
    admitted: int = 0
    preemptions: int = 0
    hit_pages: int = 0
    evicted_pages: int = 0
    prefix_waits: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    repairs: int = 0
