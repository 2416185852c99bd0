"""The head of a step: jobs that need few tokens of a row leave no logits, and change no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.compute.batch import Batch, Draw, Score
from octavo.compute.kernels.cpu.model import CpuModel
from octavo.compute.load.source import GgufWeights, RawTensor, WeightSource
from octavo.compute.models.registry import load_program
from octavo.compute.program import Logits, Program
from octavo.compute.sample.native import NativeSampler
from octavo.core.gguf import GgufFile
from octavo.observe.process_memory import resident_bytes
from tiny import FAMILIES, make_tiny_gguf

ROWS = 150  # two blocks of 64 rows, and a part of one
VOCABULARY = 700
MOST_KEPT = 128


class Changed:
    """A source of weights, with the rows of some tensors changed."""

    def __init__(
        self, weights: GgufWeights, changes: dict[str, Callable[[NDArray[np.uint8]], None]]
    ):
        self._weights = weights
        self._changes = changes

    def names(self) -> Sequence[str]:
        return list(self._weights.names())

    def raw(self, name: str) -> RawTensor:
        tensor = self._weights.raw(name)
        if name not in self._changes:
            return tensor
        rows = np.frombuffer(tensor.data, dtype=np.uint8).copy().reshape(tensor.shape[0], -1)
        self._changes[name](rows)
        return RawTensor(rows.reshape(-1), tensor.ggml_type, tensor.shape)

    def release(self, name: str) -> None:
        self._weights.release(name)


def open_tiny(folder: Path, family: str, **settings: object) -> tuple[Program, GgufWeights]:
    path = make_tiny_gguf(folder / "tiny.gguf", family, quant="mixed", **settings)  # type: ignore[arg-type]
    file = GgufFile.open(path)
    return load_program(file), GgufWeights(file)


def loaded(program: Program, weights: WeightSource, **settings: object) -> CpuModel:
    model = CpuModel(program, weights, max_batch_tokens=256, **settings)  # type: ignore[arg-type]
    model.allocate_kv(16, 16)
    return model


def head_name(program: Program) -> str:
    head = program.operators[-1]
    assert isinstance(head, Logits)
    return head.weight


def one_sequence(tokens: Sequence[int]) -> Batch:
    return Batch(
        np.asarray(tokens, dtype=np.int32),
        np.asarray([0, len(tokens)], dtype=np.int32),
        np.zeros(1, dtype=np.int32),
        np.arange(16, dtype=np.int32).reshape(1, -1),
    )


def random_draw(rng: np.random.Generator, token: int) -> Draw:
    """Any mix of settings; most of them need less than a row."""
    kinds = [0, 1, 2, 20, MOST_KEPT - 1, MOST_KEPT, MOST_KEPT + 1, VOCABULARY, 100_000]
    rare, biased = rng.random(2) < 0.1
    return Draw(
        token=token,
        seed=int(rng.integers(2**63)),
        counter=int(rng.integers(2**20)),
        temperature=float(rng.choice([0.0, 0.0, 1e-20, 0.3, 1.0, 5.0])),
        top_k=int(rng.choice(kinds)),
        top_p=float(rng.choice([1.0, 0.9, 0.3, 0.0])),
        min_p=float(rng.choice([0.0, 0.0, 0.1, 1.0])),
        repetition_penalty=1.3 if rare else 1.0,
        history_output=[1, 2, 3] if rare else [],
        bias_ids=[5] if biased else [],
        bias_values=[3.0] if biased else [],
        banned=[int(rng.integers(VOCABULARY))] if rng.random() < 0.1 else [],
        top=2 if rng.random() < 0.1 else None,
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("activations", ["int8", "int8x2", "fp32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_draws_answer_as_from_stored_logits(
    tmp_path: Path, family: str, activations: str, threads: int
) -> None:
    capped = {"override": {"gemma3.final_logit_softcapping": 2.0}} if family == "gemma3" else {}
    program, weights = open_tiny(tmp_path, family, vocabulary=VOCABULARY, **capped)

    def with_twins(rows: NDArray[np.uint8]) -> None:
        rows[351:] = rows[350::-1][: len(rows) - 351]  # every logit twice, far apart

    changed = Changed(weights, {head_name(program): with_twins})
    model = loaded(program, changed, activations=activations, threads=threads)
    rng = np.random.default_rng(threads)
    batch = one_sequence(rng.integers(0, VOCABULARY, ROWS).tolist())
    draws = [random_draw(rng, int(token)) for token in rng.integers(0, ROWS, 400)]
    scores = [Score(int(token), 3, top=1) for token in rng.integers(0, ROWS, 5)]
    logits = model.logits(batch, range(ROWS))
    assert np.array_equal(logits[:, 340], logits[:, 361])
    expected = NativeSampler(VOCABULARY).draw_and_score(logits, range(ROWS), draws, scores)
    for _ in range(2):  # the second time on top of what the first has left behind
        output = model.step(batch, draws, scores)
        output.native_seconds = 0.0
        assert repr(output) == repr(expected)


def test_rows_that_are_no_numbers_fail_alone(tmp_path: Path) -> None:
    program, weights = open_tiny(tmp_path, "qwen2", vocabulary=VOCABULARY)

    def with_nan(rows: NDArray[np.uint8]) -> None:
        rows[9, :2] = np.array([np.nan], dtype=np.float16).view(np.uint8)

    model = loaded(program, Changed(weights, {"token_embd.weight": with_nan}), threads=2)
    batch = one_sequence([4, 5, 9])
    settings = {"seed": 1, "counter": 0}
    draws = [
        Draw(token=token, temperature=temperature, top_k=top_k, **settings)  # type: ignore[arg-type]
        for token in (1, 2)
        for temperature, top_k in ((0.0, 0), (1.0, 5), (1.0, 0))
    ]
    output = model.step(batch, draws, [])
    assert min(output.drawn[:3]) >= 0
    assert output.drawn[3:] == [-1, -1, -1]
    assert set(output.draw_errors) == {3, 4, 5}
    clean = loaded(program, weights, threads=1).step(batch, draws[:3], [])
    assert clean.drawn == output.drawn[:3]


def test_only_rows_that_are_needed_take_memory(tmp_path: Path) -> None:
    vocabulary = 40_000
    model = loaded(*open_tiny(tmp_path, "llama", vocabulary=vocabulary), threads=1)
    batch = one_sequence(range(64))

    def grown_bytes(**settings: object) -> int:
        draws = [Draw(token, 1, 0, **settings) for token in range(64)]  # type: ignore[arg-type]
        model.elastic().discard_workspace()
        before = resident_bytes()
        model.step(batch, draws, [])
        return resident_bytes() - before

    grown_bytes(temperature=0.0)  # what a first step takes for good
    row_bytes = vocabulary * 4
    without = max(grown_bytes(temperature=0.0), grown_bytes(top_k=MOST_KEPT))
    assert grown_bytes(top_k=MOST_KEPT + 1) - without > 48 * row_bytes
