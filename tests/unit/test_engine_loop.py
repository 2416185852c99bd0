"""The engine's loop: failures stay with their request, interrupts lose nothing."""

from __future__ import annotations

import pytest

from engine_harness import Rig, make_request
from fake_model import FakeModel
from octavo.compute.batch import Draw
from octavo.core.errors import EngineError
from octavo.core.output import EngineOutput
from octavo.core.request import FinishReason
from octavo.engine.engine import Engine
from octavo.schedule.plan import StepPlan, StepResult
from octavo.schedule.scheduler import Scheduler


def expected_tokens(model: FakeModel, prompt: tuple[int, ...], count: int) -> list[int]:
    tokens = list(prompt)
    draw = Draw(0, 0, 0, temperature=0.0)
    for _ in range(count):
        tokens.append(model.next_token(tokens, draw))
    return tokens[len(prompt) :]


def idle_and_clean(rig: Rig) -> None:
    assert rig.scheduler.audit() == []
    assert not rig.engine.has_work
    assert rig.scheduler.cache.pool.held_count == 0


def test_requests_get_their_own_tokens() -> None:
    model = FakeModel()
    rig = Rig(model, pages=16, page_tokens=4)
    requests = [
        make_request(f"r{number}", range(number, number + 3 * number + 1), seed=number)
        for number in range(1, 6)
    ]
    answers = rig.run(requests)
    for request in requests:
        answer = answers[request.id]
        assert answer.token_ids == expected_tokens(model, request.prompt, 8)
        assert answer.finish_reason is FinishReason.LENGTH
        assert len(answer.logprobs) == 8
    idle_and_clean(rig)
    metrics = rig.engine.metrics
    assert metrics.generated_tokens.value == 40
    assert metrics.requests.value == 5
    assert metrics.step_seconds.count == metrics.steps.value == rig.scheduler.counters.steps


def test_poisoned_request_fails_alone_and_the_pool_is_clean() -> None:
    model = FakeModel(poison=[42])
    rig = Rig(model, pages=16, page_tokens=4)
    good = make_request("good", (5, 6, 7, 8, 9), seed=1)
    answers = rig.run([good, make_request("bad", (41, 42), seed=2)])
    assert answers["bad"].finish_reason is FinishReason.ERROR
    assert answers["bad"].error == "RuntimeError: poisoned"
    assert answers["good"].token_ids == expected_tokens(model, good.prompt, 8)
    idle_and_clean(rig)


def test_bad_logits_fail_alone() -> None:
    model = FakeModel(nan=[42])
    rig = Rig(model, pages=16, page_tokens=4)
    good = make_request("good", (5, 6, 7, 8, 9), seed=1)
    answers = rig.run([good, make_request("bad", (42, 41), seed=2)])
    assert (answers["bad"].finish_reason, answers["bad"].error) == (
        FinishReason.ERROR,
        "bad logits",
    )
    assert answers["good"].finish_reason is FinishReason.LENGTH
    idle_and_clean(rig)


class Raising:
    """An executor that raises `error` once, before or after the wrapped one has run."""

    def __init__(self, executor: object, error: BaseException, *, after: bool = False):
        self._executor, self._error, self._after = executor, error, after
        self.armed = False

    def execute(self, plan: StepPlan) -> StepResult:
        result = self._executor.execute(plan) if self._after or not self.armed else None
        if self.armed:
            self.armed = False
            raise self._error
        assert result is not None
        return result

    def close(self) -> None:
        self._executor.close()


def test_executor_that_raises_ends_only_the_requests_of_its_step() -> None:
    model = FakeModel()
    rig = Rig(model, pages=16, page_tokens=4, max_rows=1)
    raising = Raising(rig.engine._executor, RuntimeError("broken"))
    rig.engine = Engine(rig.scheduler, raising)
    rig.add(make_request("first", (5, 6), seed=1))
    second = make_request("second", (7, 8), seed=2)
    rig.add(second)
    rig.step()
    raising.armed = True
    answers = rig.run()
    assert answers["first"].finish_reason is FinishReason.ERROR
    assert "RuntimeError: broken" in (answers["first"].error or "")
    assert answers["second"].token_ids == expected_tokens(model, second.prompt, 8)
    assert rig.engine.metrics.failed_steps.value == 1
    idle_and_clean(rig)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at_step", [0, 1, 4])
