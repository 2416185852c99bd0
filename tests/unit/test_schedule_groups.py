"""Layers with a window keep only their window, and prefixes are found all the same."""

from __future__ import annotations

import pytest

from octavo.core.request import Request
from schedule_harness import Driver, alone, request


def driver(**settings: object) -> Driver:
    chosen = {"pages": 120, "page_tokens": 4, "groups": 3, "window_tokens": 8}
    return Driver(**{**chosen, "token_budget": 100, "max_chunk_tokens": 16, **settings})


def held(driven: Driver) -> int:
    return driven.scheduler.cache.pool.held_count


def check(driven: Driver, *requests: Request) -> None:
    for asked in requests:
        assert driven.answers[asked.id] == alone(asked, driven.scheduler.limit_tokens)
    assert driven.scheduler.audit() == []
    assert held(driven) == 0


def test_a_long_prompt_holds_one_group_and_two_windows() -> None:
    driven = driver()
    asked = request("long", range(160), max_new_tokens=8)
    driven.add(asked)
    for _ in range(10):
        driven.step()
        assert held(driven) <= driven.scheduler.layout.most_pages(160)
    # 40 blocks, and two windows of two blocks (the next token sees seven tokens before it).
    assert held(driven) == 40 + 2 * 2
    assert driven.scheduler.waste().share == 0.0
    driven.run()
    check(driven, asked)


def test_a_request_as_long_as_the_pool_allows_runs() -> None:
    driven = driver(pages=40)
    limit = driven.scheduler.limit_tokens
    assert driven.scheduler.layout.most_pages(limit) <= 40 < 3 * limit // 4
    asked = request("long", range(limit - 9), max_new_tokens=20)
    driven.add(asked)
    driven.run()
    check(driven, asked)


def test_a_prefix_is_found_after_its_window_has_moved() -> None:
    driven = driver()
    first = request("first", range(60), max_new_tokens=30)
    driven.add(first)
    driven.run()
    # Of what the window has left, everything is cached: any beginning is found.
    for length, found in ((60, 56), (21, 20), (88, 60)):
        again = request(f"again-{length}", range(length), seed=1)
        driven.add(again)
        plan = driven.step()
        assert [each.cached_tokens for each in plan.admissions] == [found]
        assert driven.scheduler.audit() == []
        driven.run()
        check(driven, again)


def test_a_prefix_without_its_window_is_computed_from_where_it_is_whole() -> None:
    driven = driver()
    driven.add(request("first", range(60)))
    driven.run()
    cache, layout = driven.scheduler.cache, driven.scheduler.layout
    keys = driven.scheduler._ledger
    probe = request("probe", range(60))
    driven.add(probe)
    sequence = keys.sequences[probe.id]
    for block in (12, 13):
        (page,) = cache.look_up(layout.block_keys(sequence.keys[block])[1:])
        cache.drop(page)
    plan = driven.step()
    assert [each.cached_tokens for each in plan.admissions] == [12 * 4]
    assert driven.scheduler.counters.prefix_misses["evicted"] == 1
    driven.run()
    check(driven, probe)


@pytest.mark.parametrize("pages", [48, 60])
def test_many_requests_on_few_pages(pages: int) -> None:
    driven = driver(pages=pages, max_rows=6)
    asked = [
        request(f"r{number}", range(number % 3, number % 3 + 17 + number), max_new_tokens=23)
        for number in range(12)
    ]
    for each in asked:
        driven.add(each)
        driven.step()
    driven.run()
    assert driven.scheduler.counters.preemptions > 0
    check(driven, *asked)


def test_choices_share_windows_and_copy_their_last_pages() -> None:
    driven = driver()
    asked = [request(f"r{number}", range(31), seed=number, max_new_tokens=9) for number in range(3)]
    driven.add(*asked)
    while driven.scheduler.counters.copied_pages == 0:
        driven.step()
    # Seven full blocks of the first group, the window's two of the others, and a block for each.
    assert held(driven) == 7 + 2 * 2 + 3 * 3
    assert driven.scheduler.counters.copied_pages == 2 * 3
    driven.run()
    assert driven.scheduler.counters.computed_tokens == 31 + 2 + 3 * 8
    check(driven, *asked)


def test_without_sharing_pages_that_left_the_window_are_free() -> None:
    driven = driver(shares_prefixes=False)
    asked = request("long", range(100))
    driven.add(asked)
    while not driven.answers:
        driven.step()
    pool = driven.scheduler.cache.pool
    assert (pool.held_count, pool.cached_count) == (25 + 2 * 2, 0)
    driven.run()
    check(driven, asked)
