"""The model executor: rows, batches, draws, failures that stay alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from msgspec import structs

from fake_model import FakeModel
from octavo.compute.batch import Batch, Draw, Score, StepOutput
from octavo.compute.rows import GatheredRows, RowSettings
from octavo.core.errors import EngineError
from octavo.core.ids import RequestId
from octavo.core.output import TokenLogprob
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.engine.model_executor import ModelExecutor
from octavo.schedule.plan import (
    NO_DECODES,
    NO_TOKEN,
    Admission,
    DecodeRows,
    Preemption,
    RowPlan,
    RowResult,
    StepPlan,
)

PAGE_TOKENS = 4


def executor_of(model: FakeModel, *, rows: int = 4, tokens: int = 32) -> ModelExecutor:
    model.allocate_kv(16, PAGE_TOKENS)
    return ModelExecutor(model, max_rows=rows, max_pages_per_row=8, max_batch_tokens=tokens)


def request(name: str, prompt: tuple[int, ...], **params: object) -> Request:
    return Request(
        id=RequestId(name),
        prompt=prompt,
        params=SamplingParams(**{"temperature": 0.0, **params}),  # type: ignore[arg-type]
        seed=7,
        max_new_tokens=8,
        stop_ids=frozenset({3, 1}),
    )


def row_plan(
    row: int,
    owner: Request,
    start: int,
    tokens: tuple[int, ...],
    pages: tuple[int, ...] = (),
    **more,
) -> RowPlan:
    return RowPlan(
        row=row,
        request_id=owner.id,
        start=start,
        tokens=tokens,
        table_start=start // PAGE_TOKENS if start % PAGE_TOKENS == 0 else start // PAGE_TOKENS + 1,
        new_pages=pages,
        wants_token=more.pop("wants_token", True),
        **more,
    )


def admitted(number: int, *pairs: tuple[RowPlan, Request]) -> StepPlan:
    return StepPlan(
        number=number,
        chunks=tuple(plan for plan, _ in pairs),
        admissions=tuple(Admission(plan.row, owner, (), 0) for plan, owner in pairs),
    )


def test_mixed_rows_read_their_own_pages() -> None:
    model = FakeModel()
    executor = executor_of(model)
    first = request("first", (5, 6, 7, 8, 9))
    second = request("second", (10, 11))
    result = executor.execute(
        admitted(
            1,
            (row_plan(2, first, 0, first.prompt, (3, 9)), first),
            (row_plan(0, second, 0, second.prompt, (1,)), second),
        )
    )
    draw = Draw(0, 7, 0, temperature=0.0)
    expected_first = model.next_token(first.prompt, draw)
    expected_second = model.next_token(second.prompt, draw)
    assert [row.tokens for row in result.rows] == [(expected_first,), (expected_second,)]
    assert [row.request_id for row in result.rows] == ["first", "second"]

    result = executor.execute(StepPlan(2, (row_plan(2, first, 5, (expected_first,)),)))
    assert result.rows[0].tokens == (model.next_token((*first.prompt, expected_first), draw),)


def test_chunk_without_wanted_token_draws_nothing() -> None:
    model = FakeModel()
    executor = executor_of(model)
    owner = request("a", (5, 6, 7, 8, 9, 10))
    result = executor.execute(
        admitted(1, (row_plan(0, owner, 0, (5, 6, 7, 8), (2,), wants_token=False), owner))
    )
    assert result.rows[0].tokens == ()
    result = executor.execute(StepPlan(2, (row_plan(0, owner, 4, (9, 10), (5,)),)))
    assert result.rows[0].tokens == (
        model.next_token(owner.prompt, Draw(0, 7, 0, temperature=0.0)),
    )


def test_prompt_scores_split_over_chunks_equal_those_at_once() -> None:
    owner = request("a", (5, 6, 7, 8, 9, 10), prompt_logprobs=2)
    model = FakeModel()
    whole = executor_of(model).execute(
        admitted(1, (row_plan(0, owner, 0, owner.prompt, (2, 5), score_prompt=True), owner))
    )
    executor = executor_of(model)
    first = executor.execute(
        admitted(
            1,
            (
                row_plan(0, owner, 0, (5, 6, 7, 8), (2,), score_prompt=True, wants_token=False),
                owner,
            ),
        )
    )
    second = executor.execute(
        StepPlan(2, (row_plan(0, owner, 4, (9, 10), (5,), score_prompt=True),))
    )
    joined = first.rows[0].prompt_logprobs + second.rows[0].prompt_logprobs
    assert len(joined) == len(owner.prompt) - 1
    assert joined == whole.rows[0].prompt_logprobs
    assert [entry.token_id for entry in joined] == list(owner.prompt[1:])
    assert len(joined[0].top) == 2


class Recorder(FakeModel):
    """Keeps copies of the draws it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def step(self, batch: Batch, draws: list[Draw], scores: list[Score]) -> StepOutput:
        self.draws += [replace(draw, history_output=tuple(draw.history_output)) for draw in draws]
        return super().step(batch, draws, scores)


