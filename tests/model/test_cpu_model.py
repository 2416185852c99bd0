"""SmolLM2 on the CPU back end against the numpy reference (half a minute)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.compute.batch import Batch, Draw, StepModel
from octavo.compute.kernels.cpu.model import CpuModel
from octavo.compute.kernels.reference.model import ReferenceModel
from octavo.compute.load.source import GgufWeights
from octavo.compute.models.registry import load_program
from octavo.core.errors import SettingsError
from octavo.core.gguf import GgufFile
from octavo.text.tokenizer import Tokenizer

TEXT = (
    "The river rises in the hills above the old town, passes three mills that have not turned "
    "since the war, and reaches the sea where the fishermen of the north keep their boats."
)


@pytest.fixture(scope="module")
def file(smollm2_path: Path) -> GgufFile:
    return GgufFile.open(smollm2_path)


@pytest.fixture(scope="module")
def tokens(file: GgufFile) -> list[int]:
    tokenizer = Tokenizer.from_metadata(file.metadata)
    return tokenizer.encode(TEXT, add_special=True, parse_special=False)


@pytest.fixture(scope="module")
def reference_logits(file: GgufFile, tokens: list[int]) -> NDArray[np.float64]:
    model = ReferenceModel(load_program(file), GgufWeights(file), kv_format="fp32")
    logits = all_logits(model, tokens).astype(np.float64)
    model.close()
    return logits


def load(file: GgufFile, **settings: object) -> CpuModel:
    return CpuModel(load_program(file), GgufWeights(file), max_batch_tokens=128, **settings)  # type: ignore[arg-type]


def batch_of(tokens: list[int], past: int = 0) -> Batch:
    return Batch(
        np.asarray(tokens, dtype=np.int32),
        np.asarray([0, len(tokens)], dtype=np.int32),
        np.asarray([past], dtype=np.int32),
        np.arange(8, dtype=np.int32).reshape(1, 8),
    )


def all_logits(model: StepModel, tokens: list[int]) -> NDArray[np.float32]:
    model.allocate_kv(8, 16)
    return model.logits(batch_of(tokens), range(len(tokens)))


def mean_kl(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """Mean KL(softmax p || softmax q) in nats."""

    def log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    a, b = log_softmax(p), log_softmax(q)
    return float((np.exp(a) * (a - b)).sum(axis=1).mean())


@pytest.mark.parametrize(
    ("activations", "kv_format", "kl"),
    [("fp32", "fp32", 1e-8), ("int8x2", "fp16", 5e-6), ("int8", "fp16", 6e-3)],
)
def test_logits_follow_the_reference(
    file: GgufFile,
    tokens: list[int],
    reference_logits: NDArray[np.float64],
    activations: str,
    kv_format: str,
    kl: float,
) -> None:
    model = load(file, activations=activations, kv_format=kv_format)
    logits = all_logits(model, tokens).astype(np.float64)
    assert mean_kl(reference_logits, logits) < kl
    agreement = (logits.argmax(axis=1) == reference_logits.argmax(axis=1)).mean()
    assert agreement >= (0.9 if activations == "int8" else 1.0)
    if activations == "fp32":
        np.testing.assert_allclose(logits, reference_logits, rtol=0, atol=2e-3)


def test_tiers_agree_by_bits(file: GgufFile, tokens: list[int]) -> None:
    results = []
    for tier in ("scalar", "avx2", "avx512-vnni"):
        try:
            model = load(file, tier=tier)
        except SettingsError:
            continue
        results.append(all_logits(model, tokens[:6]).view(np.uint32))
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_greedy_answer(file: GgufFile) -> None:
    tokenizer = Tokenizer.from_metadata(file.metadata)
    model = load(file)
    model.allocate_kv(8, 16)
    new = tokenizer.encode("The capital of France is", add_special=True, parse_special=False)
    answer: list[int] = []
    past = 0
    for counter in range(8):
        draw = Draw(token=len(new) - 1, seed=0, counter=counter, temperature=0.0)
        output = model.step(batch_of(new, past), [draw], [])
        past += len(new)
        new = output.drawn
        answer += new
    assert tokenizer.decode(answer, skip_special=True).startswith(" Paris.")
