"""Token choice: rules of each setting, seeds, failures, agreement of C++ with numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from octavo.compute.batch import Draw, Float32Array, Score, StepOutput
from octavo.compute.kernels.cpu import _native
from octavo.compute.sample import reference
from octavo.compute.sample.native import NativeSampler
from octavo.compute.sample.params import JOB, RESULT, pack_jobs
from octavo.compute.sample.philox import philox4x32_10
from octavo.core.seeds import derive_seed

Answer = Callable[[Float32Array, Sequence[int], Sequence[Draw], Sequence[Score]], StepOutput]


def _native_answer(
    logits: Float32Array, wanted: Sequence[int], draws: Sequence[Draw], scores: Sequence[Score]
) -> StepOutput:
    sampler = NativeSampler(logits.shape[1], threads=2)
    return sampler.draw_and_score(logits, wanted, draws, scores)


@pytest.fixture(params=["native", "reference"])
def answer(request: pytest.FixtureRequest) -> Answer:
    return _native_answer if request.param == "native" else reference.draw_and_score


def _rows(*rows: Sequence[float]) -> Float32Array:
    return np.array(rows, dtype=np.float32)


def _random_rows(rows: int, vocabulary: int, scale: float = 3.0, seed: int = 0) -> Float32Array:
    generator = np.random.default_rng(seed)
    return generator.normal(0, scale, (rows, vocabulary)).astype(np.float32)


def _possible(answer: Answer, row: Sequence[float], draw: Draw, tries: int = 200) -> set[int]:
    draws = [replace(draw, counter=counter) for counter in range(tries)]
    return set(answer(_rows(row), [0], draws, []).drawn)


DRAW = Draw(token=0, seed=5, counter=0)
FOUR = [math.log(p) for p in (0.4, 0.1, 0.3, 0.2)]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers published with the Random123 library
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert philox4x32_10(counter, key) == expected
    assert tuple(_native.philox4x32_10(counter, key)) == expected


def test_records_have_the_size_of_the_native_structs() -> None:
    assert (JOB.itemsize, RESULT.itemsize) == (104, 16)


def test_greedy_takes_the_lowest_id_of_equals(answer: Answer) -> None:
    rows = np.zeros((2, 1000), dtype=np.float32)
    rows[0, [700, 300, 900]] = 2.0
    rows[1] = -0.0  # equal to the zeros below
    rows[1, 999] = 0.0
    draws = [replace(DRAW, token=row, temperature=0.0) for row in (0, 1)]
    assert answer(rows, [0, 1], draws, []).drawn == [300, 0]


def test_top_k_prefers_lower_ids_among_equals(answer: Answer) -> None:
    assert _possible(answer, [1, 2, 1, 1, 2, 1], replace(DRAW, top_k=3)) == {0, 1, 4}
    assert _possible(answer, FOUR, replace(DRAW, top_k=1)) == {0}
    assert _possible(answer, FOUR, replace(DRAW, top_k=100)) == {0, 1, 2, 3}


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(answer: Answer) -> None:
    assert _possible(answer, FOUR, replace(DRAW, top_p=0.69)) == {0, 2}
    assert _possible(answer, FOUR, replace(DRAW, top_p=0.71)) == {0, 2, 3}
    assert _possible(answer, FOUR, replace(DRAW, top_p=0.0)) == {0}
    # exactly the edge: half the mass of four equal tokens is two of them
    assert _possible(answer, [0, 0, 0, 0], replace(DRAW, top_p=0.5)) == {0, 1}


def test_top_p_looks_at_what_top_k_leaves(answer: Answer) -> None:
    # 0.4 and 0.3 become 4/7 and 3/7, so that the first alone reaches 0.55
    assert _possible(answer, FOUR, replace(DRAW, top_k=2, top_p=0.55)) == {0}
    assert _possible(answer, FOUR, replace(DRAW, top_p=0.55)) == {0, 2}


def test_min_p_compares_with_the_best_token(answer: Answer) -> None:
    assert _possible(answer, FOUR, replace(DRAW, min_p=0.7)) == {0, 2}
    assert _possible(answer, FOUR, replace(DRAW, min_p=0.3)) == {0, 2, 3}
    assert _possible(answer, FOUR, replace(DRAW, min_p=1.0)) == {0}


def test_penalties_count_prompt_and_output_as_documented(answer: Answer) -> None:
    history = {"history_prompt": [0, 0], "history_output": [1, 1, 1, 2]}

    def best(row: Sequence[float], **settings: float) -> int:
        draw = replace(DRAW, temperature=0.0, **history, **settings)  # type: ignore[arg-type]
        return answer(_rows(row), [0], [draw], []).drawn[0]

    # repetition: each of 0, 1, 2 once, however often it occurs; negative logits fall too
    assert best([3.9, 3.8, 0, 2], repetition_penalty=2.0) == 3
    assert best([4.1, 3.8, 0, 2], repetition_penalty=2.0) == 0
    assert best([-1, -1, -1, -1.9], repetition_penalty=2.0) == 3
    # frequency: per occurrence in the output only
    assert best([0, 3, 1, 0.5], frequency_penalty=0.5) == 1
    assert best([0, 2.9, 1, 1.45], frequency_penalty=0.5) == 3
    # presence: once, in the output only
    assert best([1, 2.9, 0, 0], presence_penalty=2.0) == 0
    assert best([1, 3.1, 0, 0], presence_penalty=2.0) == 1


def test_bias_comes_before_penalties_and_bans_after(answer: Answer) -> None:
    draw = replace(
        DRAW,
        temperature=0.0,
        repetition_penalty=2.0,
        history_prompt=[0],
        bias_ids=[0, 1],
        bias_values=[6.0, 2.9],
    )
    assert answer(_rows([0, 0, 1]), [0], [draw], []).drawn == [0]  # 6 / 2 > 2.9
    banned = replace(draw, banned=[0])
    assert answer(_rows([0, 0, 1]), [0], [banned], []).drawn == [1]


def test_penalty_scratch_does_not_leak_into_the_next_row() -> None:
    sampler = NativeSampler(4)
    draw = replace(DRAW, temperature=0.0, presence_penalty=2.0, history_output=[1, 1, 3])
    other = replace(draw, history_output=[0])
    for _ in range(2):
        rows = _rows([0, 3, 2.5, 0])
        assert sampler.draw_and_score(rows, [0], [draw, other], []).drawn == [2, 1]


def test_logprobs_are_those_of_the_raw_logits(answer: Answer) -> None:
    rows = _random_rows(2, 5000)
    expected = rows.astype(np.float64)
    expected -= np.log(np.exp(expected).sum(axis=1, keepdims=True))
    draw = replace(DRAW, token=4, temperature=0.2, bias_ids=[9], bias_values=[90.0], top=5)
    output = answer(rows, [3, 4], [draw], [Score(3, 77, 3), Score(4, 78)])
    drawn = output.drawn_logprobs[0]
    assert output.drawn == [9]
    assert drawn is not None
    assert drawn.logprob == pytest.approx(expected[1, 9], abs=1e-6)
    assert [token for token, _ in drawn.top] == np.argsort(-expected[1])[:5].tolist()
    assert [value for _, value in drawn.top] == pytest.approx(
        np.sort(expected[1])[::-1][:5], abs=1e-6
    )
    assert output.scored[0].token_id == 77
    assert output.scored[0].logprob == pytest.approx(expected[0, 77], abs=1e-6)
    assert len(output.scored[0].top) == 3
    assert output.scored[1].top == ()


def test_alternatives_rank_equals_by_id_and_stop_at_the_vocabulary(answer: Answer) -> None:
    output = answer(_rows([1, 2, -math.inf, 2]), [0], [], [Score(0, 2, 64)])
    assert [token for token, _ in output.scored[0].top] == [1, 3, 0, 2]
    assert output.scored[0].logprob == -math.inf
    assert output.scored[0].top[3][1] == -math.inf


def test_logprobs_only_when_asked(answer: Answer) -> None:
    output = answer(_rows(FOUR), [0], [DRAW, replace(DRAW, top=0)], [])
    assert output.drawn_logprobs[0] is None
    chosen = output.drawn_logprobs[1]
    assert chosen is not None
    assert (chosen.token_id, chosen.top) == (output.drawn[1], ())


@pytest.mark.parametrize(
    "bad", [[math.nan] * 3, [0, math.nan, 1], [0, math.inf, 1], [-math.inf] * 3]
)
def test_unusable_logits_fail_their_row_only(answer: Answer, bad: list[float]) -> None:
    rows = _rows([0, 9, 0], bad, [0, 0, 9])
    draws = [
        replace(DRAW, token=token, temperature=t, top=1) for t in (0.0, 1e-3) for token in (0, 1, 2)
    ]
    output = answer(rows, [0, 1, 2], draws, [Score(1, 2, 2), Score(2, 2)])
    assert output.drawn == [1, -1, 2, 1, -1, 2]
    assert set(output.draw_errors) == {1, 4}
    assert output.drawn_logprobs[1] is None
    assert math.isnan(output.scored[0].logprob)
    assert output.scored[0].token_id == 2
    assert output.scored[1].logprob == pytest.approx(0.0, abs=1e-3)


def test_banning_everything_fails_the_draw(answer: Answer) -> None:
    draws = [replace(DRAW, banned=[0, 1]), DRAW]
    output = answer(_rows([0, 0]), [0], draws, [])
    assert output.drawn[0] == -1
    assert output.drawn[1] in (0, 1)
    assert "ruled out" in output.draw_errors[0]


def test_overflow_by_a_penalty_fails_the_draw(answer: Answer) -> None:
    draw = replace(DRAW, repetition_penalty=0.01, history_prompt=[0])
    output = answer(_rows([3e38, 0]), [0], [draw], [])
    assert output.drawn == [-1]
    assert "finite" in output.draw_errors[0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-45, 1e-60])
def test_tiny_temperatures_are_greedy(answer: Answer, temperature: float) -> None:
    rows = _random_rows(1, 500)
    output = answer(rows, [0], [replace(DRAW, temperature=temperature)], [])
    assert output.drawn == [int(rows[0].argmax())]


def test_a_seed_holds_in_any_batch_order_and_thread_count() -> None:
    rows = _random_rows(32, 3000, seed=3)
    draws = [
        Draw(token=i, seed=i % 3, counter=i, top_k=50 * (i % 2), top_p=0.95, top=i % 4)
        for i in range(32)
    ]
    together = NativeSampler(3000, threads=3).draw_and_score(rows, range(32), draws, [])
    for i, draw in enumerate(draws):
        alone = NativeSampler(3000).draw_and_score(rows[i : i + 1], [i], [draw], [])
        assert (alone.drawn[0], alone.drawn_logprobs[0]) == (
            together.drawn[i],
            together.drawn_logprobs[i],
        )
    order = np.random.default_rng(1).permutation(32).tolist()
    shuffled = NativeSampler(3000, threads=2).draw_and_score(
        rows[order], order, [draws[i] for i in order], []
    )
    assert shuffled.drawn == [together.drawn[i] for i in order]
    assert len(set(together.drawn)) > 10


def test_counter_and_seed_each_change_the_draw() -> None:
    rows = np.zeros((1, 1000), dtype=np.float32)
    draws = [Draw(token=0, seed=s, counter=c) for s in range(8) for c in range(8)]
    drawn = NativeSampler(1000).draw_and_score(rows, [0], draws, []).drawn
    assert len(set(drawn)) > 55


@pytest.mark.parametrize("seed", [11, 2**64 - 1, -7])
def test_draws_follow_the_softmax(seed: int) -> None:
    vocabulary, count = 40, 10000
    rows = _random_rows(1, vocabulary, scale=1.0, seed=2)
    draws = [Draw(token=0, seed=seed, counter=c, temperature=0.8) for c in range(count)]
    drawn = NativeSampler(vocabulary, threads=2).draw_and_score(rows, [0], draws, []).drawn
    exponents = rows[0].astype(np.float64) / 0.8
    expected = np.exp(exponents) / np.exp(exponents).sum() * count
    observed = np.bincount(drawn, minlength=vocabulary)
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    # 39 degrees of freedom: above 80 once in ten thousand seeds, below 13 as well
    assert 13 < chi_square < 80


def test_a_large_vocabulary_with_one_value_only(answer: Answer) -> None:
    rows = np.full((1, 50000), 7.0, dtype=np.float32)
    draw = replace(DRAW, top_k=30000, top_p=0.5, top=64)
    output = answer(rows, [0], [draw], [])
    assert 0 <= output.drawn[0] < 15000
    chosen = output.drawn_logprobs[0]
    assert chosen is not None
    assert [token for token, _ in chosen.top] == list(range(64))
    assert chosen.logprob == pytest.approx(-math.log(50000), abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": math.nan}, "min_p"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": math.nan}, "presence_penalty"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 2**31}, "too large"),
        ({"top": -1}, "top"),
        ({"banned": [4]}, "vocabulary"),
        ({"banned": [2**31]}, "too large"),
        ({"bias_ids": [-1], "bias_values": [0.0]}, "vocabulary"),
        ({"bias_ids": [1], "bias_values": [math.inf]}, "bias"),
        ({"bias_ids": [1], "bias_values": []}, "length"),
        ({"token": 1}, "batch token 1"),
        ({"token": -1}, "negative"),
        ({"presence_penalty": 1.0, "history_output": [9]}, "vocabulary"),
    ],
)
def test_settings_out_of_range_are_refused(
    answer: Answer, settings: dict[str, object], names: str
) -> None:
    with pytest.raises(ValueError, match=names):
        answer(_rows([0, 1, 2, 3]), [0], [replace(DRAW, **settings)], [])  # type: ignore[arg-type]


def test_scores_out_of_the_vocabulary_are_refused(answer: Answer) -> None:
    with pytest.raises(ValueError, match="target"):
        answer(_rows([0, 1]), [0], [], [Score(0, 2)])
    with pytest.raises(ValueError, match="top"):
        answer(_rows([0, 1]), [0], [], [Score(0, 1, -1)])


def test_native_code_checks_what_crosses_into_it() -> None:
    rows = np.zeros((1, 8), dtype=np.float32)
    sampler = _native.Sampler(8, 1)

    def with_field(name: str, value: float) -> None:
        packed = pack_jobs([replace(DRAW, top=2, bias_ids=[1], bias_values=[1.0])], [], 8)
        packed.jobs[name] = value
        sampler.sample(rows, *packed.arrays())

    with_field("top_p", 0.5)
    for name, value in (
        ("row", 1),
        ("row", -1),
        ("kind", 2),
        ("target", 8),
        ("top_p", math.nan),
        ("temperature", math.nan),
        ("top", 3),
        ("top_begin", -1),
        ("bias_begin", 1),
        ("bias_count", -1),
        ("output_count", 2),
    ):
        with pytest.raises(ValueError):
            with_field(name, value)
    packed = pack_jobs([DRAW, DRAW], [], 8)
    arrays = list(packed.arrays())
    arrays[3] = arrays[3][:16]
    with pytest.raises(ValueError, match="results"):
        sampler.sample(rows, *arrays)
    with pytest.raises(ValueError, match="wide"):
        sampler.sample(np.zeros((1, 7), dtype=np.float32), *packed.arrays())


@pytest.mark.parametrize(("vocabulary", "threads"), [(0, 1), (2**22, 1), (10, 0)])
def test_samplers_of_impossible_size_are_refused(vocabulary: int, threads: int) -> None:
    with pytest.raises(ValueError):
        NativeSampler(vocabulary, threads=threads)


def test_packing_sorts_by_row_and_answers_in_the_callers_order() -> None:
    draws = [replace(DRAW, token=9, seed=-1), replace(DRAW, token=4, banned=(1, 2))]
    packed = pack_jobs(draws, [Score(4, 3, 1)], 6)
    assert packed.wanted.tolist() == [4, 9]
    assert packed.jobs["row"].tolist() == [0, 0, 1]
    assert packed.jobs["seed"][2] == 2**64 - 1
    packed.results["token"] = [10, 11, 12]
    output = packed.output()
    assert output.drawn == [12, 10]
    assert output.scored[0].token_id == 11
    assert pack_jobs([], [], 6).output() == StepOutput()


def test_choices_of_one_request_have_streams_of_their_own() -> None:
    assert derive_seed(42, 0) == 42
    assert derive_seed(-1, 0) == 2**64 - 1
    assert derive_seed(2**64 + 5, 3) == derive_seed(5, 3)
    # the first outputs of splitmix64 from state 1234567
    assert [derive_seed(1234567, index) for index in (1, 2, 3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    assert len({derive_seed(7, index) for index in range(1000)}) == 1000
    with pytest.raises(ValueError):
        derive_seed(1, -1)
