"""Classes, time limits, ceilings and policies under random loads; answers must not change."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.core.errors import Overloaded
from octavo.schedule.plan import StepPlan
from schedule_harness import Driver, request
from schedule_load import COST, CheckedLoad, classes_of

CLASSES = st.builds(
    classes_of,
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
        self.load = CheckedLoad(limits)

    @rule(prompt=PROMPTS, extras=ARRIVALS, copies=st.sampled_from([1, 1, 4]))
    def arrive(self, prompt: tuple[int, ...], extras: dict[str, object], copies: int) -> None:
        for _ in range(copies):
            if not self.load.arrive(prompt, extras):
                break

    @precondition(lambda self: self.load.live)
    @rule(index=st.integers(0))
    def cancel(self, index: int) -> None:
        self.load.cancel(index)

    @rule(seconds=st.sampled_from([0.005, 0.1]))
    def pause(self, seconds: float) -> None:
        self.load.driver.wait(seconds)

    @rule(steps=st.integers(1, 5))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.load.step()

    @invariant()
    def audit_is_clean(self) -> None:
        if hasattr(self, "load"):
            assert self.load.scheduler.audit() == []

    def teardown(self) -> None:
        if hasattr(self, "load"):
            self.load.finish()


ClassesMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
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
