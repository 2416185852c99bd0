"""The soak of the scheduler, for a second."""

from __future__ import annotations

from random import Random

import pytest

import soak_scheduler
from soak_scheduler import run_round, soak


def test_soak_keeps_every_promise() -> None:
    assert soak(1000, seed=0, first_round=0) >= 1


def test_a_broken_promise_names_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(random: Random, steps: int) -> int:
        if random.random() == Random("3/6").random():
            raise AssertionError("requests were starved")
        return run_round(random, min(steps, 5))

    monkeypatch.setattr(soak_scheduler, "run_round", fail)
    with pytest.raises(AssertionError, match="starved") as failure:
        soak(1000, seed=3, first_round=5)
    assert failure.value.__notes__ == ["again with --seed 3 --first-round 6"]
