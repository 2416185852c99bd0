"""The scheduler on tiny pools with an executor that knows what every page holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from octavo.core.errors import CapacityError, PromptTooLong
from octavo.core.request import FinishReason, Request, RequestState, Transition
from schedule_harness import Driver, alone, request

# Few prefixes and few tokens, so that sharing and duplicates are common.
PROMPTS = st.builds(
    lambda prefix, repeats, tail: (*prefix * repeats, *tail),
    st.sampled_from([(1, 2), (1, 2, 3), (4,)]),
    st.integers(1, 6),
    st.lists(st.integers(0, 3), max_size=4),
)
SETTINGS = st.fixed_dictionaries(
    {
        "pages": st.integers(2, 14),
        "page_tokens": st.sampled_from([1, 2, 4]),
        "token_budget": st.integers(1, 12),
        "max_rows": st.integers(1, 5),
        "max_chunk_tokens": st.sampled_from([None, 1, 3]),
        "slab_pages": st.sampled_from([1, 4]),
        "max_context": st.sampled_from([8, 20, 60]),
        "shares_prefixes": st.sampled_from([True, True, False]),
        "keeps_pages": st.sampled_from([True, True, False]),
        "is_contiguous": st.sampled_from([False, False, True]),
        "groups": st.sampled_from([1, 1, 2, 3]),
        "window_tokens": st.sampled_from([1, 2, 3, 8]),
    }
).map(lambda limits: {**limits, "groups": 1} if limits["is_contiguous"] else limits)
EXTRAS = st.fixed_dictionaries(
    {
        "max_new_tokens": st.integers(0, 12),
        "seed": st.integers(0, 3),
        "stop_ids": st.sets(st.integers(0, 10), max_size=2),
        "min_tokens": st.sampled_from([0, 0, 3]),
        "prompt_logprobs": st.sampled_from([None, None, 0]),
        "salt": st.sampled_from([b"", b"", b"tenant"]),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, ends and steps; every answer must be that of the request alone."""

    @initialize(limits=SETTINGS)
    def start(self, limits: dict[str, int]) -> None:
        self.limits = limits
        self.driver = Driver(**limits)
        self.scheduler = self.driver.scheduler
        self.live: dict[str, Request] = {}
        self.asked: dict[str, Request] = {}

    @rule(prompt=PROMPTS, extras=EXTRAS, copies=st.sampled_from([1, 1, 3]))
    def arrive(self, prompt: tuple[int, ...], extras: dict[str, object], copies: int) -> None:
        for _ in range(copies):
            asked = request(f"r{len(self.asked)}", prompt, **extras)  # type: ignore[arg-type]
            fits = len(prompt) + min(asked.max_new_tokens, 1) <= self.scheduler.limit_tokens
            try:
                self.driver.add(asked)
            except (PromptTooLong, CapacityError):
                assert not fits
                return
            assert fits
            self.asked[asked.id] = asked
            self.live[asked.id] = asked

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0), kind=st.sampled_from(["cancel", "finish", "fail"]))
    def end_early(self, index: int, kind: str) -> None:
        name = list(self.live)[index % len(self.live)]
        if kind == "cancel":
            assert self.scheduler.cancel(name)
        elif kind == "finish":
            assert self.scheduler.finish(name, FinishReason.STOP)
        else:
            output = self.scheduler.fail(name, "broken")
            assert output is not None
            assert output.error == "broken"
        assert not self.scheduler.cancel(name)
        self._forget(name)

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0))
    def cancel_in_flight(self, index: int) -> None:
        """The end comes while the step runs: what it brings for that request is dropped."""
        name = list(self.live)[index % len(self.live)]
        plan = self.scheduler.plan()
        self.scheduler.commit(plan)
        result = self.driver.model.execute(plan)
        assert self.scheduler.cancel(name)
        outputs = self.scheduler.on_result(result)
        assert name not in [output.request_id for output in outputs]
        for output in outputs:
            self.driver._take(output)
        self._forget(name)
        self._collect()

    def _forget(self, name: str) -> None:
        del self.live[name]

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        running = list(self.scheduler._ledger.running)
        plan = self.driver.step()
        assert plan.is_empty == (not self.live)
        assert plan.token_count <= self.limits["token_budget"]
        assert len(plan.rows) <= self.limits["max_rows"]
        chunk = self.limits["max_chunk_tokens"]
        assert chunk is None or all(len(row.tokens) <= chunk for row in plan.rows)
        assert not (plan.preemptions and plan.admissions)
        if running:
            oldest = min(running, key=lambda sequence: sequence.key)
            assert oldest.id in [row.request_id for row in plan.rows], "the oldest stood still"
            assert oldest.id not in [victim.request_id for victim in plan.preemptions]
        self._collect()

    def _collect(self) -> None:
        for name in list(self.live):
            answer = self.driver.answers.get(name)
            if answer is not None and answer.finish_reason is not None:
                assert answer == alone(self.live.pop(name), self.scheduler.limit_tokens)

    @rule()
    def repair(self) -> None:
        self.scheduler.repair()

    @invariant()
    def audit_is_clean(self) -> None:
        if hasattr(self, "scheduler"):
            assert self.scheduler.audit() == []

    @invariant()
    def windows_keep_no_more_than_they_need(self) -> None:
        if hasattr(self, "scheduler"):
            for each in self.scheduler._ledger.running:
                most_pages = self.scheduler.layout.most_pages(max(each.token_count, each.room))
                assert self.limits["is_contiguous"] or each.held_pages <= most_pages

    @invariant()
    def partial_answers_are_right(self) -> None:
        if hasattr(self, "scheduler"):
            for name, asked in self.live.items():
                known = self.driver.answers.get(name)
                if known is not None:
                    whole = alone(asked, self.scheduler.limit_tokens)
                    assert whole.tokens[: len(known.tokens)] == known.tokens

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        bound = 50 + sum(
            4 * (len(asked.prompt) + asked.max_new_tokens + 4) for asked in self.live.values()
        ) * max(len(self.live), 1)
        for _ in range(bound):
            if not self.live:
                break
            self._step()
        assert not self.live, "requests were starved"
        self.driver.step()
        pool = self.scheduler.cache.pool
        assert pool.held_count == 0
        assert self.scheduler.running_count == self.scheduler.waiting_count == 0
        assert self.scheduler.audit() == []
        assert self.driver.model.rows == {}
        final = [e for e in self.driver.events if isinstance(e, Transition) and e.after.is_final]
        assert sorted(e.request_id for e in final) == sorted(self.asked)


SchedulerMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None
)
TestScheduler = SchedulerMachine.TestCase


@settings(max_examples=40, deadline=None)
@given(limits=SETTINGS, prompts=st.lists(PROMPTS, min_size=1, max_size=12), extras=EXTRAS)
def test_same_calls_give_the_same_plans(
    limits: dict[str, int], prompts: list[tuple[int, ...]], extras: dict[str, object]
) -> None:
    def plans() -> list[object]:
        driver = Driver(**limits)
        for number, prompt in enumerate(prompts):
            if len(prompt) + 1 <= driver.scheduler.limit_tokens:
                driver.add(request(f"r{number}", prompt, **extras))  # type: ignore[arg-type]
        driver.run()
        return list(driver.plans)

    assert plans() == plans()


@settings(max_examples=40, deadline=None)
@given(
    pages=st.integers(3, 8),
    prompts=st.lists(PROMPTS, min_size=2, max_size=10),
)
def test_a_preempted_request_resumes_ahead_of_those_that_never_ran(
    pages: int, prompts: list[tuple[int, ...]]
) -> None:
    driver = Driver(pages=pages, page_tokens=2, token_budget=8, max_rows=4, max_context=100)
    fitting = [p for p in prompts if len(p) + 1 <= driver.scheduler.limit_tokens]
    for number, prompt in enumerate(fitting):
        driver.add(request(f"r{number}", prompt, max_new_tokens=8))
    driver.run()
    waiting_preempted: set[str] = set()
    new_since: list[str] = []
    for event in driver.events:
        if not isinstance(event, Transition):
            continue
        if event.after is RequestState.PREEMPTED:
            waiting_preempted.add(event.request_id)
        elif event.before is RequestState.PREEMPTED:
            waiting_preempted.discard(event.request_id)
        elif event.after is RequestState.RUNNING and waiting_preempted:
            new_since.append(event.request_id)
    parked = {wait.request_id for plan in driver.plans for wait in plan.waits}
    assert not new_since or parked, "a newcomer overtook a preempted request that was not parked"
