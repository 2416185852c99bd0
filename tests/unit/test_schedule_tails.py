"""Equal prompts at once share full pages and copy the last one; nothing is computed twice."""

from __future__ import annotations

import pytest

from octavo.core.request import Request
from octavo.core.service_classes import ServiceClass
from schedule_harness import Driver, alone, request

FAST, STANDARD = ServiceClass("fast", 0.5), ServiceClass("standard")


def driver(**settings: object) -> Driver:
    return Driver(**{"pages": 64, "page_tokens": 4, "token_budget": 100, **settings})


def choices(prompt: range, count: int = 4, **params: object) -> list[Request]:
    return [request(f"r{number}", prompt, seed=number, **params) for number in range(count)]


def held(driven: Driver) -> set[int]:
    return {page for sequence in driven.scheduler._ledger.running for page in sequence.table}


def check(driven: Driver, *requests: Request) -> None:
    for asked in requests:
        assert driven.answers[asked.id] == alone(asked, driven.scheduler.limit_tokens)
    assert driven.scheduler.audit() == []
    assert driven.scheduler.cache.pool.held_count == 0


def test_a_prompt_is_computed_once_but_for_its_last_token() -> None:
    driven = driver()
    asked = choices(range(19), max_new_tokens=3)
    driven.add(*asked)
    driven.step()
    second = driven.step()
    assert [(each.request.id, each.cached_tokens) for each in second.admissions] == [
        ("r1", 18),
        ("r2", 18),
        ("r3", 18),
    ]
    assert [source for source, _ in second.copies] == [driven.plans[0].chunks[0].new_pages[4]] * 3
    assert len(held(driven)) == 4 + 4
    assert driven.scheduler.counters.computed_tokens == 19 + 1 + 3
    driven.run()
    assert driven.scheduler.counters.copied_pages == 3
    assert driven.scheduler.counters.hit_pages == 3 * 4
    check(driven, *asked)


@pytest.mark.parametrize("prompt_tokens", [2, 3, 4, 7, 8])
def test_prompts_within_a_page_and_at_its_end(prompt_tokens: int) -> None:
    driven = driver()
    asked = choices(range(prompt_tokens), max_new_tokens=2)
    driven.add(*asked)
    driven.run()
    # Tokens of the prompt once, its last one for each, and one decode for each.
    assert driven.scheduler.counters.computed_tokens == prompt_tokens - 1 + 4 + 4
    check(driven, *asked)


def test_nobody_waits_for_a_tail_that_is_gone_with_its_prompt() -> None:
    driven = driver()
    asked = choices(range(19), count=8, max_new_tokens=1)
    driven.add(*asked)
    first, second = driven.step(), driven.step()
    assert [len(plan.chunks) for plan in (first, second)] == [1, 7]
    assert not driven.scheduler.has_work
    driven.step()
    check(driven, *asked)


@pytest.mark.parametrize("prompt_tokens", [1, 5])
def test_nothing_is_copied_where_the_last_token_begins_a_page(prompt_tokens: int) -> None:
    driven = driver()
    asked = choices(range(prompt_tokens))
    driven.add(*asked)
    driven.run()
    assert driven.scheduler.counters.copied_pages == 0
    check(driven, *asked)


def test_a_tail_is_copied_from_whoever_still_has_it() -> None:
    driven = driver()
    asked = choices(range(7), 3, max_new_tokens=9)
    driven.add(*asked[:2])
    for _ in range(4):
        driven.step()
    assert driven.scheduler.cancel("r0")
    driven.add(asked[2])
    plan = driven.step()
    assert [each.cached_tokens for each in plan.admissions] == [6]
    driven.run()
    check(driven, *asked[1:])


def test_nobody_waits_for_the_tail_of_a_request_that_was_cancelled() -> None:
    driven = driver(max_chunk_tokens=2)
    asked = choices(range(7))
    driven.add(*asked)
    driven.step()
    assert driven.scheduler.counters.prefix_waits == 3
    assert driven.scheduler.cancel("r0")
    driven.run()
    check(driven, *asked[1:])


def test_salts_and_scores_copy_nothing() -> None:
    driven = driver()
    salted = request("salted", range(7), salt=b"other", max_new_tokens=9)
    scored = request("scored", range(7), prompt_logprobs=0)
    driven.add(request("first", range(7), max_new_tokens=9))
    driven.step()
    driven.add(salted, scored)
    driven.run()
    assert driven.scheduler.counters.copied_pages == 0
    check(driven, salted, scored)


def test_without_sharing_nothing_is_copied() -> None:
    driven = driver(shares_prefixes=False)
    asked = choices(range(7))
    driven.add(*asked)
    driven.run()
    assert driven.scheduler.counters.copied_pages == 0
    check(driven, *asked)


def preempted(driven: Driver) -> list[str]:
    return [each.request_id for plan in driven.plans for each in plan.preemptions]


def test_choices_that_are_preempted_find_their_pages_or_copy_them_again() -> None:
    driven = driver(pages=12)
    asked = choices(range(7), max_new_tokens=13)
    driven.add(*asked)
    driven.run()
    assert preempted(driven)
    assert driven.scheduler.counters.copied_pages > 3
    check(driven, *asked)


def test_a_source_that_is_preempted_in_the_same_step_is_not_overwritten() -> None:
    """The page stays held until everybody of the step has got pages."""
    driven = driver(max_rows=2, classes=(STANDARD, FAST))
    low = request("low", range(7), max_new_tokens=9)
    fast = request("fast", range(7), seed=1, service_class="fast")
    other = request("other", [9] * 7, service_class="fast")
    driven.add(low)
    driven.step()
    driven.add(fast, other)
    plan = driven.step()
    assert [each.request_id for each in plan.preemptions] == ["low"]
    assert [each.request.id for each in plan.admissions] == ["fast", "other"]
    assert plan.copies
    assert not {source for source, _ in plan.copies} & {
        page for row in plan.rows for page in row.new_pages
    }
    driven.run()
    check(driven, low, fast, other)
