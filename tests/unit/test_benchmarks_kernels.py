"""The kernel benchmark: limits, shares, and that every case of a small machine runs."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from benchmarks import busy_frontend
from benchmarks.kernels import attentions, limits, linears, others
from benchmarks.kernels.cases import Case, Work, measure
from benchmarks.kernels.limits import Limits
from benchmarks.kernels.run import largest_cache_bytes

from octavo.compute.kernels.cpu import _native
from octavo.core.gguf_types import GgmlType, row_bytes
from tiny import make_tiny_gguf


def test_a_limit_below_half_of_its_reference_is_named() -> None:
    expected = limits.reference("avx2", 2)
    assert expected is not None
    found = Limits(expected.read * 0.4, expected.fma * 0.6, expected.byte_products, 1e6)
    (text,) = limits.shortfalls(found, expected)
    assert text.startswith("read: 10.8 GB/s is 40% of the reference")
    assert limits.shortfalls(found, limits.reference("scalar", 2)) == []


def test_more_cores_add_arithmetic_but_no_memory() -> None:
    two, four = limits.reference("avx512-vnni", 2), limits.reference("avx512-vnni", 4)
    assert two is not None
    assert four is not None
    assert four.read == two.read
    assert four.byte_products == 2 * two.byte_products


def test_of_two_measurements_the_better_counts() -> None:
    assert Limits(1, 5, 2, 9).or_better(Limits(3, 4, 2, 8)) == Limits(3, 5, 2, 9)


def test_the_slower_of_reading_and_computing_bounds_a_call() -> None:
    machine = Limits(read=10, fma=100, byte_products=200, nibble_products=400)
    assert Work(20e9, 100e9, "fma").seconds(machine) == (2.0, "read")
    assert Work(20e9, 800e9, "byte_products").seconds(machine) == (4.0, "byte_products")


def test_a_share_is_the_least_time_over_the_time_taken() -> None:
    taken = [Limits(10, 100, 200, 400), Limits(8, 120, 200, 400)]
    calls: list[int] = []

    def run(count: int) -> list[float]:
        calls.append(count)
        return [0.004] * count

    case = Case("group", "name", Work(20e6, 0.0, "fma"), 3, run, aim=0.8)
    result = measure(case, iter(taken).__next__, 0.0)
    assert result.limits == Limits(10, 120, 200, 400)
    assert result.share == pytest.approx(0.5)
    assert result.rate == pytest.approx(5.0)
    assert all(count % 3 == 0 for count in calls)
    assert len(calls) == 4


@pytest.mark.parametrize("kind", limits.KINDS)
def test_every_limit_can_be_measured(kind: str) -> None:
    for tier in ("scalar", _native.tier("")):
        assert _native.LimitMeter(tier, 2).measure(kind, 0.001) > 0


def test_bad_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="threads"):
        _native.LimitMeter("", 0)
    meter = _native.LimitMeter("", 1)
    with pytest.raises(ValueError, match="unknown limit"):
        meter.measure("luck", 0.01)
    with pytest.raises(ValueError, match="seconds"):
        meter.measure("fma", 0.0)
    with pytest.raises(ValueError, match="cannot be packed"):
        _native.LinearTimer("", 1, np.zeros(10, np.uint8), int(GgmlType.Q8_0), 32, 32, 1)


@pytest.mark.parametrize("shape", [shape for shape in linears.SHAPES if shape.channels < 1000])
def test_random_weights_are_whole_and_finite(shape: linears.Shape) -> None:
    rows = linears.random_rows(shape, np.random.default_rng(0))
    assert len(rows) == shape.channels * row_bytes(shape.stored, shape.width)
    packed = _native.PackedMatrix(rows, int(shape.stored), shape.channels, shape.width)
    x, out = np.ones((1, shape.width), np.float32), np.empty((1, shape.channels), np.float32)
    _native.linear("", 1, [packed], "int8", x, [None], [out])
    assert np.isfinite(out).all()
    assert np.ptp(out) > 0


def test_linear_cases_run(monkeypatch: pytest.MonkeyPatch) -> None:
    small = linears.Shape("model", "q", 64, 256, GgmlType.Q4_K)
    monkeypatch.setattr(linears, "SHAPES", (small,))
    cases = list(linears.cases("", 2, cold_bytes=100_000, rows=(1, 64)))
    assert [case.aim for case in cases] == [None, 0.5]
    assert cases[0].rotation * len(linears.random_rows(small, np.random.default_rng(0))) >= 100_000
    assert all(len(case.run(4)) == 4 for case in cases)


@pytest.mark.parametrize("kv_format", attentions.FORMATS)
def test_attention_caches_hold_what_they_say(kv_format: str) -> None:
    shape = attentions.Shape(2, 3, 32, None)
    cache = attentions.Cache(shape, kv_format, layers=2, sequences=2, tokens=96)
    assert len(cache.bytes) == 2 * 2 * 96 * cache.token_bytes
    assert len(cache.time("", 2, 1, 3)) == 3
    assert len(cache.time("", 2, 40, 1)) == 1


def test_other_cases_run() -> None:
    cases = list(others.cases("", 2))
    assert len(cases) == 11
    assert all(min(case.run(1)) > 0 for case in cases)


def test_the_largest_cache_is_read_from_the_system(tmp_path: Path) -> None:
    for name, size in (("index0", "32K"), ("index3", "32768K")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(size + "\n")
    assert largest_cache_bytes(tmp_path) == 32 << 20
    assert largest_cache_bytes(tmp_path / "index9") == 32 << 20


def test_a_busy_frontend_is_started_and_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_tiny_gguf(tmp_path / "m.gguf", family="llama", quant="mixed", context=512)
    figures = tmp_path / "figures.json"
    arguments = [str(model), "--steps", "3", "--repeats", "1", "--streams", "2"]
    assert busy_frontend.main([*arguments, "--json", str(figures)]) == 0
    assert "2 streams" in capsys.readouterr().out
    found = json.loads(figures.read_text())
    assert found["quiet_step_seconds"] > 0
    assert found["growth"] == found["busy_step_seconds"] / found["quiet_step_seconds"] - 1
    assert multiprocessing.active_children() == []
