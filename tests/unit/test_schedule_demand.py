"""How fast a class works prompts off, and that those who were told to come back find room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.core.errors import Overloaded
from octavo.core.request import Request
from octavo.core.service_classes import BUILT_IN, ServiceClass
from octavo.schedule.cost import CostProfile
from octavo.schedule.demand import Pace, Tickets, Use
from schedule_harness import Driver, request


def test_use_follows_the_time_that_a_class_was_given() -> None:
    use = Use()
    for _ in range(200):
        use.note(0.03, 0.1)
    assert use.share == pytest.approx(0.3, abs=0.01)
    use.note(0.0, 60.0)
    assert use.share < 0.01


def test_prompts_found_in_the_cache_are_no_work() -> None:
    pace = Pace()
    for _ in range(20):
        pace.found(1000, 3000)
    assert pace.fresh_share == pytest.approx(0.25, abs=0.02)


def test_a_pace_is_guessed_until_it_is_measured() -> None:
    pace = Pace()
    assert pace.seconds_per_token(0.5) == 0.5
    pace.begin(10.0)
    for step in range(1, 50):
        pace.worked(100, 10.0 + step, goes_on=True)
    assert pace.seconds_per_token(0.5) == pytest.approx(0.01)


def test_idle_time_does_not_slow_a_pace_down() -> None:
    pace = Pace()
    for start in (0.0, 1000.0, 2000.0):
        pace.begin(start)
        pace.begin(start + 0.5)
        pace.worked(100, start + 1.0, goes_on=False)
    assert pace.seconds_per_token(9.0) == pytest.approx(0.01)


def test_a_ticket_is_good_at_its_time_and_once() -> None:
    tickets = Tickets()
    assert tickets.give(1, 100, 2.1, now_seconds=10.0) == 3.0
    assert (tickets.expected(100.0)) == (1, 100)
    assert not tickets.redeem(1, 11.0)
    assert not tickets.redeem(2, 13.0)
    assert tickets.give(1, 100, 9.0, now_seconds=11.0) == 2.0  # the same time again
    assert tickets.redeem(1, 13.0)
    assert not tickets.redeem(1, 13.0)
    assert (tickets.expected(100.0)) == (0, 0)


def test_who_is_told_later_comes_after_those_who_were_told_before() -> None:
    tickets = Tickets()
    for number in range(5):
        tickets.give(number, 10, tickets.booked_seconds, 0.0, service_seconds=2.0)
    assert tickets.booked_seconds == 10.0
    assert tickets.expected(4.5) == (3, 30)  # told 1, 2, 4, 6 and 8 seconds
    assert tickets.redeem(0, 1.0)
    assert tickets.booked_seconds == 8.0
    assert tickets.give(9, 10, 61.0, 0.0, service_seconds=2.0) == 60.0
    assert len(tickets) == 4  # nothing is promised for so late


def test_who_does_not_come_back_has_no_room_kept() -> None:
    tickets = Tickets()
    for number in range(30):
        tickets.give(number, 10, 1.0, now_seconds=float(number))
        tickets.expire(float(number))
    assert len(tickets) <= 4
    assert tickets.show_share < 0.1
    assert tickets.expected(100.0)[1] < 4
    tickets.give(99, 10, 1.0, now_seconds=50.0)
    assert tickets.redeem(99, 51.0)
    assert tickets.show_share > 0.1


class Clocked:
    """A scheduler whose steps take 10 ms; prompts of 100 tokens, one row."""

    def __init__(self, *classes: ServiceClass):
        self.driver = Driver(
            pages=200, page_tokens=16, max_rows=1, token_budget=100, classes=classes
        )
        self.driver.step_seconds = lambda plan: 0.01
        self.scheduler = self.driver.scheduler

    def ask(self, number: int, **fields: object) -> Request:
        asked = request(str(number), [number + 1] * 100, max_new_tokens=1)
        asked = replace(asked, arrival_seconds=self.driver.now_seconds, **fields)
        self.scheduler.add(asked)
        return asked


def test_room_is_kept_for_those_who_were_told_to_come_back() -> None:
    engine = Clocked(ServiceClass("standard", queue_requests=3))
    engine.ask(0)
    engine.driver.step()
    engine.ask(10)
    engine.ask(11)
    engine.ask(12)
    with pytest.raises(Overloaded) as refused:
        engine.ask(20)
    assert refused.value.reason == "queue_requests"
    assert refused.value.retry_after_seconds == 1.0
    with pytest.raises(Overloaded, match="3 requests wait already, 1 are to come back"):
        engine.ask(21)
    engine.driver.run()
    engine.ask(30)
    with pytest.raises(Overloaded):
        engine.ask(31)  # one waits, two others are expected
    engine.driver.wait(1.0)
    engine.ask(20)
    engine.ask(21)
    assert engine.scheduler.waiting_count == 3


def test_a_request_may_say_itself_what_becomes_of_it_when_it_is_late() -> None:
    engine = Clocked(
        ServiceClass("fast", first_token_seconds=0.02, inter_token_seconds=0.01),
        ServiceClass("standard", first_token_seconds=100),
    )
    for number in range(20):
        engine.ask(number, service_class="fast")
    with pytest.raises(Overloaded, match="after its target") as refused:
        engine.ask(50, service_class="fast", on_miss="refuse")
    assert refused.value.reason == "first_token_seconds"
    lowered = engine.ask(51, service_class="fast", on_miss="degrade")
    assert engine.scheduler.class_of(lowered.id) == "standard"
    stays = engine.ask(52, service_class="fast")
    assert engine.scheduler.class_of(stays.id) == "fast"


def test_what_lower_classes_get_is_the_pace_of_stricter_ones_too() -> None:
    engine = Clocked(
        ServiceClass("fast", first_token_seconds=1.0, inter_token_seconds=0.5),
        ServiceClass("standard", first_token_seconds=100),
    )
    for number in range(10):
        engine.ask(number)
    for _ in range(5):
        engine.driver.step()
    loads = engine.scheduler.class_loads()
    assert loads["standard"].wait_seconds == pytest.approx(0.05, rel=0.2)
    assert loads["fast"].wait_seconds == 0


@pytest.mark.parametrize("later", ["fast", "standard"])
@pytest.mark.parametrize("steps", [0, 1], ids=["waiting", "in prefill"])
def test_who_leaves_unserved_does_not_slow_the_pace_down(later: str, steps: int) -> None:
    engine = Clocked(
        ServiceClass("fast", first_token_seconds=1.0, inter_token_seconds=0.5),
        ServiceClass("standard", first_token_seconds=100),
    )
    leaving = [engine.ask(number, service_class="fast") for number in range(3)]
    for _ in range(steps):
        engine.driver.step()
    for each in leaving:
        engine.scheduler.cancel(each.id)
    engine.driver.wait(1000)
    for number in range(10, 15):
        engine.ask(number, service_class=later)
    for _ in range(2):
        engine.driver.step()
    engine.ask(20, service_class="fast")
    assert 0 < engine.scheduler.class_loads()["fast"].wait_seconds < 1


def test_a_step_leaves_room_for_what_comes_between_steps() -> None:
    cost = CostProfile(1e-3, 1e-3, 1e-3, 0, 0, error=0.01)
    driver = Driver(
        pages=2000,
        page_tokens=16,
        classes=BUILT_IN,
        max_step_seconds=0.1,
        profile=cost,
    )
    driver.step_seconds = lambda plan: plan.predicted_seconds
    driver.add(request("talk", [1], max_new_tokens=200, service_class="realtime"))
    driver.add(request("work", range(2, 9000), max_new_tokens=1, service_class="batch"))
    for _ in range(100):
        driver.wait(0.01)
        plan = driver.step()
    assert 0.02 < plan.predicted_seconds < 0.04
    assert plan.token_count > 10
