"""The numbers of one engine at one moment, as they travel to whoever shows them."""

from __future__ import annotations

import msgspec


class Buckets(msgspec.Struct, frozen=True):
    """A histogram so far: `counts` has one entry a bound and one for what is above the last."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class ClassStats(msgspec.Struct, frozen=True, kw_only=True):
    """One service class of an engine; `wait_seconds` is how long the last one queued will wait.

    `admitted` counts returns after preemption too, `chunked` prompts that are computed in parts,
    `lent` requests that computed for a stricter class or held pages beyond their share, `starved`
    how often the class was given its minimum of a step's time, `degraded` requests that the class
    gave to a lower one.
    """

    name: str
    waiting: int
    running: int
    wait_seconds: float
    admitted: int
    preempted: int
    chunked: int
    lent: int
    starved: int
    degraded: int


class SwapStats(msgspec.Struct, frozen=True, kw_only=True):
    """The tier below the KV cache: what it holds now, and what has been moved since the start.

    `damaged_pages` were not what they should be, `failures` calls that the system refused; both
    cost a miss. Loads are counted once a prefix, pages one by one.
    """

    pages: int
    most_pages: int
    bytes: int
    most_bytes: int
    written_pages: int
    loaded_pages: int
    evicted_pages: int
    damaged_pages: int
    failures: int
    loads: int
    loads_timed_out: int
    loads_too_slow: int


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """An engine's numbers between two steps; counts grow from its start on.

    `memory_bytes` is the most that each part of the engine may hold.
    `ping` is the number of the ping that asked, None if nobody did. `at_seconds` and
    `last_step_seconds` (end of the last step, None before the first) are on the machine's monotonic
    clock. `rss_bytes` is resident memory, `pss_bytes` the same with shared pages divided among
    their processes (0 where the system does not tell). `predicted_seconds` is what the steps were
    expected to take, `prediction_error` the usual relative error of late, and `step_cost` what was
    learned of them: seconds by what they are spent on, `between` two steps too. `step_work` counts
    what the steps that were learned from did of each, and they took `work_seconds`. `row_seconds`
    sums rows × time over steps, of `max_rows` possible. `kv_backed_bytes` is the memory behind the
    KV cache, `kv_released_bytes` what went back to the system, and `pressure_releases` how often
    that was because the control group ran short.
    """

    at_seconds: float
    started_seconds: float
    waiting: int
    running: int
    pages_free: int
    pages_cached: int
    pages_held: int
    waste_share: float
    kv_backed_bytes: int
    kv_released_bytes: int
    pressure_releases: int
    steps: int
    failed_steps: int
    computed_tokens: int
    generated_tokens: int
    admitted: int
    finished: int
    cancelled: int
    failed: int
    preemptions: int
    hit_pages: int
    copied_pages: int
    prefix_misses: dict[str, int]
    preemption_returns: dict[str, int]
    evicted_pages: int
    native_seconds: float
    predicted_seconds: float
    prediction_error: float
    step_cost: dict[str, float]
    step_work: dict[str, int]
    work_seconds: float
    row_seconds: float
    max_rows: int
    step_seconds: Buckets
    frontends: int
    dropped_frontends: int
    bad_messages: int
    memory_bytes: dict[str, int]
    rss_bytes: int
    pss_bytes: int
    classes: tuple[ClassStats, ...] = ()
    last_step_seconds: float | None = None
    ping: int | None = None
    swap: SwapStats | None = None

    @property
    def native_share(self) -> float:
        """Share of the steps' time that was spent inside kernels."""
        total = self.step_seconds.total
        return min(self.native_seconds / total, 1.0) if total > 0 else 0.0

    @property
    def idle_seconds(self) -> float:
        """Time since the start in which no step was made."""
        return max(self.at_seconds - self.started_seconds - self.step_seconds.total, 0.0)

    @property
    def batch_fullness(self) -> float:
        """Share of the rows that were in use, while there were steps."""
        total = self.step_seconds.total * self.max_rows
        return min(self.row_seconds / total, 1.0) if total > 0 else 0.0
