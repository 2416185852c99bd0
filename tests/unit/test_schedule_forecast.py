"""How long steps may be for whom, and what a request is told that comes to a busy engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.core.errors import Overloaded
from octavo.core.service_classes import BUILT_IN, ServiceClass
from octavo.schedule.cost import CostModel, CostProfile, StepShape
from octavo.schedule.forecast import step_time
from schedule_harness import Driver, request

COST = CostProfile(0.007, 0.001, 0.001, 1e-6, 0.0, error=0.05)
FAST, STANDARD, BATCH = BUILT_IN


def test_a_target_for_one_step_leaves_what_steps_may_take_longer() -> None:
    cost = CostModel(COST)
    seconds, is_tight = step_time([FAST, STANDARD], cost, 0.1, 0.002)
    assert is_tight
    assert (seconds + 0.002) * (1 + cost.overrun) == pytest.approx(0.05)


def test_a_target_for_two_steps_is_shared_by_them() -> None:
    seconds, is_tight = step_time([STANDARD, BATCH], CostModel(COST), 0.1, 0.002)
    assert not is_tight
    assert 0.09 < seconds + 0.002 < 0.1


def test_without_targets_only_the_limit_counts() -> None:
    seconds, is_tight = step_time([BATCH, ServiceClass("any")], CostModel(COST), 0.1, 0.002)
    assert (seconds, is_tight) == (0.1, False)


def test_the_margin_follows_how_far_steps_exceed_their_prediction() -> None:
    cost = CostModel(COST)
    for number in range(5000):
        cost.note_overrun(1.0, 1.4 if number % 25 == 0 else 1.0)
    assert cost.overrun == pytest.approx(0.4, abs=0.1)
    for _ in range(5000):
        cost.note_overrun(1.0, 1.0)
    assert cost.overrun < 0.1


def test_a_machine_that_is_slow_for_a_while_is_followed_at_once() -> None:
    cost = CostModel(COST)
    shape = StepShape()
    shape.add_chunk(50, 0)
    usual = cost.predict(shape)
    for _ in range(300):
        cost.observe(shape, usual)
    for _ in range(15):
        cost.observe(shape, 1.4 * usual)
    assert cost.predict(shape) == pytest.approx(1.4 * usual, rel=0.06)


def driver() -> Driver:
    made = Driver(
        pages=20_000,
        page_tokens=16,
        max_rows=64,
        classes=BUILT_IN,
        max_step_seconds=0.1,
        profile=COST,
    )
    made.step_seconds = lambda plan: plan.predicted_seconds
    return made


def test_rows_with_time_to_spare_sit_out_for_prompts_that_are_late() -> None:
    driven = driver()
    for number in range(12):
        driven.add(request(f"talks{number}", [number, 1], max_new_tokens=400))
    for _ in range(3):
        driven.step()
    driven.add(*(request(f"new{number}", [number] * 500) for number in range(20)))
    decodes = [len(driven.step().decodes) for _ in range(20)]
    late = driven.scheduler.class_counters["standard"]
    # Each row gets a token in every other step, and few wait longer than promised.
    assert sum(decodes) < 20 * 12 * 0.7
    assert late.gaps > 100
    assert late.gaps_missed < 0.1 * late.gaps


def test_readers_of_the_strictest_class_are_not_served_in_parts() -> None:
    """Each step has a constant cost, so that two with half of them would take longer than one."""
    driven = driver()
    shape = StepShape()
    shape.add_decodes(16, 160)
    slow_seconds = 2 * CostModel(COST).predict(shape)
    for number in range(16):
        driven.add(request(f"{number}", [number], max_new_tokens=600, service_class="realtime"))
    driven.add(request("work", range(2000), max_new_tokens=1, service_class="batch"))
    for _ in range(10):
        driven.step()
    driven.step_seconds = lambda plan: slow_seconds
    plans = [driven.step() for _ in range(60)]
    assert plans[-1].predicted_seconds > FAST.inter_token_seconds
    assert all(len(plan.decodes) == 16 for plan in plans)


def test_who_is_refused_later_is_told_to_come_later() -> None:
    driven = driver()
    told = []
    for number in range(40):
        asked = request(f"{number}", [number + 1] * 200, max_new_tokens=64)
        try:
            driven.scheduler.add(replace(asked, on_miss="refuse"))
        except Overloaded as error:
            told.append(error.retry_after_seconds)
    assert 10 < len(told) < 40
    assert told == sorted(told)
    assert told[-1] > told[0] + 5
    assert driven.scheduler.class_loads()["standard"].wait_seconds < 2.5


def test_a_short_answer_makes_no_crowd_where_others_are_usually_long() -> None:
    driven = driver()
    (lane,) = (each for each in driven.scheduler._lanes if each.service.name == "realtime")
    driven.add(request("long", range(20), max_new_tokens=64, service_class="realtime"))
    for _ in range(5):
        driven.step()
    lane.note_answer(64)
    lane.tickets.give(1, 10, 1.0, driven.now_seconds)
    tiny = request("tiny", range(50, 90), max_new_tokens=1, service_class="realtime")
    driven.scheduler.add(replace(tiny, on_miss="refuse"))
    driven.run()
    assert len(driven.answers["tiny"].tokens) == 1
