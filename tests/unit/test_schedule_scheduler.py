"""The scheduler's policy by example; histories are in tests/property."""

from __future__ import annotations

import dataclasses
import gc
import re
from typing import Any

import pytest
from msgspec import structs

from octavo.core.errors import CapacityError, InvalidRequest, PromptTooLong, SettingsError
from octavo.core.request import FinishReason, Request, RequestState, Transition
from octavo.memory._pages import FREE
from octavo.schedule.plan import StepResult
from octavo.schedule.scheduler import Scheduler
from schedule_harness import Driver, alone, check_alone, driver, lengths, next_token, request


class TestLimits:
    @pytest.mark.parametrize(
        "setting", ["page_tokens", "token_budget", "max_rows", "max_context", "max_chunk_tokens"]
    )
    def test_settings_below_one_are_refused(self, setting: str) -> None:
        with pytest.raises(SettingsError) as raised:
            driver(**{setting: 0})
        assert raised.value.field == setting

    def test_a_prompt_beyond_the_context_names_both_numbers(self) -> None:
        driven = driver(max_context=10)
        with pytest.raises(PromptTooLong, match=r"10 tokens and 1 more.* 10"):
            driven.add(request("a", range(10)))
        driven.add(request("b", range(9)))
        driven.add(request("c", range(10), max_new_tokens=0))

    def test_a_prompt_beyond_the_pool_names_both_numbers(self) -> None:
        with pytest.raises(CapacityError, match=r"8 tokens and 1 more.* 8"):
            driver(pages=2).add(request("a", range(8)))

    @pytest.mark.parametrize("prompt", [[], [-1], [2**31]])
    def test_a_prompt_that_is_no_prompt_is_refused(self, prompt: list[int]) -> None:
        with pytest.raises(InvalidRequest):
            driver().add(request("a", prompt))

    @pytest.mark.parametrize(
        "wanted",
        [
            {"max_new_tokens": 2**63},
            {"stop_ids": frozenset({2**63})},
            {"stop_ids": frozenset({-1})},
        ],
        ids=str,
    )
    def test_numbers_beyond_all_counting_are_refused(self, wanted: dict[str, Any]) -> None:
        driven = driver()
        with pytest.raises(InvalidRequest, match="2147483647"):
            driven.add(dataclasses.replace(request("a", [1]), **wanted))
        assert not driven.scheduler.has_work

    def test_an_id_in_use_is_refused(self) -> None:
        driven = driver()
        driven.add(request("a", [1]))
        with pytest.raises(InvalidRequest, match="already"):
            driven.add(request("a", [2]))

    def test_an_answer_that_outgrows_the_pool_ends_with_length(self) -> None:
        driven = driver(pages=3)
        asked = request("a", range(5), max_new_tokens=100)
        driven.add(asked)
        driven.run()
        assert driven.answers["a"].finish_reason is FinishReason.LENGTH
        assert len(driven.answers["a"].tokens) == 3 * 4 - 5
        check_alone(driven, asked)


