"""Equal prefixes are computed once, whoever asks for them and when."""

from __future__ import annotations

import pytest

from schedule_harness import check_alone, driver, lengths, request


def test_a_finished_prompt_is_reused_in_whole_pages_but_one_token() -> None:
    driven = driver()
    for name, prompt, cached in (
        ("a", range(8), 0),
        ("b", range(8), 4),
        ("c", range(9), 8),
        ("d", range(20), 8),
    ):
        driven.add(request(name, prompt, max_new_tokens=1))
        driven.run()
        assert driven.outputs[-1].cached_tokens == cached


def test_generated_pages_are_reused_by_the_next_turn() -> None:
    driven = driver()
    driven.add(request("a", range(6), max_new_tokens=8))
    driven.run()
    follow = (*range(6), *driven.answers["a"].tokens, 5, 5)
    driven.add(request("b", follow))
    driven.run()
    assert driven.outputs[-1].cached_tokens == 12


def test_salts_separate_tenants() -> None:
    driven = driver()
    for name, salt in (("a", b"x"), ("b", b"y")):
        driven.add(request(name, range(9), salt=salt))
        driven.run()
        assert driven.outputs[-1].cached_tokens == 0


def test_equal_prompts_wait_for_the_first_and_share_its_pages() -> None:
    driven = driver()
    asked = [request(f"r{n}", range(18), seed=n) for n in range(4)]
    driven.add(*asked)
    first = driven.step()
    assert [row.request_id for row in first.rows] == ["r0"]
    assert [wait.producer_id for wait in first.waits] == ["r0"] * 3
    second = driven.step()
    assert [admission.cached_tokens for admission in second.admissions] == [17, 17, 17]
    driven.run()
    check_alone(driven, *asked)
    assert driven.scheduler.counters.hit_pages == 12


def test_a_waiter_does_not_hold_up_those_behind_it() -> None:
    driven = driver(token_budget=8, max_chunk_tokens=4)
    driven.add(request("a", range(18)), request("b", range(18)), request("c", [7]))
    assert list(lengths(driven.step())) == ["a", "c"]


@pytest.mark.parametrize("end", ["cancel", "finish"])
def test_the_first_waiter_takes_over_when_the_producer_ends(end: str) -> None:
    driven = driver(token_budget=5)
    asked = [request(f"r{n}", range(18)) for n in range(3)]
    driven.add(*asked)
    driven.step()
    getattr(driven.scheduler, end)("r0")
    plan = driven.step()
    assert [(a.request.id, a.cached_tokens) for a in plan.admissions] == [("r1", 4)]
    assert [wait.request_id for wait in plan.waits] in ([], ["r2"])
    driven.run()
    check_alone(driven, *asked[1:])


def test_a_parked_request_can_be_cancelled() -> None:
    driven = driver()
    asked = [request(f"r{n}", range(18)) for n in range(3)]
    driven.add(*asked)
    driven.step()
    assert driven.scheduler.cancel("r1")  # type: ignore[arg-type]
    assert driven.scheduler.audit() == []
    driven.run()
    check_alone(driven, asked[0], asked[2])


def test_prompt_scores_compute_everything_but_publish() -> None:
    driven = driver()
    driven.add(request("a", range(12)))
    driven.run()
    driven.add(request("b", range(12), prompt_logprobs=0))
    assert driven.step().admissions[0].cached_tokens == 0
    driven.run()
    driven.add(request("c", range(12)))
    assert driven.step().admissions[0].cached_tokens == 8
    assert driven.scheduler.audit() == []