def test_draw_carries_every_setting_and_bans_stops_until_min_tokens() -> None:
    model = Recorder()
    executor = executor_of(model)
    owner = request(
        "a",
        (5, 6),
        temperature=0.7,
        top_k=9,
        top_p=0.8,
        min_p=0.1,
        presence_penalty=0.5,
        logit_bias={4: 1.5},
        logprobs=3,
        min_tokens=1,
    )
    first = executor.execute(admitted(1, (row_plan(0, owner, 0, owner.prompt, (2,)), owner)))
    token = first.rows[0].tokens[0]
    executor.execute(StepPlan(2, (row_plan(0, owner, 2, (token,)),)))
    one, two = model.draws
    assert (one.seed, one.temperature, one.top_k, one.top_p, one.min_p) == (7, 0.7, 9, 0.8, 0.1)
    assert (tuple(one.bias_ids), tuple(one.bias_values), one.top) == ((4,), (1.5,), 3)
    assert (one.counter, two.counter) == (0, 1)
    assert (tuple(one.banned), tuple(two.banned)) == ((1, 3), ())
    assert tuple(one.history_prompt) == (5, 6)
    assert (one.history_output, two.history_output) == ((), (token,))


def test_readmission_restores_history_and_counter() -> None:
    model = Recorder()
    executor = executor_of(model)
    owner = request("a", (5, 6), repetition_penalty=1.2)
    plan = row_plan(1, owner, 0, (5, 6, 30, 31), (2,))
    executor.execute(StepPlan(1, (plan,), (Admission(1, owner, (30, 31), 0),)))
    assert model.draws[0].counter == 2
    assert model.draws[0].history_output == (30, 31)


def test_plan_run_twice_gives_the_same_result() -> None:
    model = Recorder()
    executor = executor_of(model)
    owner = request("a", (5, 6), repetition_penalty=1.2)
    start = admitted(1, (row_plan(0, owner, 0, owner.prompt, (2,)), owner))
    assert executor.execute(start).rows == executor.execute(start).rows
    token = executor.execute(start).rows[0].tokens[0]
    again = StepPlan(2, (row_plan(0, owner, 2, (token,)),))
    assert executor.execute(again).rows == executor.execute(again).rows
    assert model.draws[-1].history_output == (token,)


def test_only_the_poisoned_row_fails() -> None:
    model = FakeModel(poison=[42])
    executor = executor_of(model)
    owners = [request("a", (5, 6)), request("bad", (41, 42)), request("c", (7,))]
    result = executor.execute(
        admitted(
            1,
            *(
                (row_plan(row, owner, 0, owner.prompt, (row,)), owner)
                for row, owner in enumerate(owners)
            ),
        )
    )
    draw = Draw(0, 7, 0, temperature=0.0)
    assert result.rows[0].tokens == (model.next_token((5, 6), draw),)
    assert result.rows[1].error == "RuntimeError: poisoned"
    assert result.rows[1].tokens == ()
    assert result.rows[2].tokens == (model.next_token((7,), draw),)


def test_bad_logits_fail_their_row_only() -> None:
    executor = executor_of(FakeModel(nan=[42]))
    good, bad = request("good", (5,)), request("bad", (42,))
    result = executor.execute(
        admitted(
            1,
            (row_plan(0, bad, 0, bad.prompt, (0,)), bad),
            (row_plan(1, good, 0, good.prompt, (1,)), good),
        )
    )
    assert result.rows[0].error == "bad logits"
    assert result.rows[1].error is None
    assert len(result.rows[1].tokens) == 1


def test_score_that_is_not_a_number_fails_its_row() -> None:
    class NanScores(FakeModel):
        def logprob(self, prefix, token, top):  # type: ignore[no-untyped-def]
            return TokenLogprob(token, math.nan)

    executor = executor_of(NanScores())
    owner = request("a", (5, 6, 7), prompt_logprobs=0)
    plan = row_plan(0, owner, 0, owner.prompt, (0,), score_prompt=True)
    result = executor.execute(admitted(1, (plan, owner)))
    assert "not finite" in (result.rows[0].error or "")


def test_row_without_its_request_is_an_error() -> None:
    executor = executor_of(FakeModel())
    owner, other = request("a", (5, 6)), request("b", (7,))
    executor.execute(admitted(1, (row_plan(0, owner, 0, owner.prompt, (0,)), owner)))
    result = executor.execute(StepPlan(2, (row_plan(0, other, 0, other.prompt, (1,)),)))
    assert "does not hold" in (result.rows[0].error or "")
    executor.execute(StepPlan(3, preemptions=(Preemption(0, owner.id),)))
    result = executor.execute(StepPlan(4, (row_plan(0, owner, 2, (9,)),)))
    assert "does not hold" in (result.rows[0].error or "")


