"""How requests come together: at any time, or in batches that nobody joins later."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from itertools import chain, islice

from octavo.core.errors import SettingsError
from octavo.schedule.lane import Lane

POLICIES = ("continuous", "dynamic", "static")


class Batching:
    """Says how many requests that never ran may get a row.

    `continuous`: any number, in every step. `dynamic`: when nothing runs, as many as there are
    rows, once that many wait or the oldest has waited `max_wait_seconds`; nobody joins until all
    have ended. `static`: the same without a wait, and who has finished keeps its row, computing on,
    until all have. With `pads` the prompts of a static batch are computed as if they were as long
    as the longest one.
    """

    def __init__(self, policy: str, max_rows: int, max_wait_seconds: float, *, pads: bool = False):
        if policy not in POLICIES:
            raise SettingsError(f"must be one of {', '.join(POLICIES)}", field="batching")
        self.policy = policy
        self._max_rows = max_rows
        self._max_wait_seconds = max_wait_seconds
        self.pads = pads and policy == "static"
        self._padded_tokens = 0
        self._open = 0

    @property
    def keeps_rows(self) -> bool:
        return self.policy == "static"

    def may_join(self, lanes: Ordered[Lane], now_seconds: float) -> int | None:
        """Requests that may join in this step; None if any number may."""
        if self.policy == "continuous":
            return None
        if any(lane.running for lane in lanes):
            return self._open
        return 0 if self.patience(lanes, now_seconds) > 0 else self._max_rows

    def patience(self, lanes: Ordered[Lane], now_seconds: float) -> float:
        """Seconds that an idle engine waits for company."""
        if self.policy != "dynamic" or any(lane.running for lane in lanes):
            return 0.0
        heads = [
            sequence
            for lane in lanes
            for sequence in [next(iter(lane.queue), None)]
            if sequence is not None
        ]
        if not heads or any(sequence.was_preempted for sequence in heads):
            return 0.0
        if sum(len(lane.queue) for lane in lanes) >= self._max_rows:
            return 0.0
        oldest = min(sequence.queued_seconds for sequence in heads)
        return max(oldest + self._max_wait_seconds - now_seconds, 0.0)

    def padded_tokens(self, lanes: Ordered[Lane]) -> int:
        """Length that prompts of the batch are padded to, that of the next one if none runs."""
        if not self.pads or any(lane.running for lane in lanes):
            return self._padded_tokens
        waiting = chain.from_iterable(lane.queue for lane in lanes)
        return max((each.prompt_tokens for each in islice(waiting, self._max_rows)), default=0)

    def started(
        self, joined: int, offered: int | None, waiting: int, *, padded_tokens: int
    ) -> None:
        """A step was committed in which `joined` of `offered` requests joined, others wait."""
        self._padded_tokens = padded_tokens
        if offered is not None:
            self._open = min(offered - joined, waiting)