class TestSteps:
    def test_a_long_prompt_is_computed_in_chunks_beside_decodes(self) -> None:
        driven = driver(token_budget=8)
        short, long = request("s", [1, 2], max_new_tokens=10), request("l", range(20))
        driven.add(short)
        driven.step()
        driven.add(long)
        steps = [lengths(driven.step()) for _ in range(4)]
        assert steps == [{"s": 1, "l": 7}, {"s": 1, "l": 7}, {"s": 1, "l": 6}, {"s": 1, "l": 1}]
        driven.run()
        check_alone(driven, short, long)

    @pytest.mark.parametrize("chunk", [1, 3, 7])
    def test_no_chunk_exceeds_its_maximum(self, chunk: int) -> None:
        driven = driver(max_chunk_tokens=chunk)
        asked = request("a", range(20))
        driven.add(asked)
        driven.run()
        assert driven.scheduler.counters.chunks == -(-20 // chunk)
        assert max(max(lengths(plan).values(), default=0) for plan in driven.plans) == chunk
        check_alone(driven, asked)

    def test_rows_are_reused_once_they_are_closed(self) -> None:
        driven = driver(max_rows=1)
        asked = [request(f"r{n}", [n, 1], max_new_tokens=1) for n in range(3)]
        driven.add(*asked)
        driven.run()
        assert [plan.closed_rows for plan in driven.plans] == [(), (0,), (0,), (0,)]
        check_alone(driven, *asked)

    def test_a_void_plan_is_refused_and_changes_nothing(self) -> None:
        scheduler = driver().scheduler
        scheduler.add(request("a", [1]))
        scheduler.add(request("b", [2]))
        plan = scheduler.plan()
        scheduler.cancel("a")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="void"):
            scheduler.commit(plan)
        assert scheduler.audit() == []
        assert [row.request_id for row in scheduler.plan().rows] == ["b"]

    def test_results_out_of_turn_are_refused(self) -> None:
        driven = driver()
        driven.add(request("a", [1]))
        plan = driven.scheduler.plan()
        with pytest.raises(ValueError, match="not in flight"):
            driven.scheduler.on_result(StepResult(plan.number, (), 0.0))
        driven.scheduler.commit(plan)
        with pytest.raises(ValueError, match="no result yet"):
            driven.scheduler.plan()
        result = driven.model.execute(plan)
        stranger = structs.replace(result.rows[0], row=5)
        with pytest.raises(ValueError, match="row 5"):
            driven.scheduler.on_result(structs.replace(result, rows=(stranger,)))
        assert driven.scheduler.on_result(result)

    def test_a_row_without_result_is_planned_again(self) -> None:
        driven = driver()
        driven.add(request("a", range(6)))
        plan = driven.scheduler.plan()
        driven.scheduler.commit(plan)
        assert driven.scheduler.on_result(StepResult(plan.number, (), 0.0)) == []
        again = driven.scheduler.plan()
        assert again.rows[0].tokens == plan.rows[0].tokens
        assert again.rows[0].new_pages == ()
        assert driven.scheduler.audit() == []

    def test_an_idle_scheduler_plans_nothing(self) -> None:
        driven = driver()
        assert driven.step().is_empty
        assert not driven.scheduler.has_work


class TestEnds:
    def first_tokens(self, count: int) -> tuple[int, ...]:
        return alone(request("x", [3, 1], max_new_tokens=count), 1000).tokens

    def test_a_stop_id_ends_the_answer_and_is_kept(self) -> None:
        tokens = self.first_tokens(6)
        stop = tokens[3]
        driven = driver()
        driven.add(request("a", [3, 1], max_new_tokens=6, stop_ids=[stop]))
        driven.run()
        assert driven.answers["a"].tokens == tokens[: tokens.index(stop) + 1]
        assert driven.answers["a"].finish_reason is FinishReason.STOP

    def test_stop_ids_count_only_after_min_tokens(self) -> None:
        tokens = self.first_tokens(6)
        driven = driver()
        everything = range(11)
        driven.add(request("a", [3, 1], max_new_tokens=6, stop_ids=everything, min_tokens=2))
        driven.run()
        assert driven.answers["a"].tokens == tokens[:3]

    def test_surplus_tokens_of_a_span_are_dropped(self) -> None:
        driven = driver()
        driven.add(request("a", [3, 1], max_new_tokens=2))
        plan = driven.scheduler.plan()
        driven.scheduler.commit(plan)
        result = driven.model.execute(plan)
        span = structs.replace(result.rows[0], tokens=(1, 2, 3))
        (output,) = driven.scheduler.on_result(structs.replace(result, rows=(span,)))
        assert output.token_ids == (1, 2)
        assert output.finish_reason is FinishReason.LENGTH

    def test_no_new_tokens_computes_the_prompt_only(self) -> None:
        driven = driver()
        driven.add(request("a", range(9), max_new_tokens=0))
        plan = driven.step()
        assert [row.wants_token for row in plan.rows] == [False]
        assert driven.outputs[-1].finish_reason is FinishReason.LENGTH
        driven.add(request("b", range(9)))
        driven.run()
        assert driven.outputs[-1].cached_tokens == 8

    @pytest.mark.parametrize("end", ["cancel", "finish", "fail"])
    @pytest.mark.parametrize("steps", [0, 1, 2])
    def test_ending_from_outside_frees_row_and_pages_at_once(self, end: str, steps: int) -> None:
        driven = driver(token_budget=6, pages=8)
        driven.add(request("a", range(10), max_new_tokens=5))
        for _ in range(steps):
            driven.step()
        arguments = ("broken",) if end == "fail" else ()
        assert getattr(driven.scheduler, end)("a", *arguments)
        assert not getattr(driven.scheduler, end)("a", *arguments)
        assert driven.scheduler.cache.pool.held_count == 0
        assert driven.step().closed_rows == ((0,) if steps else ())
        assert driven.scheduler.audit() == []
        last = driven.events[-1]
        assert isinstance(last, Transition)
        wanted = {"cancel": "CANCELLED", "finish": "FINISHED", "fail": "FAILED"}[end]
        assert last.after is RequestState[wanted]

    def test_a_failed_row_fails_its_request_alone(self) -> None:
        driven = driver()
        good, bad = request("good", [1, 2]), request("bad", [3, 4])
        driven.add(good, bad)
        driven.step(errors={"bad": "not finite"})
        (output,) = [news for news in driven.outputs if news.request_id == "bad"]
        assert (output.finish_reason, output.error) == (FinishReason.ERROR, "not finite")
        driven.run()
        check_alone(driven, good)
        assert driven.scheduler.counters.failed == 1


