"""Where the first guess of the time of steps comes from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from octavo.core.errors import SettingsError
from octavo.engine.opening import stored_cost
from octavo.schedule.cost import CostProfile

COST = CostProfile(0.004, 0.001, 0.002, 2e-6, 1e-6, error=0.1)
MODEL = Path("somewhere/model-q4.gguf")


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a calibration of the model writes."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    return tmp_path / "profiles" / "model-q4.json"


def test_a_calibration_of_the_model_is_found(stored: Path) -> None:
    assert stored_cost(MODEL, None) is None
    stored.write_text(json.dumps(asdict(COST)))
    assert stored_cost(MODEL, None) == COST


def test_a_damaged_calibration_is_no_reason_not_to_start(
    stored: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored.write_text("{")
    assert stored_cost(MODEL, None) is None
    assert "learned anew" in caplog.text


def test_a_profile_that_was_named_must_be_one(stored: Path, tmp_path: Path) -> None:
    named = tmp_path / "named.json"
    with pytest.raises(SettingsError, match="no cost profile"):
        stored_cost(MODEL, str(named))
    named.write_text(json.dumps(asdict(COST)))
    assert stored_cost(MODEL, str(named)) == COST
