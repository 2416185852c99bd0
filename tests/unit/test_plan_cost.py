"""The scheduler's own cost model over long loads: it learns, and never runs away."""

from __future__ import annotations

import dataclasses
import random

import pytest

from octavo.core.settings import Settings
from octavo.plan.profile import default_profile
from octavo.plan.setup import build_scheduler, plan_cache
from octavo.plan.simulator import SimulatedClock, Simulation
from octavo.plan.traces import TraceRequest
from octavo.schedule.cost import CostModel, CostProfile, StepShape

TRUTH = CostProfile(
    constant=0.006, token=0.001, decode_row=0.0005, past_token=1e-6, chunk_square=5e-7
)


def mixed_shape(draw: random.Random) -> StepShape:
    shape = StepShape()
    rows = draw.randrange(0, 16)
    shape.add_decodes(rows, rows * draw.randrange(50, 1500))
    if draw.random() < 0.3 or not rows:
        shape.add_chunk(draw.randrange(8, 90), draw.randrange(0, 1500))
    return shape


def test_a_model_without_profile_learns_within_some_hundred_noisy_steps() -> None:
    draw = random.Random(3)
    truth, model = CostModel(TRUTH), CostModel()
    for _ in range(600):
        shape = mixed_shape(draw)
        model.observe(shape, truth.predict(shape) * draw.uniform(0.95, 1.05))
    assert model.error < 0.1
    for _ in range(50):
        shape = mixed_shape(draw)
        assert model.predict(shape) == pytest.approx(truth.predict(shape), rel=0.15)


def test_a_load_that_excites_little_does_not_spoil_the_rest() -> None:
    truth, model = CostModel(TRUTH), CostModel(TRUTH)
    draw = random.Random(4)
    for step in range(20_000):
        shape = StepShape()
        shape.add_decodes(1, 100 + step % 300)
        model.observe(shape, truth.predict(shape) * draw.uniform(0.9, 1.1))
    shape = StepShape()
    shape.add_chunk(80, 1000)
    assert model.predict(shape) == pytest.approx(truth.predict(shape), rel=0.3)
    assert model.error < 0.15


def test_a_long_simulation_keeps_its_predictions() -> None:
    """On a machine where equal steps take equal time."""
    profile = default_profile()
    profile = dataclasses.replace(profile, cost=dataclasses.replace(profile.cost, error=0.0))
    clock = SimulatedClock()
    settings = Settings()
    scheduler = build_scheduler(settings, plan_cache(settings, profile), profile.cost, clock)
    draw = random.Random(5)
    arrivals = [number * 2.0 + draw.random() for number in range(250)]
    trace = [TraceRequest(at, draw.randrange(4, 400), draw.randrange(1, 60)) for at in arrivals]
    simulation = Simulation(scheduler, profile.cost, clock, trace)
    simulation.run()
    assert scheduler.cost.error < 0.01
    assert simulation.totals.longest_step_seconds <= 0.1 * 1.001
    learned = dataclasses.asdict(scheduler.cost.profile())
    for name in ("constant", "token", "decode_row", "past_token", "chunk_square"):
        assert learned[name] == pytest.approx(getattr(profile.cost, name), rel=0.15)


def test_the_work_of_all_steps_is_summed_up_whatever_the_fit_makes_of_it() -> None:
    cost = CostModel(TRUTH)
    for _ in range(3):
        shape = StepShape()
        shape.add_decodes(2, 300)
        shape.add_chunk(10, 5)
        cost.observe(shape, 0.5)
    cost.observe(StepShape(tokens=1), -1.0)
    assert cost.observed_seconds == 1.5
    assert cost.work() == {
        "constant": 3,
        "token": 36,
        "decode_row": 6,
        "past_token": 1050,
        "chunk_square": 306,
    }


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-160, 1e9, float("nan"), float("inf")])
def test_times_that_no_step_can_take_are_not_learned(seconds: float) -> None:
    cost = CostModel(CostProfile(0.006, 0.001, 0.0005, 1e-6, 1e-6))
    before = cost.learned()
    cost.observe(StepShape(tokens=8, decode_rows=8, past_tokens=800, chunk_square=8), seconds)
    assert cost.learned() == before
