"""Agreement with transformers on real text, all three models; about eight minutes on two cores.

`benchmarks/accuracy.py` prints the same figures as a table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle import (
    Agreement,
    Oracle,
    compare,
    consult,
    open_cpu,
    open_numpy,
    sample_texts,
)

MODES = ("fp32", "int8x2", "int8")
NUMPY_TOKENS = 576
"""Enough that gemma3's window of 512 hides something."""

SCALAR_TOKENS = 128
CACHE_TOKENS = 1024
CACHE_BOUNDS = {"smollm2": (0.955, 6e-3), "gemma3": (0.94, 1.2e-2), "qwen": (0.88, 4e-2)}
"""Top-1 and mean KL with an int8 cache; Qwen's K has channels far larger than the others."""


@pytest.fixture(scope="module", params=["smollm2", "gemma3", "qwen"])
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(f"{request.param}_path")
    return found


@pytest.fixture(scope="module")
def oracle(path: Path, data_dir: Path) -> Oracle:
    return consult(path, sample_texts(path, data_dir))


@pytest.fixture(scope="module")
def table(oracle: Oracle, path: Path) -> dict[tuple[str, str], Agreement]:
    """Agreement by activations and text."""
    models = {mode: open_cpu(path, mode) for mode in MODES}
    found = {
        (mode, text): agreement
        for text in oracle.texts
        for mode, agreement in compare(oracle, models, text).items()
    }
    for model in models.values():
        model.close()
    return found


@pytest.mark.parametrize(("text", "tokens"), [("english", 2048), ("chinese", 1024)])
@pytest.mark.parametrize("mode", ["fp32", "int8x2"])
def test_exact_activations(
    table: dict[tuple[str, str], Agreement], mode: str, text: str, tokens: int
) -> None:
    found = table[mode, text]
    assert found.tokens == tokens
    assert found.top1 >= 0.995
    assert -1e-6 <= found.mean_kl <= 1e-4


@pytest.mark.parametrize(("text", "top1"), [("english", 0.955), ("chinese", 0.93)])
def test_default_activations(
    table: dict[tuple[str, str], Agreement], text: str, top1: float
) -> None:
    found = table["int8", text]
    assert found.top1 >= top1
    assert -1e-6 <= found.mean_kl <= 6e-3


def test_int8_cache(request: pytest.FixtureRequest, oracle: Oracle, path: Path) -> None:
    top1, mean_kl = CACHE_BOUNDS[request.node.callspec.params["path"]]
    model = open_cpu(path, "int8x2", kv_format="int8")
    found = compare(oracle, {"int8": model}, "english", CACHE_TOKENS)["int8"]
    model.close()
    assert found.tokens == CACHE_TOKENS
    assert found.top1 >= top1
    # Above what fp16 leaves: the codes were really read.
    assert 1e-4 <= found.mean_kl <= mean_kl


def test_quantised_activations_differ_from_exact_ones(
    table: dict[tuple[str, str], Agreement],
) -> None:
    for text in ("english", "chinese"):
        assert table["int8", text].mean_kl > table["int8x2", text].mean_kl


def test_numpy_interpreter(oracle: Oracle, path: Path) -> None:
    found = compare(oracle, {"numpy": open_numpy(path)}, "english", NUMPY_TOKENS)["numpy"]
    assert found.tokens == NUMPY_TOKENS
    assert found.top1 >= 0.995
    assert -1e-6 <= found.mean_kl <= 1e-4


def test_scalar_tier(oracle: Oracle, path: Path, smollm2_path: Path) -> None:
    if path != smollm2_path:
        pytest.skip("the scalar tier is slow; one model is enough")
    model = open_cpu(path, "int8x2", tier="scalar")
    found = compare(oracle, {"scalar": model}, "english", SCALAR_TOKENS)["scalar"]
    assert found.tokens == SCALAR_TOKENS
    assert found.top1 >= 0.995
    assert -1e-6 <= found.mean_kl <= 1e-4
