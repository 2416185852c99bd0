"""A float16 model, made from the default one's dequantised weights; about 20 seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from half import make_half_gguf
from octavo.compute.batch import Batch, StepModel
from octavo.compute.kernels.cpu.model import CpuModel
from octavo.compute.kernels.reference.model import ReferenceModel
from octavo.compute.load.source import GgufWeights
from octavo.compute.models.registry import load_program
from octavo.core.gguf import GgufFile
from octavo.core.gguf_types import GgmlType
from octavo.text.tokenizer import Tokenizer

TOKENS = 48
TEXT = (
    "Paper money was first used in China more than a thousand years ago, when merchants left "
    "their heavy coins with a trusted agent and carried his written receipts instead. The state "
    "soon took over the business and printed notes of its own."
)


@pytest.fixture(scope="module")
def half_path(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_half_gguf(smollm2_path, tmp_path_factory.mktemp("half") / "smollm2-f16.gguf")


@pytest.fixture(scope="module")
def ids(smollm2_path: Path) -> np.ndarray:
    with GgufFile.open(smollm2_path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    encoded = tokenizer.encode(TEXT, add_special=False, parse_special=False)[:TOKENS]
    return np.array(encoded, dtype=np.int32)


def _logits(model: StepModel, ids: np.ndarray) -> np.ndarray:
    model.allocate_kv(4, 16)
    table = np.arange(4, dtype=np.int32).reshape(1, 4)
    starts, past = np.array([0, len(ids)], np.int32), np.zeros(1, np.int32)
    logits = model.logits(Batch(ids, starts, past, table), range(len(ids)))
    model.close()
    return logits


def _numpy(path: Path) -> ReferenceModel:
    with GgufFile.open(path) as file:
        return ReferenceModel(load_program(file), GgufWeights(file))


def _cpu(path: Path, activations: str) -> CpuModel:
    with GgufFile.open(path) as file:
        return CpuModel(load_program(file), GgufWeights(file), activations=activations)


def test_the_file_holds_16_bit_matrices(half_path: Path, smollm2_path: Path) -> None:
    with GgufFile.open(half_path) as half, GgufFile.open(smollm2_path) as whole:
        assert load_program(half) == load_program(whole)
        kinds = {info.ggml_type for info in half.tensors.values() if len(info.shape) == 2}
        assert kinds == {GgmlType.F16}


@pytest.mark.parametrize("activations", ["int8", "fp32"])
def test_native_kernels_agree_with_numpy(
    half_path: Path, ids: np.ndarray, activations: str
) -> None:
    expected = _logits(_numpy(half_path), ids)
    found = _logits(_cpu(half_path, activations), ids)
    # 16-bit weights are never multiplied by quantised activations, whatever the setting.
    np.testing.assert_allclose(found, expected, atol=0.05)
    assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1))


def test_rounding_to_16_bits_changes_little(
    half_path: Path, smollm2_path: Path, ids: np.ndarray
) -> None:
    half, whole = _logits(_numpy(half_path), ids), _logits(_numpy(smollm2_path), ids)
    assert not np.array_equal(half, whole)
    np.testing.assert_allclose(half, whole, atol=0.2)
