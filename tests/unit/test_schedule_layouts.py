"""Layouts of the KV cache to compare: pages as needed, contiguous runs; sharing on and off."""

from __future__ import annotations

import pytest

from octavo.core.errors import CapacityError
from octavo.memory.cache import PageCache
from octavo.memory.draft import PageDraft
from schedule_harness import Driver, alone, request


def test_a_run_is_the_first_that_is_long_enough() -> None:
    cache = PageCache(10)
    for page in (2, 6):
        cache.take([page])
    draft = PageDraft(cache)
    assert draft.find_run(4) is None
    assert draft.take_run(3) == [3, 4, 5]
    assert draft.available == 5
    assert draft.take_run(2) == [0, 1]
    assert draft.find_run(2) == 7
    assert draft.take_run(3) == [7, 8, 9]
    with pytest.raises(CapacityError, match="no run of 1 pages"):
        draft.take_run(1)
    assert cache.pool.free_count == 8, "a draft changes nothing"


def admitted_at_once(**settings: object) -> tuple[int, Driver]:
    """How many of 8 equal requests run after two steps in 16 pages of 4 tokens."""
    driver = Driver(pages=16, page_tokens=4, token_budget=64, max_rows=8, **settings)
    asked = [request(f"r{n}", [n % 11] * 6, max_new_tokens=10) for n in range(8)]
    driver.add(*asked)
    driver.step()
    driver.step()
    running = driver.scheduler.running_count
    waste = driver.scheduler.waste()
    assert driver.scheduler.audit() == []
    driver.run()
    for each in asked:
        assert driver.answers[each.id] == alone(each, driver.scheduler.limit_tokens)
    assert waste.unwritten_tokens == waste.held_pages * 4 - running * 7
    return running, driver


def test_reserving_for_the_whole_answer_admits_fewer() -> None:
    contiguous, driver = admitted_at_once(is_contiguous=True)
    paged, _ = admitted_at_once()
    assert (contiguous, paged) == (4, 5)
    assert driver.scheduler.counters.preemptions == 0
    assert driver.scheduler.cache.pool.free_count == 16


def test_an_answer_longer_than_the_context_reserves_no_more_than_the_context() -> None:
    driver = Driver(pages=8, page_tokens=4, is_contiguous=True, max_context=20)
    driver.add(request("a", [1, 2, 3], max_new_tokens=1000))
    driver.step()
    assert driver.scheduler.cache.pool.held_count == 5


@pytest.mark.parametrize("settings", [{"shares_prefixes": False}, {"is_contiguous": True}])
def test_without_sharing_every_request_computes_its_own_prompt(settings: dict[str, bool]) -> None:
    driver = Driver(pages=32, page_tokens=4, **settings)
    asked = [request(f"r{n}", [7] * 12, max_new_tokens=3) for n in range(3)]
    driver.add(*asked)
    driver.run()
    driver.add(request("later", [7] * 12, max_new_tokens=3))
    driver.run()
    assert driver.scheduler.counters.hit_pages == 0
    assert driver.scheduler.counters.prefix_waits == 0
    assert driver.scheduler.cache.pool.cached_count == 0
    assert driver.scheduler.counters.computed_tokens == 4 * (12 + 2)


def test_eager_reclaim_forgets_what_nobody_holds() -> None:
    hits = {}
    for keeps_pages in (True, False):
        driver = Driver(pages=32, page_tokens=4, keeps_pages=keeps_pages)
        for number in range(3):
            driver.add(request(f"r{number}", [7] * 12, max_new_tokens=3))
            driver.run()
        hits[keeps_pages] = driver.scheduler.counters.hit_pages
    assert hits == {True: 4, False: 0}
