"""Classes, time limits, ceilings and policies under random loads; answers must not change."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.core.errors import CapacityError, Overloaded, PromptTooLong
from octavo.core.request import Request
from octavo.core.service_classes import ServiceClass
from octavo.schedule.cost import CostProfile
from octavo.schedule.lane import Lane
from octavo.schedule.plan import StepPlan
from octavo.schedule.sequence import MOST_PREEMPTIONS
from schedule_harness import Driver, alone, request

COST = CostProfile(0.001, 0.001, 0.0005, 1e-6, 1e-6)
CLASSES = st.builds(
    lambda shares, waits, queue: (
        ServiceClass("fast", 0.05, 0.01, weight=3, admit_max=2, kv_share=shares[0]),
        ServiceClass(
            "standard",
            0.2,
            0.05,
            weight=2,
            admit_min=2,
            admit_max=3,
            longest_wait_seconds=waits,
            kv_share=shares[1],
        ),
        ServiceClass(
            "bulk",
            weight=1,
            admit_min=3,
            admit_max=4,
            longest_wait_seconds=waits * 2,
            kv_share=shares[2],
            queue_requests=queue,
        ),
    ),
    st.sampled_from([(0.3, 0.6, 0.9), (0.5, 0.5, 0.5), (1.0, 1.0, 1.0), (0.1, 0.2, 0.3)]),
    st.sampled_from([0.0, 0.01, 0.05]),
    st.sampled_from([None, 6]),
)
LIMITS = st.fixed_dictionaries(
    {
        "pages": st.integers(3, 16),
        "page_tokens": st.sampled_from([1, 2, 4]),
        "token_budget": st.integers(4, 16),
        "max_rows": st.integers(1, 4),
        "max_context": st.sampled_from([12, 40]),
        "classes": CLASSES,
        "max_step_seconds": st.sampled_from([None, 0.001, 0.006, 0.02]),
        "starvation_seconds": st.sampled_from([0.02, 0.2]),
        "batching": st.sampled_from(
            ["continuous", "continuous", "continuous", "dynamic", "static"]
        ),
        "static_padding": st.booleans(),
        "groups": st.sampled_from([1, 1, 3]),
        "window_tokens": st.sampled_from([2, 5]),
    }
).map(lambda limits: {**limits, "groups": 1} if limits["static_padding"] else limits)
ARRIVALS = st.fixed_dictionaries(
    {
        "max_new_tokens": st.integers(0, 8),
        "seed": st.integers(0, 2),
        "service_class": st.sampled_from(["fast", "standard", "bulk"]),
        "tenant": st.sampled_from(["a", "b"]),
        "prompt_logprobs": st.sampled_from([None, None, None, 0]),
    }
)
PROMPTS = st.builds(
    lambda prefix, tail: (*prefix, *tail),
    st.sampled_from([(), (1, 2, 1, 2), (5, 5, 5, 5, 5, 5)]),
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
)


class ClassesMachine(RuleBasedStateMachine):
    """Everybody ends with the answer it would have alone, whatever was promised to whom."""

    @initialize(limits=LIMITS)
    def start(self, limits: dict[str, object]) -> None:
        self.limits = limits
        self.driver = Driver(**limits, profile=COST)
        self.driver.step_seconds = self.seconds_of
        self.scheduler = self.driver.scheduler
        self.live: dict[str, Request] = {}
        self.count = 0

    def seconds_of(self, plan: StepPlan) -> float:
        return plan.predicted_seconds * (1.1 if plan.number % 2 else 0.9)

    @rule(prompt=PROMPTS, extras=ARRIVALS, copies=st.sampled_from([1, 1, 4]))
    def arrive(self, prompt: tuple[int, ...], extras: dict[str, object], copies: int) -> None:
        for _ in range(copies):
            self.count += 1
            asked = request(f"r{self.count}", prompt, **extras)  # type: ignore[arg-type]
            try:
                self.scheduler.add(asked)
            except (PromptTooLong, CapacityError):
                return
            except Overloaded:
                refused = self.scheduler.class_counters["bulk"].refused
                assert asked.service_class == "bulk"
                assert refused
                return
            self.live[asked.id] = asked

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0))
    def cancel(self, index: int) -> None:
        name = list(self.live)[index % len(self.live)]
        assert self.scheduler.cancel(name)
        del self.live[name]

    @rule(seconds=st.sampled_from([0.005, 0.1]))
    def pause(self, seconds: float) -> None:
        self.driver.wait(seconds)

    @rule(steps=st.integers(1, 5))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.step_once()

    def step_once(self) -> None:
        patience = self.scheduler.patience_seconds
        lanes = self.scheduler._lanes
        over = {lane for lane in lanes if lane.pages > self.page_limit(lane.service)}
        victims = {s.id: s for s in self.scheduler._ledger.running}
        wanting = [lane for lane in lanes if len(lane.queue) and lane not in over]
        before = {lane: (lane.pages, len(lane.running)) for lane in lanes}
        plan = self.driver.step()
        self.check_shares(plan, wanting, before)
        if patience and plan.is_empty:
            self.driver.wait(patience)
            return
        # Taking rows and pages away may be all that a step can do, for the next one.
        if not plan.preemptions:
            assert plan.is_empty == (not self.live), "work was left undone"
        assert plan.token_count <= int(self.limits["token_budget"])  # type: ignore[call-overload]
        limit = self.limits["max_step_seconds"]
        if limit is not None and len(plan.rows) > 1 and not self.is_minimum(plan):
            assert plan.predicted_seconds <= float(limit) + 1e-9  # type: ignore[arg-type]
        for preemption in plan.preemptions:
            victim = victims[preemption.request_id]
            if preemption.reason == "nobody could move otherwise" or victim.ghost:
                continue
            if over and preemption.reason == "out of pages":
                assert victim.home in over, "a class under its ceiling gave way"
            if preemption.reason.startswith("made room"):
                assert victim.preemptions <= MOST_PREEMPTIONS
        self.collect()

    def check_shares(
        self, plan: StepPlan, wanting: list[Lane], before: dict[Lane, tuple[int, int]]
    ) -> None:
        """Nobody gets a row beyond the share of its class while another class waits for pages."""
        by_class = {lane.service.name: lane for lane in before}
        for admission in plan.admissions:
            lane = by_class[admission.request.service_class]
            pages, running = before[lane]
            tokens = len(admission.request.prompt) + len(admission.generated)
            needed = -(-tokens // self.scheduler.page_tokens)
            if pages + needed > self.page_limit(lane.service) and running:
                assert all(other is lane for other in wanting), "a share was exceeded"

    def is_minimum(self, plan: StepPlan) -> bool:
        """A starved class gets its minimum share beside tokens that are due."""
        return any(lane.counters.starved for lane in self.scheduler._lanes)

    def page_limit(self, service: ServiceClass) -> float:
        return service.kv_share * self.scheduler.cache.pool.pages

    def collect(self) -> None:
        for name in list(self.live):
            answer = self.driver.answers.get(name)
            if answer is not None and answer.finish_reason is not None:
                assert answer == alone(self.live.pop(name), self.scheduler.limit_tokens)

    @invariant()
    def audit_is_clean(self) -> None:
        if hasattr(self, "scheduler"):
            assert self.scheduler.audit() == []

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(200 + 400 * len(self.live)):
            if not self.live:
                break
            self.step_once()
        assert not self.live, "requests were starved"
        self.driver.step()
        assert self.scheduler.cache.pool.held_count == 0
        assert self.scheduler.running_count == self.scheduler.waiting_count == 0
        assert self.driver.model.rows == {}


# `make soak-scheduler` sets how many steps there are to be instead.
SOAK_STEPS = int(os.environ.get("OCTAVO_SOAK_STEPS", "0"))
ClassesMachine.TestCase.settings = settings(
    max_examples=max(SOAK_STEPS // 100, 30),
    stateful_step_count=100 if SOAK_STEPS else 20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large] if SOAK_STEPS else [],
)
TestClasses = ClassesMachine.TestCase


@settings(max_examples=10, deadline=None)
@given(limits=LIMITS, arrivals=st.lists(st.tuples(PROMPTS, ARRIVALS), min_size=1, max_size=10))
def test_the_same_load_gives_the_same_plans(
    limits: dict[str, object], arrivals: list[tuple[tuple[int, ...], dict[str, object]]]
) -> None:
    def plans() -> list[StepPlan]:
        driver = Driver(**limits, profile=COST)
        driver.step_seconds = lambda plan: plan.predicted_seconds
        for number, (prompt, extras) in enumerate(arrivals):
            asked = request(f"r{number}", prompt, **extras)  # type: ignore[arg-type]
            if len(prompt) + 1 <= driver.scheduler.limit_tokens:
                try:
                    driver.scheduler.add(asked)
                except Overloaded:
                    continue
            driver.step()
        for _ in range(300):
            driver.step()
            driver.wait(driver.scheduler.patience_seconds)
        assert not driver.scheduler.has_work
        return driver.plans

    assert plans() == plans()