class Choosy(FakeModel):
    """Has rows of its own, which do not take every request."""

    def step_rows(self, max_rows: int, table_width: int) -> GatheredRows:
        class Rows(GatheredRows):
            def seat(self, row: int, settings: RowSettings) -> None:
                if settings.draw.top_k == 9:
                    raise ValueError("not with this top_k")
                super().seat(row, settings)

        return Rows(self, max_rows, table_width, 32)


def test_a_request_that_the_model_does_not_take_fails_alone() -> None:
    executor = executor_of(Choosy())
    bad, good = request("bad", (5, 6), top_k=9), request("good", (7,))
    plans = ((row_plan(0, bad, 0, bad.prompt, (0,)), bad), (row_plan(1, good, 0, (7,), (1,)), good))
    result = executor.execute(admitted(1, *plans))
    assert "not with this top_k" in (result.rows[0].error or "")
    assert len(result.rows[1].tokens) == 1
    after = request("after", (8,))
    plan = row_plan(0, after, 0, after.prompt, (2,))
    closing = StepPlan(2, (plan,), (Admission(0, after, (), 0),), closed_rows=(0,))
    assert executor.execute(closing).rows[0].error is None


def test_table_wider_than_the_row_is_refused() -> None:
    executor = executor_of(FakeModel())
    owner = request("a", (5,))
    plan = row_plan(0, owner, 0, owner.prompt, tuple(range(9)))
    with pytest.raises(EngineError, match="needs 9 pages"):
        executor.execute(admitted(1, (plan, owner)))


DECODING = (
    ("greedy", {}),
    ("penalised", {"repetition_penalty": 1.2}),
    ("scored", {"logprobs": 2}),
    ("bad", {}),
)


def decoding_plans(model: FakeModel) -> tuple[ModelExecutor, StepPlan]:
    """Four requests at the end of their first page, and the plan of their next tokens.

    A fifth one begins its prompt in the same step.
    """
    executor = executor_of(model, rows=6)
    owners = [
        request(name, (5 + row, 6, 7, 8), **params) for row, (name, params) in enumerate(DECODING)
    ]
    prompts = [
        (row_plan(row, owner, 0, owner.prompt, (row,)), owner) for row, owner in enumerate(owners)
    ]
    executor.execute(admitted(1, *prompts))
    numbers = list(range(len(owners)))
    decodes = DecodeRows(
        rows=numbers,
        request_ids=tuple(owner.id for owner in owners),
        starts=[4] * len(owners),
        tokens=[20, 21, 22, 42],
        table_starts=[1] * len(owners),
        new_pages=tuple((place, (8 + place,)) for place in range(len(owners))),
    )
    newcomer = request("newcomer", (9, 10))
    return executor, StepPlan(
        2,
        (row_plan(5, newcomer, 0, newcomer.prompt, (15,)),),
        (Admission(5, newcomer, (), 0),),
        decodes=decodes,
    )


@pytest.mark.parametrize("trouble", [{}, {"nan": [42]}, {"poison": [42]}])
def test_decoding_columns_give_what_single_rows_give(trouble: dict[str, list[int]]) -> None:
    executor, plan = decoding_plans(FakeModel(**trouble))
    found = executor.execute(plan)
    executor, _ = decoding_plans(FakeModel(**trouble))
    expected = executor.execute(structs.replace(plan, decodes=NO_DECODES, chunks=plan.rows)).rows
    by_row = {row.row: row for row in found.rows}
    for place, token in enumerate(found.decoded):
        if token != NO_TOKEN:
            logprobs = found.decoded_logprobs[place] if found.decoded_logprobs else None
            by_row[place] = RowResult(place, plan.decodes.request_ids[place], (token,), logprobs)
    assert [by_row[row.row] for row in expected] == list(expected)
    assert (expected[3].error is None) == (not trouble)
    assert [len(entry.top) for entry in expected[2].logprobs or ()] == [2]
    # Poisoned rows run one by one, all others as columns.
    assert len(found.decoded) == (0 if "poison" in trouble else len(DECODING))


def test_decoding_columns_remember_what_penalties_look_at() -> None:
    model = Recorder()
    executor, plan = decoding_plans(model)
    first = executor.execute(plan)
    again = executor.execute(plan)
    assert list(again.decoded) == list(first.decoded)
    model.draws.clear()
    starts = [start + 1 for start in plan.decodes.starts]
    tokens = list(first.decoded)
    executor.execute(
        StepPlan(
            3, decodes=structs.replace(plan.decodes, starts=starts, tokens=tokens, new_pages=())
        )
    )
    histories = [draw.history_output for draw in model.draws]
    assert [len(history) for history in histories] == [0, 2, 0, 0]
    assert histories[1][-1] == first.decoded[1]
    assert {draw.counter for draw in model.draws} == {2}


def test_close_closes_the_model_once() -> None:
    model = FakeModel()
    executor = executor_of(model)
    executor.close()
    executor.close()
    assert model.closed == 1
