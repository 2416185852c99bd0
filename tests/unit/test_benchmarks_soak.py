"""The soak of the memory, for two seconds: it works, and finds nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks import soak_memory

from tiny import make_tiny_gguf


def test_soak_finds_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
    model = make_tiny_gguf(tmp_path / "m.gguf", context=1024)
    report = tmp_path / "soak.json"
    options = ["--seconds=2", f"--model={model}", "--prefix-tokens=128", f"--json={report}"]
    monkeypatch.setattr(sys, "argv", ["soak", *options, "--set", "compute.threads=1"])
    assert soak_memory.main() == 0
    found = json.loads(report.read_text())
    assert found["problems"] == []
    assert found["steps"] > 0
    assert "problem" not in capsys.readouterr().out


def test_growth_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    load = soak_memory.Load.__new__(soak_memory.Load)
    load.soak = soak_memory.Soak(
        resident_bytes=[10 << 20] * 4 + [100 << 20] * 8 + [200 << 20] * 4,
        descriptors=[5, 9, 9, 9, 9, 9, 9, 19],
    )
    load._judge_growth()
    memory, descriptors = load.soak.problems
    assert memory == f"{100 << 20} bytes of memory more than at the beginning"
    assert descriptors.endswith("descriptors more than at the beginning")
