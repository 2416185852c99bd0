"""Whatever moves when, and whatever a disk does, answers are those of an engine without tiers."""

from __future__ import annotations

import errno
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_harness import Rig, make_request
from fake_model import FakeModel
from octavo.core.request import Request
from octavo.memory.tiers.disk import DiskTier
from octavo.memory.tiers.files import Files
from octavo.memory.tiers.host import HostTier
from octavo.memory.tiers.tier import Tier
from swap_harness import ALWAYS_LOAD, SwapRig

PAGE_TOKENS = 4
PAGES = 14
_BASES = [tuple(random.Random(seed).randrange(40) for _ in range(40)) for seed in range(3)]
_ALONE: dict[tuple[int, ...], list[object]] = {}


def bits_alone(request: Request) -> list[object]:
    if request.prompt not in _ALONE:
        rig = Rig(FakeModel(), pages=PAGES, page_tokens=PAGE_TOKENS)
        _ALONE[request.prompt] = rig.run([request])[request.id].bits()
    return _ALONE[request.prompt]


class Unreliable(Files):
    """Fails, falls short and flips bits, each with its share."""

    def __init__(self, seed: int, share: float):
        self._rng = random.Random(seed)
        self._share = share

    def _fails(self) -> bool:
        return self._rng.random() < self._share

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if self._fails():
            raise OSError(errno.EIO, "injected")
        count = super().read(fd, buffers, offset)
        if self._fails():
            buffer = self._rng.choice(buffers)
            buffer[self._rng.randrange(len(buffer))] ^= 1 << self._rng.randrange(8)
        return count - 1 if self._fails() else count

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if self._fails():
            raise OSError(errno.ENOSPC, "injected")
        if self._fails():
            return super().write(fd, [buffers[0][:7]], offset)
        return super().write(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        if self._fails():
            raise OSError(errno.EIO, "injected")


wanted = st.tuples(
    st.integers(0, len(_BASES) - 1),  # whose prefix
    st.integers(10, 40),  # how much of it
    st.sampled_from([0, 1, 6, 30]),  # steps before it comes
)


@settings(max_examples=40, deadline=None)
@given(
    arrivals=st.lists(wanted, min_size=4, max_size=14),
    threshold=st.sampled_from([0.0, 0.6, 1.0]),
    host_pages=st.sampled_from([0, 2, 30]),
    moves=st.sampled_from([8, 4, 2, 1, 0]),
    staged_pages=st.integers(1, 4),
    step_pages=st.integers(1, 3),
    fault_share=st.sampled_from([0.0, 0.0, 0.03, 0.2]),
    restart_at=st.integers(0, 14),
    seed=st.integers(0, 5),
)
def test_answers_stay_the_same(
    arrivals: list[tuple[int, int, int]],
    threshold: float,
    host_pages: int,
    moves: int,
    staged_pages: int,
    step_pages: int,
    fault_share: float,
    restart_at: int,
    seed: int,
) -> None:
    now = [0.0]

    def start(root: Path) -> SwapRig:
        def make_tier(page_bytes: int) -> Tier:
            files = Unreliable(seed, fault_share)
            disk = DiskTier(root, bytes(32), page_bytes=page_bytes, most_bytes=1 << 19, files=files)
            return HostTier(host_pages, page_bytes, below=disk) if host_pages else disk

        return SwapRig(
            FakeModel(),
            make_tier,
            pages=PAGES,
            page_tokens=PAGE_TOKENS,
            max_rows=3,
            token_budget=16,
            threshold=threshold,
            timeout_seconds=6.0,
            recompute_seconds=ALWAYS_LOAD,
            moves=moves,
            staged_pages=staged_pages,
            step_pages=step_pages,
            clock=lambda: now[0],
        )

    def step(rig: SwapRig) -> None:
        now[0] += 1.0
        rig.step()

    def finish(rig: SwapRig) -> None:
        while rig.engine.has_work:
            step(rig)
        for name, answer in rig.answers.items():
            assert answer.bits() == rig.expected[name]
        assert rig.scheduler.cache.pool.held_count == 0
        rig.close()

    with tempfile.TemporaryDirectory() as folder:
        rig = start(Path(folder))
        for number, (base, length, steps) in enumerate(arrivals):
            if number == restart_at:
                finish(rig)
                rig = start(Path(folder))
            for _ in range(steps):
                step(rig)
                if not rig.engine.has_work and number % 2:
                    rig.engine.tend()
            request = make_request(f"r{number}", _BASES[base][:length], seed=1)
            rig.add(request)
            rig.expected[request.id] = bits_alone(request)
        finish(rig)
