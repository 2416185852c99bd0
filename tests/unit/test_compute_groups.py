"""A cache in groups: layers with a window never look at what they have no pages for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.compute.batch import Batch, StepModel
from octavo.compute.kernels.cpu.model import CpuModel
from octavo.compute.kernels.reference.model import ReferenceModel
from octavo.compute.load.source import GgufWeights
from octavo.compute.models.registry import load_program
from octavo.core.cache_groups import CacheGroups
from octavo.core.gguf import GgufFile
from tiny import make_tiny_gguf

PAGE_TOKENS = 16
TOKENS = np.random.default_rng(0).integers(0, 320, 150, dtype=np.int32)
CHUNKS = (0, 40, 41, 103, 150)


@pytest.fixture(params=["cpu", "reference"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> StepModel:
    """Six layers, the last of which sees everything and the others 24 tokens."""
    file = GgufFile.open(make_tiny_gguf(tmp_path / "m.gguf", "gemma3", quant="mixed"))
    parts = load_program(file), GgufWeights(file)
    if request.param == "cpu":
        return CpuModel(*parts, threads=2, max_batch_tokens=256)
    return ReferenceModel(*parts)


def logits(model: StepModel, table: NDArray[np.int32], start: int, end: int) -> NDArray[np.uint32]:
    batch = Batch(
        TOKENS[start:end],
        np.array([0, end - start], np.int32),
        np.array([start], np.int32),
        table.reshape(1, -1),
    )
    return model.logits(batch, range(end - start)).view(np.uint32)


def windows_at(table: NDArray[np.int32], past: int) -> NDArray[np.int32]:
    """The table without what no layer with a window sees from position `past` on."""
    left = table.copy()
    left[: max(past + 1 - 24, 0) // PAGE_TOKENS, 1:] = -1
    return left


def test_groups_give_the_same_bits_without_what_has_left_the_window(model: StepModel) -> None:
    groups = model.program.cache_groups()
    assert (groups.count, groups.layers, groups.window_tokens) == (6, 1, 24)
    model.allocate_kv(10, PAGE_TOKENS)
    table = np.arange(10, dtype=np.int32)
    expected = [logits(model, table, start, end) for start, end in pairwise(CHUNKS)]
    whole_bytes = model.kv_pages().nbytes
    model.allocate_kv(60, PAGE_TOKENS, groups)
    assert model.kv_pages().nbytes == whole_bytes
    pages = model.kv_pages()
    grouped = np.random.default_rng(1).permutation(60).astype(np.int32).reshape(10, 6)
    for (start, end), known in zip(pairwise(CHUNKS), expected, strict=True):
        part = windows_at(grouped, start)
        # What is no page of the table may hold anything.
        pages[np.setdiff1d(grouped[: -(-start // PAGE_TOKENS)], part)] = 255
        assert np.array_equal(logits(model, part, start, end), known)


@pytest.mark.parametrize(("block", "group"), [(0, 0), (1, 3), (2, 5)])
def test_a_page_that_is_needed_must_be_there(model: StepModel, block: int, group: int) -> None:
    model.allocate_kv(60, PAGE_TOKENS, model.program.cache_groups())
    grouped = np.arange(60, dtype=np.int32).reshape(10, 6)
    logits(model, grouped, 0, 40)
    grouped[block, group] = -1
    with pytest.raises(ValueError, match="page"):
        logits(model, grouped, 40, 41)
    with pytest.raises(ValueError, match="page table"):
        logits(model, grouped[:2], 40, 41)


@pytest.mark.parametrize(
    ("places", "window_tokens", "message"),
    [
        (((0, 0), (1, 0)), 24, "every layer has a place"),
        (((0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0)), 24, "sees more than the window"),
        (((5, 0), (1, 0), (2, 0), (3, 0), (4, 0), (0, 0)), 23, "sees more than the window"),
        (((6, 0), (1, 0), (2, 0), (3, 0), (4, 0), (0, 0)), 24, "out of range"),
    ],
)
def test_groups_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, places: tuple[tuple[int, int], ...], window_tokens: int, message: str
) -> None:
    file = GgufFile.open(make_tiny_gguf(tmp_path / "m.gguf", "gemma3"))
    model = CpuModel(load_program(file), GgufWeights(file), threads=1)
    with pytest.raises(ValueError, match=message):
        model.allocate_kv(60, PAGE_TOKENS, CacheGroups(1, places, window_tokens))
