"""Knobs of the linear kernels: the same bits with any, the search, the table and its command."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cli.main import group
from octavo.compute.batch import Batch
from octavo.compute.kernels.cpu import _native
from octavo.compute.kernels.cpu.model import CpuModel
from octavo.compute.kernels.cpu.tuner import CANDIDATES, search
from octavo.compute.kernels.cpu.tuning import (
    DEFAULT,
    Knobs,
    read_tuning,
    shape_key,
    tuning_path,
    values,
    write_tuning,
)
from octavo.compute.load.source import GgufWeights
from octavo.compute.models.registry import load_program
from octavo.core.gguf import GgufFile
from octavo.core.gguf_types import BLOCK_SIZES, GgmlType
from tiny import make_tiny_gguf

ANY_KNOBS = st.builds(
    Knobs,
    tile_rows=st.integers(1, 10),
    block_rows=st.integers(1, 48).map(lambda half: 2 * half),
    spread_rows=st.integers(1, 100),
    chunks_per_thread=st.integers(1, 40),
    prefetch_bytes=st.integers(0, 1 << 14),
)


def packed(stored: GgmlType) -> _native.PackedMatrix:
    size = BLOCK_SIZES[stored]
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 120, (80 * 256 // size.block_elements, size.block_bytes))
    return _native.PackedMatrix(blocks.astype(np.uint8).reshape(-1), int(stored), 80, 256)


@settings(deadline=None, max_examples=30)
@given(
    knobs=ANY_KNOBS,
    rows=st.integers(1, 200),
    stored=st.sampled_from(
        [GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q5_0, GgmlType.Q6_K, GgmlType.Q8_0, GgmlType.F16]
    ),
    activations=st.sampled_from(["int8", "int8x2", "fp32"]),
    threads=st.integers(1, 3),
)
def test_no_knob_changes_a_bit(
    knobs: Knobs, rows: int, stored: GgmlType, activations: str, threads: int
) -> None:
    matrix = packed(stored)
    x = np.random.default_rng(rows).standard_normal((rows, 256), dtype=np.float32)
    results = []
    for chosen in (DEFAULT, knobs):
        matrix.set_knobs(*values(chosen))
        out = np.full((rows, 80), np.nan, dtype=np.float32)
        _native.linear("", threads, [matrix], activations, x, [None], [out])
        results.append(out.view(np.uint32))
    assert np.array_equal(*results)


@pytest.mark.parametrize(
    "wrong", [{"tile_rows": 0}, {"block_rows": 98}, {"block_rows": 7}, {"prefetch_bytes": -1}]
)
def test_knobs_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    knobs = replace(DEFAULT, **wrong)
    assert not _native.knobs_are_valid(*values(knobs))
    with pytest.raises(ValueError, match="out of range"):
        packed(GgmlType.Q4_0).set_knobs(*values(knobs))


def test_defaults_and_candidates_are_valid() -> None:
    assert _native.knobs_are_valid(*values(DEFAULT))
    for name, (candidates, _) in CANDIDATES.items():
        for candidate in candidates:
            assert _native.knobs_are_valid(*values(replace(DEFAULT, **{name: candidate})))


def test_the_search_keeps_what_is_clearly_better() -> None:
    def seconds(knobs: Knobs, rows: int) -> float:
        read_ahead = 0.5 if knobs.prefetch_bytes == 512 else 1.0
        chunks = 0.99 if knobs.chunks_per_thread == 2 else 1.0
        return rows * read_ahead * chunks

    tuned = search(seconds)
    assert tuned.knobs == replace(DEFAULT, prefetch_bytes=512)
    assert tuned.gain == pytest.approx(0.5)
    assert search(lambda knobs, rows: 1.0).knobs == DEFAULT


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    path = tuning_path("avx2", 2, folder=tmp_path)
    assert path != tuning_path("avx2", 3, folder=tmp_path)
    assert read_tuning(path) == {}
    table = {shape_key((576, 1536), "Q4_1"): replace(DEFAULT, tile_rows=3)}
    write_tuning(path, table, tier="avx2", threads=2)
    assert read_tuning(path) == table


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"shapes": 3}', '{"shapes": {"a": {"tile_rows": "many"}}}',
     '{"shapes": {"a": {"tile_rows": 0}}}', '{"shapes": {"a": []}}',
     '{"shapes": {"a": {"tile_rows": 1' + "0" * 30 + "}}}",
     '{"shapes": {"a": {"tile_rows": 1e999}}}', pytest.param("[" * 100_000, id="deep")],
)  # fmt: skip
def test_a_damaged_table_counts_as_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(content)
    assert read_tuning(path) == {}


def test_a_model_takes_its_table_and_keeps_its_bits(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", family="llama", quant="mixed", context=64)
    tokens = np.arange(40, dtype=np.int32)
    batch = Batch(
        tokens,
        np.array([0, 40], np.int32),
        np.zeros(1, np.int32),
        np.arange(3, dtype=np.int32).reshape(1, 3),
    )
    results = []
    with GgufFile.open(path) as file:
        knobs = Knobs(2, 10, 3, 1, 64)
        keys = {shape_key(info.shape, info.ggml_type.name): knobs for info in file.tensors.values()}
        for tuning in ({}, keys):
            model = CpuModel(load_program(file), GgufWeights(file), threads=2, tuning=tuning)
            model.allocate_kv(3, 16)
            results.append(model.logits(batch, range(40)).view(np.uint32))
        wrong = dict.fromkeys(keys, replace(knobs, tile_rows=0))
        with pytest.raises(ValueError, match="out of range"):
            CpuModel(load_program(file), GgufWeights(file), threads=1, tuning=wrong)
    assert np.array_equal(*results)


def test_the_command_writes_reads_and_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("octavo.compute.kernels.cpu.tuner.CANDIDATES", {"tile_rows": ((2,), (4,))})
    monkeypatch.setattr("octavo.compute.kernels.cpu.tuner._COLD_BYTES", 1 << 16)
    path = make_tiny_gguf(tmp_path / "m.gguf", family="llama", quant="mixed", context=64)
    arguments = ["tune", "kernels", str(path), "--quiet", "--set", "compute.threads=2"]
    result = CliRunner().invoke(group, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (written,) = (tmp_path / "home" / "tuning").iterdir()
    content = json.loads(written.read_text())
    assert content["threads"] == 2
    assert content["shapes"].keys() == read_tuning(written).keys() != set()
    assert all(knobs.keys() == asdict(DEFAULT).keys() for knobs in content["shapes"].values())
    result = CliRunner().invoke(group, [*arguments, "--reset"], catch_exceptions=False)
    assert result.exit_code == 0
    assert not written.exists()
