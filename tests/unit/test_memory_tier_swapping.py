"""Pages go down and come back between the steps of an engine, and nobody's answer changes."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from engine_harness import Rig, make_request
from fake_model import FakeModel
from octavo.memory.elastic import ElasticMemory
from octavo.memory.tiers.host import HostTier
from octavo.memory.tiers.mover import PageMover
from octavo.memory.tiers.tier import Tier
from swap_harness import ALWAYS_LOAD, SwapRig, disk_maker

PAGE_TOKENS = 4


def prompt(seed: int, tokens: int = 41) -> tuple[int, ...]:
    return tuple(random.Random(seed).randrange(40) for _ in range(tokens))


def rig(make_tier: object = None, *, pages: int = 40, **settings: object) -> SwapRig:
    maker = make_tier or (lambda page_bytes: HostTier(100, page_bytes))
    return SwapRig(FakeModel(), maker, pages=pages, page_tokens=PAGE_TOKENS, **settings)  # type: ignore[arg-type]


def plain_answer(name: str, tokens: tuple[int, ...]) -> list[object]:
    alone = Rig(FakeModel(), pages=40, page_tokens=PAGE_TOKENS)
    return alone.run([make_request(name, tokens, seed=1)])[name].bits()


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("kind", ["host", "disk", "host over disk"])
def test_evicted_prefix_comes_back(tmp_path: Path, kind: str, threaded: bool) -> None:
    def make_tier(page_bytes: int) -> Tier:
        if kind == "host":
            return HostTier(100, page_bytes)
        below = disk_maker(tmp_path)(page_bytes)
        return below if kind == "disk" else HostTier(3, page_bytes, below=below)

    swapping = rig(make_tier, pages=14, threaded=threaded)
    for number in (1, 2, 3):
        swapping.run([make_request(f"r{number}", prompt(number), seed=1)])
        swapping.rest()
    assert swapping.scheduler.counters.evicted_pages > 0
    answer = swapping.run([make_request("again", prompt(1), seed=1)])["again"]
    assert answer.cached_tokens == 40
    assert answer.bits() == plain_answer("again", prompt(1))
    assert swapping.swapper.counters.loaded_pages == 10
    assert swapping.swapper.counters.loads == 1
    swapping.close()


def test_cache_outlives_the_engine(tmp_path: Path) -> None:
    first = rig(disk_maker(tmp_path))
    before = first.run([make_request("a", prompt(1), seed=1)])["a"]
    first.close()
    second = rig(disk_maker(tmp_path), threaded=True)
    after = second.run([make_request("a", prompt(1), seed=1)])["a"]
    assert (before.cached_tokens, after.cached_tokens) == (0, 40)
    assert after.bits() == before.bits()
    second.close()


def test_closing_writes_down_what_is_cached(tmp_path: Path) -> None:
    first = rig(disk_maker(tmp_path), threaded=True, threshold=1.0)
    first.run([make_request("a", prompt(1), seed=1)])
    assert first.swapper.counters.written_pages == 0
    first.engine.close()
    first.engine.close()
    second = rig(disk_maker(tmp_path))
    assert second.tier.capacity().pages == first.swapper.counters.written_pages > 10
    second.close()


def make_elastic(swapping: SwapRig, model: FakeModel) -> ElasticMemory:
    elastic = swapping.engine.elastic = ElasticMemory(
        swapping.scheduler.cache,
        model,
        page_bytes=swapping.bytes.page_bytes,
        idle_seconds=60.0,
        may_go=swapping.swapper.write_down,
    )
    return elastic


def test_what_an_idle_engine_gave_back_comes_from_disk(tmp_path: Path) -> None:
    model, now = FakeModel(), [1000.0]
    swapping = SwapRig(model, disk_maker(tmp_path), pages=40, page_tokens=4, threshold=1.0)
    swapping.engine._clock = lambda: now[0]
    elastic = make_elastic(swapping, model)
    before = swapping.run([make_request("a", prompt(1), seed=1)])["a"]
    swapping.rest()
    assert not swapping.engine.rest(), "it is not time yet"
    now[0] += 60.0
    assert swapping.engine.seconds_to_rest() == 0
    assert swapping.engine.rest()
    assert (elastic.backed_bytes, swapping.scheduler.cache.pool.cached_count) == (0, 0)
    after = swapping.run([make_request("again", prompt(1), seed=1)])["again"]
    assert (after.cached_tokens, after.bits()) == (40, before.bits())
    assert swapping.swapper.counters.loaded_pages == 10
    swapping.close()


def test_a_busy_engine_writes_idle_pages_down_before_it_gives_them_up(tmp_path: Path) -> None:
    model, now = FakeModel(), [1000.0]
    swapping = SwapRig(
        model, disk_maker(tmp_path), pages=80, page_tokens=4, threshold=1.0, staged_pages=3, moves=1
    )
    swapping.engine._clock = lambda: now[0]
    make_elastic(swapping, model)
    before = swapping.run([make_request("a", prompt(1), seed=1)])["a"]
    cache = swapping.scheduler.cache
    idle = cache.pool.cached_count
    assert swapping.swapper.counters.written_pages == 0
    now[0] += 60.0
    swapping.add(make_request("busy", prompt(2, 3), seed=1, max_new_tokens=60))
    swapping.step()
    assert 0 < swapping.swapper.counters.written_pages < idle, "as many as there is room for"
    assert cache.pool.cached_count == idle - swapping.swapper.counters.written_pages
    for _ in range(40):
        now[0] += 1.0
        swapping.step()
    assert swapping.swapper.counters.written_pages == idle
    assert swapping.engine.has_work
    swapping.run()
    after = swapping.run([make_request("again", prompt(1), seed=1)])["again"]
    assert (after.cached_tokens, after.bits()) == (40, before.bits())
    swapping.close()


def test_requests_of_one_prefix_share_a_load(tmp_path: Path) -> None:
    first = rig(disk_maker(tmp_path))
    first.run([make_request("a", prompt(1, 61), seed=1)])
    first.close()
    second = rig(disk_maker(tmp_path))
    # The second wants more of the prefix than the first, the third goes on differently.
    requests = [
        make_request("short", prompt(1, 61)[:21], seed=1),
        make_request("long", prompt(1, 61), seed=1),
        make_request("other", (*prompt(1, 61)[:33], *prompt(9, 9)), seed=1),
    ]
    answers = second.run(requests)
    assert [answers[each.id].cached_tokens for each in requests] == [20, 60, 32]
    for each in requests:
        assert answers[each.id].bits() == plain_answer(each.id, each.prompt)
    assert second.swapper.counters.loaded_pages == 15
    second.close()


def test_cold_pages_are_written_only_above_the_threshold() -> None:
    calm = rig(pages=40, threshold=0.5)
    calm.run([make_request("a", prompt(1), seed=1)])
    calm.step()
    assert calm.swapper.counters.written_pages == 0
    calm.run([make_request(f"b{number}", prompt(10 + number), seed=1) for number in range(3)])
    assert calm.swapper.counters.written_pages > 0


def test_evictions_lose_nothing_while_the_engine_is_busy() -> None:
    """Writing down in the background keeps up with a queue that never ends."""
    busy = rig(pages=24, max_rows=1, moves=8)
    requests = [make_request(f"r{number}", prompt(number), seed=1) for number in range(8)]
    busy.run(requests)
    again = busy.run([make_request("again", prompt(0), seed=1)])["again"]
    assert again.cached_tokens == 40
    assert again.bits() == plain_answer("again", prompt(0))


def test_loading_is_left_out_where_computing_is_quicker() -> None:
    swapping = rig(pages=14, recompute_seconds=0.0)
    for number in (1, 2, 3, 1):
        swapping.run([make_request(f"r{number}", prompt(number), seed=1)])
        swapping.rest()
        swapping.answers.clear()
    assert swapping.swapper.counters.loads == 0
    assert swapping.swapper.counters.loads_too_slow == 1


def test_a_disk_that_was_slow_once_is_tried_again() -> None:
    swapping = rig(pages=14, recompute_seconds=1.0, clock=lambda: 0.0)
    for number in (1, 2, 3):
        swapping.run([make_request(f"r{number}", prompt(number), seed=1)])
        swapping.rest()
    swapping.mover.load_seconds = 0.2
    for number in range(20):
        swapping.run([make_request(f"again{number}", prompt(number % 3 + 1), seed=1)])
        swapping.rest()
    assert swapping.swapper.counters.loads_too_slow == 7
    assert swapping.swapper.counters.loads == 13


def test_a_load_that_takes_too_long_is_given_up() -> None:
    now = [0.0]
    swapping = rig(pages=14, timeout_seconds=2.0, clock=lambda: now[0])
    for number in (1, 2, 3):
        swapping.run([make_request(f"r{number}", prompt(number), seed=1)])
        swapping.rest()
    swapping.moves = 0
    swapping.add(make_request("again", prompt(1), seed=1))
    for _ in range(20):
        swapping.step()
    assert swapping.scheduler.running_count == 0
    assert swapping.engine.has_work
    for _ in range(4):
        swapping.mover.work()
    now[0] = 2.5
    answer = swapping.run()["again"]
    # What had come in by then is of use.
    assert answer.cached_tokens == 16
    assert answer.bits() == plain_answer("again", prompt(1))
    assert swapping.swapper.counters.loads_timed_out == 1


@pytest.mark.parametrize("end", ["cancel", "finish"])
def test_ending_a_request_ends_its_load(end: str) -> None:
    swapping = rig(pages=14)
    for number in (1, 2, 3):
        swapping.run([make_request(f"r{number}", prompt(number), seed=1)])
        swapping.rest()
    swapping.moves = 0
    swapping.add(make_request("again", prompt(1), seed=1))
    swapping.step()
    assert swapping.swapper.is_loading
    assert getattr(swapping.engine, end)("again")
    assert not swapping.swapper.is_loading
    assert not swapping.engine.has_work
    assert swapping.mover.waiting_loads == 0
    swapping.step()
    assert swapping.scheduler.cache.pool.held_count == 0


def test_a_page_that_is_lost_on_the_way_is_computed() -> None:
    swapping = rig(pages=14)
    for number in (1, 2, 3):
        swapping.run([make_request(f"r{number}", prompt(number), seed=1)])
        swapping.rest()
    swapping.moves = 0
    swapping.add(make_request("again", prompt(1), seed=1))
    swapping.tier.drop(swapping.scheduler.reusable_keys("again")[6])  # type: ignore[arg-type]
    swapping.moves = 3
    answer = swapping.run()["again"]
    assert answer.cached_tokens == 24
    assert answer.bits() == plain_answer("again", prompt(1))


def test_preempted_request_gets_its_pages_back() -> None:
    def run(recompute_seconds: float) -> SwapRig:
        swapping = rig(pages=24, moves=20, step_pages=20, recompute_seconds=recompute_seconds)
        requests = [
            make_request(f"r{number}", prompt(number), seed=1, max_new_tokens=40)
            for number in range(3)
        ]
        answers = swapping.run(requests)
        for each in requests:
            assert answers[each.id].token_ids == expected[each.id]
        assert swapping.scheduler.counters.preemptions > 0
        return swapping

    expected = {}
    for number in range(3):
        alone = Rig(FakeModel(), pages=40, page_tokens=PAGE_TOKENS)
        request = make_request(f"r{number}", prompt(number), seed=1, max_new_tokens=40)
        expected[request.id] = alone.run([request])[request.id].token_ids
    swapped, computed = run(ALWAYS_LOAD), run(0.0)
    assert swapped.swapper.counters.loaded_pages > 0
    assert computed.swapper.counters.loads_too_slow > 0
    tokens = [each.engine.metrics.computed_tokens.value for each in (swapped, computed)]
    assert tokens[0] < tokens[1]
    for each in (swapped, computed):
        counters = each.scheduler.counters
        assert sum(counters.returns.values()) == counters.preemptions
    assert swapped.scheduler.counters.returns["swap"] > 0
    assert computed.scheduler.counters.returns["recompute"] > 0
    assert computed.scheduler.counters.returns["swap"] == 0


def test_a_broken_tier_costs_time_only() -> None:
    class Broken(HostTier):
        broken = False

        def load(self, key: bytes, page: memoryview) -> bool:
            if self.broken:
                page[:] = bytes(len(page))
                raise RuntimeError("broken")
            return super().load(key, page)

        def settle(self) -> None:
            raise RuntimeError("broken")

    swapping = rig(lambda page_bytes: Broken(100, page_bytes), pages=14, threaded=True)
    for number in (1, 2, 3):
        swapping.run([make_request(f"r{number}", prompt(number), seed=1)])
        swapping.rest()
    swapping.tier.broken = True  # type: ignore[attr-defined]
    answer = swapping.run([make_request("again", prompt(1), seed=1)])["again"]
    assert answer.cached_tokens == 0
    assert answer.bits() == plain_answer("again", prompt(1))
    swapping.close()


def test_scores_of_the_prompt_are_computed_not_loaded(tmp_path: Path) -> None:
    first = rig(disk_maker(tmp_path))
    first.run([make_request("a", prompt(1), seed=1)])
    first.close()
    second = rig(disk_maker(tmp_path))
    scored = make_request("a", prompt(1), seed=1, prompt_logprobs=2)
    answer = second.run([scored])["a"]
    assert answer.cached_tokens == 0
    assert answer.prompt_logprobs is not None
    assert len(answer.prompt_logprobs) == 41
    second.close()


def test_idle_engine_writes_the_newest_pages_that_fit() -> None:
    small = rig(lambda page_bytes: HostTier(5, page_bytes), pages=40, threshold=1.0)
    small.run([make_request("old", prompt(1), seed=1)])
    small.run([make_request("new", prompt(2, 21), seed=1)])
    small.rest()
    assert not small.engine.tend()
    assert small.swapper.counters.written_pages == 5
    index, pages = small.scheduler.cache.index, small.scheduler.cache.pool.cached_pages()
    assert sum(small.tier.holds(index.key_of(page)) for page in pages) == 5


def test_mover_stages_no_more_than_it_may() -> None:
    tier = HostTier(20, 8)
    keys = [bytes([number]) * 32 for number in range(10)]
    for key in keys:
        tier.store(key, memoryview(key[:8]))
    mover = PageMover(tier, 8, staged_pages=3)
    mover.load(1, keys)
    while mover.work():
        pass
    assert mover.waiting_loads == 7
    taken = mover.take(2)
    assert [bytes(each.content or b"") for each in taken] == [key[:8] for key in keys[:2]]
    while mover.work():
        pass
    assert mover.waiting_loads == 5
    mover.cancel(1)
    assert mover.take(9) == []
    assert not mover.work()


def test_a_tier_that_hangs_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_again = threading.Event()
    seconds = [0.0]

    class Hanging(HostTier):
        def store(self, key: bytes, page: memoryview) -> bool:
            answers_again.wait()
            return super().store(key, page)

    try:
        hanging = rig(
            lambda page_bytes: Hanging(100, page_bytes),
            threshold=1.0,
            threaded=True,
            clock=lambda: seconds[0],
        )
        hanging.run([make_request("a", prompt(1), seed=1)])
        assert hanging.engine.tend(), "pages are left that the queue has no room for"
        page = hanging.scheduler.cache.pool.cached_pages(1)[0]
        assert not hanging.swapper.write_down(page)
        while not hanging.mover.is_stuck:
            hanging.mover.wait(0.001)
            seconds[0] += 1.0
        assert not hanging.engine.tend()
        assert hanging.swapper.write_down(page), "its memory may go without"
        monkeypatch.setattr("octavo.memory.tiers.mover._LAST_SECONDS", 0.01)
        hanging.swapper.close()
        assert hanging.mover.store_room == 0
    finally:
        answers_again.set()