class TestPreemption:
    def run_two(self) -> tuple[Driver, Request, Request]:
        driven = driver(pages=6, token_budget=16)
        old = request("old", range(7), max_new_tokens=12)
        young = request("young", range(20, 27), max_new_tokens=12)
        driven.add(old, young)
        driven.run()
        return driven, old, young

    def test_the_youngest_gives_way_and_keeps_its_tokens(self) -> None:
        driven, old, young = self.run_two()
        victims = [v.request_id for plan in driven.plans for v in plan.preemptions]
        assert victims == ["young"]
        (back,) = [a for p in driven.plans for a in p.admissions if a.generated]
        assert back.request.id == "young"
        assert back.generated == driven.answers["young"].tokens[: len(back.generated)]
        check_alone(driven, old, young)

    @pytest.mark.parametrize("pages", range(12, 21))
    def test_tokens_survive_wherever_in_a_page_it_happens(self, pages: int) -> None:
        driven = driver(pages=pages, page_tokens=2, token_budget=16, max_chunk_tokens=1)
        asked = [request(f"r{n}", range(9 * n, 9 * n + 7), max_new_tokens=15) for n in range(3)]
        driven.add(*asked)
        while driven.scheduler.has_work:
            driven.step()
            assert driven.scheduler.audit() == []
        assert driven.scheduler.counters.preemptions > 0
        check_alone(driven, *asked)

    def test_its_pages_stay_findable_until_they_are_needed(self) -> None:
        driven, _, _ = self.run_two()
        (back,) = [a for p in driven.plans for a in p.admissions if a.generated]
        assert back.cached_tokens > 0
        assert driven.answers["young"].finish_reason is FinishReason.LENGTH
        # `cached_tokens` of the answer is that of the first admission.
        assert driven.outputs[-1].cached_tokens == 0

    @pytest.mark.parametrize(("pages", "way"), [(12, "recompute"), (16, "keep")])
    def test_what_became_of_its_pages_is_told(self, pages: int, way: str) -> None:
        driven = driver(pages=pages, token_budget=16)
        driven.add(
            *(request(f"r{n}", range(9 * n, 9 * n + 7), max_new_tokens=15) for n in range(3))
        )
        driven.run()
        assert driven.scheduler.counters.returns == {way: 1}
        moves = [event for event in driven.events if isinstance(event, Transition)]
        (back,) = [move for move in moves if move.before is RequestState.PREEMPTED]
        assert re.fullmatch(way + r": \d+ of \d+ tokens are there", back.reason)

    def test_a_victim_planned_in_the_same_step_gives_its_page_back(self) -> None:
        """The oldest, still in prefill, needs the page that a younger decode was to get."""
        driven = driver(pages=5, page_tokens=2, token_budget=16, max_chunk_tokens=1)
        old = request("old", range(6), max_new_tokens=2)
        young = request("young", [9], max_new_tokens=6)
        driven.add(old, young)
        free: list[int] = []
        for _ in range(30):
            state = driven.scheduler.cache.pool.state
            free = [page for page in range(5) if state[page] == FREE]
            if driven.step().preemptions:
                break
        plan = driven.plans[-1]
        assert [(row.request_id, list(row.new_pages)) for row in plan.rows] == [("old", free)]
        driven.run()
        check_alone(driven, old, young)

    def test_scores_survive_a_preemption_in_the_middle_of_the_prompt(self) -> None:
        driven = driver(pages=9, page_tokens=2, token_budget=4, max_chunk_tokens=1)
        old = request("old", [1, 2], max_new_tokens=14)
        scored = request("scored", range(30, 41), max_new_tokens=2, prompt_logprobs=0)
        driven.add(old, scored)
        driven.run()
        (returned,) = [a for p in driven.plans for a in p.admissions if a.cached_tokens]
        assert returned.request.id == "scored"
        assert returned.generated == ()
        check_alone(driven, old, scored)

    def test_prompt_scores_are_neither_lost_nor_doubled(self) -> None:
        driven = driver(token_budget=3, pages=30)
        asked = request("a", range(17), prompt_logprobs=0)
        driven.add(asked)
        for _ in range(3):
            driven.step()
        sequence = driven.scheduler._ledger.sequences["a"]  # type: ignore[index]
        assert sequence.scored == 10
        assert sequence.reusable_pages == 2
        assert [sequence.chunk_limit(start) for start in (0, 8, 9, 12)] == [9, 1, 8, 5]
        assert [sequence.needs_scores(start) for start in (0, 8, 9, 12)] == [
            False,
            False,
            True,
            True,
        ]
        driven.run()
        check_alone(driven, asked)
        assert [news.prompt_logprobs for news in driven.outputs].count(None) == 3

    def test_too_few_scores_fail_the_request(self) -> None:
        driven = driver()
        driven.add(request("a", range(5), prompt_logprobs=0))
        plan = driven.scheduler.plan()
        driven.scheduler.commit(plan)
        result = driven.model.execute(plan)
        short = structs.replace(result.rows[0], prompt_logprobs=())
        (output,) = driven.scheduler.on_result(structs.replace(result, rows=(short,)))
        assert output.finish_reason is FinishReason.ERROR
        assert output.error is not None
        assert "0 prompt log-probabilities came back instead of 4" in output.error


