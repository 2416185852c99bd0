"""An engine with tiers below its KV cache, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine_harness import Rig
from octavo.compute.batch import StepModel
from octavo.core.clock import Clock, monotonic
from octavo.engine.kv_pages import KvPages
from octavo.memory.tiers.disk import DiskTier
from octavo.memory.tiers.mover import PageMover
from octavo.memory.tiers.swapper import Swapper
from octavo.memory.tiers.tier import Tier

ALWAYS_LOAD = 1e9
"""Seconds that computing takes, so that loading is always quicker."""


class SwapRig(Rig):
    """A rig whose cached pages go down to `make_tier(page_bytes)`.

    Without `threaded` pages move only between steps, as many as `moves` says each time: the same
    in every run.
    """

    def __init__(
        self,
        model: StepModel,
        make_tier: Callable[[int], Tier],
        *,
        pages: int,
        threshold: float = 0.0,
        timeout_seconds: float = 60.0,
        recompute_seconds: float = ALWAYS_LOAD,
        step_pages: int = 4,
        staged_pages: int = 4,
        moves: int = 3,
        threaded: bool = False,
        clock: Clock = monotonic,
        **settings: int,
    ):
        super().__init__(model, pages=pages, **settings)
        self.bytes = KvPages(model.kv_pages())
        self.tier = make_tier(self.bytes.page_bytes)
        self.mover = PageMover(
            self.tier, self.bytes.page_bytes, staged_pages=staged_pages, clock=clock
        )
        self.moves = moves
        self.expected: dict[str, list[object]] = {}
        """Bits of the answers as they should be, for tests to fill in."""
        self.threaded = threaded
        if threaded:
            self.mover.start()
        self.swapper = self.engine.swapper = Swapper(
            self.scheduler.cache,
            self.bytes,
            self.mover,
            lambda past, tokens: recompute_seconds,
            page_tokens=self.scheduler.page_tokens,
            threshold=threshold,
            timeout_seconds=timeout_seconds,
            step_bytes=step_pages * self.bytes.page_bytes,
            drain_seconds=60.0,
            clock=clock,
        )

    def step(self) -> None:
        super().step()
        self.move()
        assert self.scheduler.audit() == []

    def move(self) -> None:
        """Let the mover do some of its work, if no thread does."""
        for _ in range(0 if self.threaded else self.moves):
            self.mover.work()

    def rest(self) -> None:
        """Write down everything that is cached, as an idle engine does."""
        while self.engine.tend():
            if not self.threaded:
                self.mover.work()
        while not self.threaded and self.mover.work():
            pass
        if self.threaded:
            assert self.mover.drain(60.0)

    def close(self) -> None:
        """As an engine closes."""
        if not self.threaded:
            self.mover.start()
        self.engine.close()


def disk_maker(root: Path, *, pages: int = 200) -> Callable[[int], Tier]:
    """A disk tier with room for about so many small pages."""

    def make(page_bytes: int) -> Tier:
        most_bytes = (1 << 17) + pages * (8192 + 512)
        return DiskTier(root, bytes(32), page_bytes=page_bytes, most_bytes=most_bytes)

    return make
