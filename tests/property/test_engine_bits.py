"""The same bits alone, in a crowd, in chunks, from the cache, after a preemption: tiny models.

Each example asserts that the situation really came about (see `engine_bits`). About a minute.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_bits import (
    Observed,
    alone,
    check_every_situation,
    in_groups,
    in_groups_after_preemption,
    make_target,
)
from engine_harness import RecordingModel, Rig, make_request, random_prompt
from fake_model import FakeModel
from octavo.compute.batch import StepModel
from octavo.compute.runner import ComputeOptions, open_model
from octavo.core.gguf import GgufFile
from tiny import FAMILIES, make_tiny_gguf

CONTEXT = 1024
_FEW = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def test_the_situations_notice_a_model_that_depends_on_its_batch() -> None:
    class Unfaithful(FakeModel):
        def logits(self, batch, wanted):  # type: ignore[no-untyped-def]
            return super().logits(batch, wanted) + len(batch.past)

    rng = random.Random(3)
    target = make_target(random_prompt(rng, 100, 50), seed=9, temperature=1.0)
    check_every_situation(FakeModel(), target, rng, chunks=(7,))
    with pytest.raises(AssertionError, match="among others"):
        check_every_situation(Unfaithful(), target, rng, chunks=(7,))


@pytest.fixture(
    scope="module", params=[*((family, "fp16") for family in FAMILIES), ("gemma3", "int8")]
)
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[StepModel]]:
    """A tiny model of each family and one on an int8 cache, with one thread and with two."""
    family, kv_format = request.param
    path = make_tiny_gguf(
        Path(tmp_path_factory.mktemp("tiny")) / "m.gguf",
        family=family,
        quant="mixed",
        context=CONTEXT,
    )
    with GgufFile.open(path) as file:
        opened = [
            open_model(
                file,
                ComputeOptions(threads=threads, kv_format=kv_format, max_batch_tokens=1024),
            ).model
            for threads in (1, 2)
        ]
        yield opened
        for model in opened:
            model.close()


@given(
    length=st.integers(33, 700),
    seed=st.integers(0, 2**40),
    temperature=st.sampled_from((0.0, 1.0)),
    chunk=st.sampled_from((1, 7, 64, 512)),
)
@_FEW
def test_bits_of_tiny_models(
    models: list[StepModel], length: int, seed: int, temperature: float, chunk: int
) -> None:
    rng = random.Random(seed)
    prompt = random_prompt(rng, length, models[0].program.vocabulary_size)
    target = make_target(prompt, seed=seed, temperature=temperature)
    expected = check_every_situation(models[0], target, rng, chunks=(chunk, 7))
    assert alone(models[1], target) == expected, "two threads"
    if models[0].program.cache_groups().count > 1:
        for model, page_tokens in ((models[0], 16), (models[1], 32)):
            assert set(in_groups(model, target, page_tokens=page_tokens)) == {expected}


def test_bits_after_a_preemption_in_groups(models: list[StepModel]) -> None:
    if models[0].program.cache_groups().count == 1:
        return
    rng = random.Random(5)
    prompt = random_prompt(rng, 200, models[0].program.vocabulary_size)
    target = make_target(prompt, seed=3, temperature=1.0)
    assert in_groups_after_preemption(models[0], target) == alone(models[0], target)


@given(
    length=st.integers(2, 200),
    seed=st.integers(0, 2**40),
    chunk=st.sampled_from((1, 7, 64, None)),
)
@_FEW
def test_bits_of_prompt_scores(
    models: list[StepModel], length: int, seed: int, chunk: int | None
) -> None:
    rng = random.Random(seed)
    prompt = random_prompt(rng, length, models[0].program.vocabulary_size)
    target = make_request("a", prompt, seed=1, max_new_tokens=0, prompt_logprobs=3)

    def scores(model: StepModel, max_chunk_tokens: int | None) -> Observed:
        rig = Rig(RecordingModel(model, []), pages=16, max_chunk_tokens=max_chunk_tokens)
        answer = rig.run([target])["a"]
        assert answer.prompt_logprobs is not None
        assert len(answer.prompt_logprobs) == length
        return Observed((), tuple(answer.bits()))

    assert scores(models[1], chunk) == scores(models[0], None)