class TestState:
    def test_admission_leaves_room_for_those_who_run(self) -> None:
        driven = driver(pages=6, page_tokens=2)
        driven.add(request("a", range(6), max_new_tokens=4))
        driven.add(request("b", range(20, 25), max_new_tokens=2))
        assert list(lengths(driven.step())) == ["a"]  # 3 + 1 pages more do not fit in 3
        driven.run()
        assert driven.scheduler.counters.preemptions == 0

    def test_admission_counts_what_those_admitted_before_still_need(self) -> None:
        driven = driver(pages=8, page_tokens=2, max_chunk_tokens=2)
        driven.add(request("a", range(8)), request("b", range(20, 26)), request("c", [9]))
        assert list(lengths(driven.step())) == ["a", "b"]

    def test_waste_is_the_unwritten_part_of_held_pages(self) -> None:
        driven = driver()
        assert driven.scheduler.waste().share == 0.0
        driven.add(request("a", range(5), max_new_tokens=3))
        driven.step()
        assert driven.scheduler.waste().share == 3 / 8

    def test_repair_in_the_middle_changes_no_answer(self) -> None:
        driven = driver(pages=12, token_budget=6)
        asked = [request(f"r{n}", range(n, n + 9), max_new_tokens=6) for n in range(4)]
        driven.add(*asked)
        for _ in range(4):
            driven.step()
        driven.scheduler.cache.pool.refs[0] += 3
        assert driven.scheduler.audit()
        driven.scheduler.repair()
        assert driven.scheduler.audit() == []
        driven.run()
        check_alone(driven, *asked)
        assert driven.scheduler.cache.pool.held_count == 0

    def test_events_tell_each_move_with_its_time(self) -> None:
        events: list[object] = []
        scheduler = Scheduler(
            pages=4, page_tokens=4, max_context=16, clock=lambda: 12.5, emit=events.append
        )
        scheduler.add(request("a", [1]))
        scheduler.commit(scheduler.plan())
        scheduler.cancel("a")  # type: ignore[arg-type]
        moves = [(e.before.value, e.after.value) for e in events if isinstance(e, Transition)]
        assert moves == [("waiting", "running"), ("running", "cancelled")]
        assert all(isinstance(e, Transition) and e.at_seconds == 12.5 for e in events)


def test_the_harness_knows_seeds_apart() -> None:
    assert len({next_token(123456, seed) for seed in range(20)}) > 3


def test_steps_leave_nothing_to_the_collector() -> None:
    driven = driver(pages=10, max_rows=4)
    gc.collect()
    gc.disable()
    try:
        driven.add(
            *(
                request(f"r{number}", range(number, number + 6), max_new_tokens=20)
                for number in range(8)
            )
        )
        driven.run()
        found = gc.collect()
    finally:
        gc.enable()
    assert driven.scheduler.counters.preemptions > 0
    assert found == 0