def test_interrupted_step_is_run_again(after: bool, at_step: int) -> None:
    model = FakeModel()
    rig = Rig(model, pages=16, page_tokens=4)
    raising = Raising(rig.engine._executor, KeyboardInterrupt(), after=after)
    rig.engine = Engine(rig.scheduler, raising)
    request = make_request("a", (5, 6, 7, 8, 9), seed=1, repetition_penalty=1.5)
    reference = Rig(FakeModel(), pages=16, page_tokens=4).run([request])["a"]
    rig.add(request)
    for _ in range(at_step):
        rig.step()
    raising.armed = True
    with pytest.raises(KeyboardInterrupt):
        rig.step()
    assert rig.run()["a"].token_ids == reference.token_ids
    idle_and_clean(rig)


@pytest.mark.parametrize("after", [False, True])
def test_interrupted_step_copies_pages_again(after: bool) -> None:
    model = FakeModel()
    rig = Rig(model, pages=16, page_tokens=4)
    raising = Raising(rig.engine._executor, KeyboardInterrupt(), after=after)
    rig.engine = Engine(rig.scheduler, raising)
    requests = [make_request(name, (5, 6, 7, 8, 9, 10, 11), seed=1) for name in ("a", "b")]
    for request in requests:
        rig.add(request)
    rig.step()
    raising.armed = True
    with pytest.raises(KeyboardInterrupt):
        rig.step()
    assert rig.engine.cancel(requests[0].id)
    assert rig.run()["b"].token_ids == expected_tokens(model, requests[1].prompt, 8)
    assert rig.scheduler.counters.copied_pages == 1
    idle_and_clean(rig)


def test_request_cancelled_while_an_interrupted_step_is_pending() -> None:
    model = FakeModel()
    rig = Rig(model, pages=16, page_tokens=4)
    raising = Raising(rig.engine._executor, KeyboardInterrupt(), after=True)
    rig.engine = Engine(rig.scheduler, raising)
    kept = make_request("kept", (5, 6, 7), seed=1)
    rig.add(kept)
    rig.add(make_request("gone", (8, 9), seed=2))
    rig.step()
    raising.armed = True
    with pytest.raises(KeyboardInterrupt):
        rig.step()
    assert rig.engine.cancel(make_request("gone", (8, 9), seed=2).id)
    answers = rig.run()
    assert answers["kept"].token_ids == expected_tokens(model, kept.prompt, 8)
    assert len(answers["gone"].token_ids) == 1
    idle_and_clean(rig)


def test_cancel_and_finish_free_their_pages_at_once() -> None:
    rig = Rig(FakeModel(), pages=16, page_tokens=4)
    requests = [make_request(name, (5, 6, 7, 8, 9), seed=1) for name in ("a", "b")]
    for request in requests:
        rig.add(request)
    rig.step()
    assert rig.scheduler.cache.pool.held_count > 0
    assert rig.engine.cancel(requests[0].id)
    assert rig.engine.finish(requests[1].id)
    assert not rig.engine.cancel(requests[0].id)
    idle_and_clean(rig)
    assert rig.run()["a"].finish_reason is None


def test_full_pool_preempts_and_every_answer_is_right() -> None:
    model = FakeModel()
    rig = Rig(model, pages=10, page_tokens=4, max_rows=8)
    requests = [
        make_request(f"r{number}", range(number, number + 5), seed=number, max_new_tokens=20)
        for number in range(8)
    ]
    answers = rig.run(requests)
    assert rig.scheduler.counters.preemptions > 0
    for request in requests:
        assert answers[request.id].token_ids == expected_tokens(model, request.prompt, 20)
    idle_and_clean(rig)


def test_requests_that_nobody_would_wake_are_planned_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = FakeModel()
    rig = Rig(model, pages=16, page_tokens=4)
    asked = make_request("aside", (5, 6, 7, 8, 9), seed=1)
    rig.add(asked)
    rig.scheduler.hold_back(asked.id)
    answers = rig.run()
    assert answers[asked.id].token_ids == expected_tokens(model, asked.prompt, 8)
    assert "0 requests had rows and 1 waited" in caplog.text
    assert rig.scheduler.counters.repairs == 1
    idle_and_clean(rig)


class StuckScheduler:
    """One whose steps have no rows, whatever waits."""

    def __init__(self, scheduler: Scheduler):
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def plan(self) -> StepPlan:
        return StepPlan(number=0)

    def commit(self, plan: StepPlan) -> None:
        pass

    def on_result(self, result: StepResult) -> list[EngineOutput]:
        return []


def test_an_engine_that_cannot_go_on_says_so() -> None:
    rig = Rig(FakeModel(), pages=16, page_tokens=4)
    rig.engine.add(make_request("stuck", (5, 6, 7), seed=1))
    rig.engine.scheduler = StuckScheduler(rig.scheduler)  # type: ignore[assignment]
    with pytest.raises(EngineError, match="1 requests wait and nothing can run"):
        rig.run_steps(20)
