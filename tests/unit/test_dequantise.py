"""Every stored format against the gguf package, by bits."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.compute.load.source import GgufWeights
from octavo.compute.quant.dequantise import dequantise, dequantise_rows
from octavo.core.gguf import GgufFile
from octavo.core.gguf_types import BLOCK_SIZES, GgmlType, row_bytes


def _reference(data: np.ndarray, form: GgmlType, shape: tuple[int, ...]) -> np.ndarray:
    kind = gguf.GGMLQuantizationType(int(form))
    stored = data.reshape(*shape[:-1], row_bytes(form, shape[-1]))
    if form is GgmlType.F32:
        return stored.view(np.float32)
    if form is GgmlType.F16:
        return stored.view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(stored, kind)


def _assert_equal_bits(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(found), ~numbers)
    found_bits = np.ascontiguousarray(found).view(np.uint32)
    expected_bits = np.ascontiguousarray(expected).view(np.uint32)
    assert np.array_equal(found_bits[numbers], expected_bits[numbers])


@pytest.mark.parametrize("form", list(GgmlType), ids=lambda form: form.name)
def test_random_bytes_have_the_values_of_the_format(form: GgmlType) -> None:
    shape = (37, 512)
    rng = np.random.default_rng(int(form))
    data = rng.integers(0, 256, 37 * row_bytes(form, 512), dtype=np.uint8)
    _assert_equal_bits(dequantise(data, form, shape), _reference(data, form, shape))


@pytest.mark.parametrize("form", list(GgmlType), ids=lambda form: form.name)
def test_codes_at_their_limits(form: GgmlType) -> None:
    shape = (4, 256)
    width = row_bytes(form, 256)
    data = np.repeat(np.array([0x00, 0x7F, 0x80, 0x33], dtype=np.uint8), width)
    _assert_equal_bits(dequantise(data, form, shape), _reference(data, form, shape))


def test_every_format_has_a_size_that_the_gguf_package_agrees_with() -> None:
    for form in GgmlType:
        expected = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(form))]
        assert (BLOCK_SIZES[form].block_elements, BLOCK_SIZES[form].block_bytes) == expected
        assert gguf.GGMLQuantizationType(int(form)).name == form.name


def test_a_tensor_larger_than_a_chunk_is_whole() -> None:
    shape = (3001, 1024)
    data = np.random.default_rng(3).integers(0, 256, 3001 * 1024 // 32 * 34, dtype=np.uint8)
    expected = _reference(data, GgmlType.Q8_0, shape)
    _assert_equal_bits(dequantise(data, GgmlType.Q8_0, shape), expected)


def test_rows_are_those_of_the_whole() -> None:
    shape = (50, 256)
    data = np.random.default_rng(4).integers(0, 120, 50 * 144, dtype=np.uint8)
    whole = dequantise(data, GgmlType.Q4_K, shape)
    rows = np.array([49, 0, 7, 7])
    _assert_equal_bits(dequantise_rows(data, GgmlType.Q4_K, shape, rows), whole[rows])


def test_bytes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="takes 36 bytes, not 35"):
        dequantise(np.zeros(35, dtype=np.uint8), GgmlType.Q4_0, (2, 32))
    with pytest.raises(ValueError, match="not a multiple"):
        dequantise(np.zeros(36, dtype=np.uint8), GgmlType.Q4_0, (2, 31))


@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path", "qwen_path"])
def test_tensors_of_real_files(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    rng = np.random.default_rng(5)
    checked = set()
    with GgufFile.open(path) as file:
        weights = GgufWeights(file)
        for name in weights.names():
            data, form, shape = weights.raw(name)
            if (form, len(shape)) in checked or (len(shape) == 1 and name.endswith("bias")):
                continue
            checked.add((form, len(shape)))
            if len(shape) == 1:
                _assert_equal_bits(dequantise(data, form, shape), _reference(data, form, shape))
                continue
            rows = rng.integers(0, shape[0], 64)
            stored = data.reshape(shape[0], -1)[rows]
            expected = _reference(stored.reshape(-1), form, (64, shape[1]))
            _assert_equal_bits(dequantise_rows(data, form, shape, rows), expected)
        del data
    assert len(checked) >= 3
