"""Three times the capacity on a clock that only steps move: promises hold, told times are kept."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, replace

from octavo.core.errors import Overloaded
from octavo.core.request import Request
from octavo.core.service_classes import BUILT_IN, ServiceClass
from octavo.plan.simulator import ClockExecutor, SimulatedClock
from octavo.schedule.cost import CostProfile
from octavo.schedule.scheduler import Scheduler
from schedule_harness import Driver, request

COST = CostProfile(
    constant=0.007,
    token=0.0012,
    decode_row=0.0006,
    past_token=1.3e-6,
    chunk_square=5e-7,
    error=0.05,
)
PROMISES = {each.name: each for each in BUILT_IN}
SECONDS = 30.0


@dataclass
class Visit:
    """A request on its way; `told` is set once it was refused."""

    asked: Request
    told: bool = False
    first_seconds: float | None = None
    last_seconds: float = 0.0
    tokens: int = 0

    @property
    def kept(self) -> bool:
        promise: ServiceClass = PROMISES[self.asked.service_class]
        if self.first_seconds is None:
            return False
        first = self.first_seconds - self.asked.arrival_seconds
        mean = (self.last_seconds - self.first_seconds) / max(self.tokens - 1, 1)
        return first <= (promise.first_token_seconds or math.inf) and mean <= (
            promise.inter_token_seconds or math.inf
        )


@dataclass
class Outcome:
    visits: list[Visit]
    offered: int
    retries: int
    retries_taken: int
    largest_queue: int

    @property
    def goodput(self) -> float:
        return sum(visit.kept for visit in self.visits) / SECONDS

    def kept_share(self, name: str) -> float:
        """Of all first attempts."""
        kept = [each.kept for each in self.visits if each.asked.service_class == name]
        return sum(kept) / max(len(kept), 1)


def arrivals(rate: float, realtime_share: float) -> list[Request]:
    chance = random.Random(7)
    found: list[Request] = []
    due = 1.0
    while due < SECONDS:
        realtime = chance.random() < realtime_share
        low, high = (32, 96) if realtime else (64, 320)
        number = len(found)
        asked = request(
            str(number),
            [number] * chance.randint(low, high),
            max_new_tokens=chance.randint(16, 48) if realtime else chance.randint(32, 96),
            service_class="realtime" if realtime else "standard",
        )
        found.append(replace(asked, arrival_seconds=due, on_miss="refuse"))
        due += chance.expovariate(rate)
    return found


def run(rate: float, realtime_share: float = 0.2) -> Outcome:
    """Who is refused comes back once, in as many seconds as it was told."""
    clock = SimulatedClock()
    scheduler = Scheduler(
        pages=20_000,
        page_tokens=16,
        max_context=8192,
        clock=clock,
        classes=BUILT_IN,
        max_step_seconds=0.1,
        profile=COST,
    )
    executor = ClockExecutor(COST, clock)
    due = [
        (asked.arrival_seconds, number, asked, False)
        for number, asked in enumerate(arrivals(rate, realtime_share))
    ]
    heapq.heapify(due)
    outcome = Outcome([], len(due), 0, 0, 0)
    live: dict[str, Visit] = {}
    while due or scheduler.has_work:
        while due and due[0][0] <= clock.seconds:
            seconds, number, asked, again = heapq.heappop(due)
            visit = Visit(replace(asked, arrival_seconds=seconds), again)
            outcome.visits.append(visit)
            outcome.retries += again
            try:
                scheduler.add(visit.asked)
                live[asked.id] = visit
                outcome.retries_taken += again
            except Overloaded as error:
                back = clock.seconds + math.ceil(error.retry_after_seconds)
                if not again and back < SECONDS:
                    heapq.heappush(due, (back, number, asked, True))
        outcome.largest_queue = max(outcome.largest_queue, scheduler.waiting_count)
        if not scheduler.has_work:
            clock.seconds = max(clock.seconds, due[0][0]) if due else clock.seconds
            continue
        plan = scheduler.plan()
        scheduler.commit(plan)
        for output in scheduler.on_result(executor.execute(plan)):
            visit = live[output.request_id]
            if output.token_ids:
                visit.first_seconds = visit.first_seconds or clock.seconds
                visit.last_seconds = clock.seconds
                visit.tokens += len(output.token_ids)
    return outcome


def test_promises_and_told_times_hold_at_three_times_the_capacity() -> None:
    capacity = run(1.5)
    assert capacity.retries == 0
    assert capacity.kept_share("standard") > 0.95
    beyond = run(4.5)
    assert beyond.kept_share("realtime") >= 0.99
    assert beyond.retries > 20
    assert beyond.retries_taken >= 0.9 * beyond.retries
    assert beyond.goodput >= 0.95 * capacity.goodput
    assert beyond.largest_queue < 64


def test_a_burst_does_not_shut_out_whoever_comes_after_it() -> None:
    beyond = run(6.0, realtime_share=0.5)
    assert beyond.kept_share("realtime") >= 0.87
    assert beyond.retries_taken == beyond.retries > 20


def test_nobody_is_expected_any_more_after_the_told_time() -> None:
    driven = Driver(pages=64, page_tokens=4, classes=(ServiceClass("slow", 2.0),))
    scheduler = driven.scheduler
    scheduler._lanes[0].tickets.give(1, 1000, 1.0, driven.now_seconds)
    driven.wait(1.0)
    assert scheduler.class_loads()["slow"].wait_seconds > 0
    driven.wait(10.0)
    assert scheduler.class_loads()["slow"].wait_seconds == 0
