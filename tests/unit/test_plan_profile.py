"""Profiles: files, fitting costs to steps, measuring steps."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest

from octavo.core.errors import EngineError, InvalidRequest, SettingsError
from octavo.plan.calibrate import Calibration, Load, standard_loads
from octavo.plan.fit import StepSample, fit_cost
from octavo.plan.profile import EngineFacts, Profile, default_profile, parse_profile, read_profile
from octavo.plan.setup import CacheSize
from octavo.plan.shape import shape_of
from octavo.plan.simulator import SimulatedClock
from octavo.plan.statistics import percentile, spread
from octavo.schedule.cost import FEATURES, CostModel, CostProfile, StepShape
from octavo.schedule.cost import read_profile as read_cost
from octavo.schedule.plan import RowPlan, RowResult, StepPlan, StepResult

COST = CostProfile(
    constant=0.004, token=0.001, decode_row=0.002, past_token=2e-6, chunk_square=1e-6
)
PROFILE = Profile(
    dataclasses.replace(COST, error=0.05, machine="a machine", model="a model"),
    p90_error=0.1,
    steps=40,
    engine=EngineFacts(2, 4096, 30, 768, 1 << 28),
    between_seconds=0.003,
)
SIZE = CacheSize(pages=512, page_tokens=16, context_tokens=4096)


def shapes(count: int) -> list[StepShape]:
    draw = random.Random(7)
    found = []
    for _ in range(count):
        shape = StepShape()
        shape.add_decodes(draw.randrange(20), draw.randrange(4000))
        shape.add_chunk(draw.randrange(1, 500), draw.randrange(2000))
        found.append(shape)
    return found


class TestFit:
    def test_an_exact_cost_is_found_again(self) -> None:
        model = CostModel(COST)
        fit = fit_cost([StepSample(shape, model.predict(shape)) for shape in shapes(30)])
        for name in FEATURES:
            assert getattr(fit.cost, name) == pytest.approx(getattr(COST, name), rel=1e-6)
        assert fit.p90_error < 1e-9

    def test_a_few_steps_that_were_disturbed_hardly_count(self) -> None:
        model = CostModel(COST)
        seconds = [model.predict(shape) for shape in shapes(60)]
        for disturbed in range(0, 60, 12):
            seconds[disturbed] *= 5
        fit = fit_cost(list(map(StepSample, shapes(60), seconds)))
        honest = [shape for place, shape in enumerate(shapes(60)) if place % 12]
        for shape in honest:
            assert CostModel(fit.cost).predict(shape) == pytest.approx(
                model.predict(shape), rel=0.05
            )

    def test_no_coefficient_is_negative(self) -> None:
        # Times that fall as pasts grow: an unbounded fit would make past_token negative.
        samples = [
            StepSample(shape, 0.01 + shape.tokens * 0.001 / (1 + shape.past_tokens / 1e6))
            for shape in shapes(30)
        ]
        fit = fit_cost(samples)
        assert fit.cost.past_token == 0
        assert min(getattr(fit.cost, name) for name in FEATURES) >= 0

    def test_samples_that_say_too_little_are_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="too few"):
            fit_cost([StepSample(StepShape(1, 1, 1, 1), 0.1)] * 4)
        with pytest.raises(InvalidRequest, match="alike"):
            fit_cost([StepSample(StepShape(1, 1, 1, 1), 0.1)] * 40)


class TestFile:
    def test_a_profile_is_read_back_here_and_by_the_scheduler(self, tmp_path: Path) -> None:
        path = tmp_path / "profile.json"
        path.write_text(PROFILE.to_json())
        assert read_profile(path) == PROFILE
        assert read_cost(path) == PROFILE.cost

    def test_the_default_profile_is_whole(self) -> None:
        profile = default_profile()
        assert "SmolLM2-135M" in profile.cost.model
        assert CostModel(profile.cost).predict(StepShape(1, 1, 100, 1)) > 0

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"format": "other"}, ""),
            ({"token": -1}, "token"),
            ({"token": "1"}, "token"),
            ({"past_token": True}, "past_token"),
            ({"past_token": 10**400}, "past_token"),
            ({"decode_row": 1e308}, "decode_row"),
            ({"chunk_square": float("nan")}, "chunk_square"),
            ({"constant": 0, "token": 0}, "constant"),
            ({"steps": 0}, "steps"),
            ({"machine": None}, "machine"),
            ({"engine": []}, "engine"),
            ({"engine": {"threads": 2}}, "engine.context_tokens"),
        ],
    )
    def test_what_is_wrong_is_named(self, change: dict[str, object], field: str) -> None:
        content = {**json.loads(PROFILE.to_json()), **change}
        with pytest.raises(SettingsError) as raised:
            parse_profile(json.dumps(content).encode(), "file")
        assert raised.value.field == (f"file: {field}" if field else "file")

    @pytest.mark.parametrize("wrong", [-1, 1e308, float("nan"), 10**400, None, "x", 0])
    def test_a_cost_that_no_step_has_is_refused(self, tmp_path: Path, wrong: object) -> None:
        path = tmp_path / "profile.json"
        path.write_text(
            json.dumps({**json.loads(PROFILE.to_json()), "token": wrong, "constant": 0})
        )
        with pytest.raises(SettingsError, match="is no cost profile"):
            read_cost(path)

    def test_other_files_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="cannot be read"):
            read_profile(tmp_path / "none.json")
        (tmp_path / "large.json").write_bytes(b" " * 100_000)
        with pytest.raises(SettingsError, match="larger"):
            read_profile(tmp_path / "large.json")
        with pytest.raises(SettingsError, match="not JSON"):
            parse_profile(b"\xff", "file")


class TestShape:
    def test_a_plan_is_measured_row_by_row(self) -> None:
        plan = StepPlan(
            0,
            (
                RowPlan(0, "decode", 9, (1,), 0, (), True),  # type: ignore[arg-type]
                RowPlan(1, "chunk", 4, (1, 2, 3), 0, (), False),  # type: ignore[arg-type]
            ),
        )
        shape = shape_of(plan)
        assert (shape.tokens, shape.decode_rows) == (4, 1)
        assert (shape.past_tokens, shape.chunk_square) == (9 + 3 * 4, 1 + 9)


class TestCalibration:
    def calibration(self, executor: object, clock: SimulatedClock) -> Calibration:
        return Calibration(
            executor,  # type: ignore[arg-type]
            SIZE,
            max_rows=16,
            token_budget=512,
            vocabulary_size=100,
            clock=clock,
        )

    def test_the_cost_of_an_executor_is_found_again(self) -> None:
        clock = SimulatedClock()
        loads = standard_loads(SIZE, max_rows=16)
        done: list[int] = []
        samples = self.calibration(NamelessExecutor(clock), clock).run(loads, done.append)
        assert done == list(range(1, len(loads) + 1))
        assert len(samples) == sum(load.steps for load in loads)
        fit = fit_cost(samples)
        for name in FEATURES:
            assert getattr(fit.cost, name) == pytest.approx(getattr(COST, name), rel=1e-6)

    def test_loads_fit_the_engine(self) -> None:
        small = CacheSize(pages=32, page_tokens=16, context_tokens=256)
        loads = standard_loads(small, max_rows=4)
        assert loads
        assert all(load.rows <= 4 and load.tokens <= 256 for load in loads)

    def test_a_failed_step_ends_it(self) -> None:
        clock = SimulatedClock()

        class Failing:
            def execute(self, plan: StepPlan) -> StepResult:
                rows = tuple(
                    RowResult(row.row, row.request_id, error="broken") for row in plan.rows
                )
                return StepResult(plan.number, rows, 0.1)

        with pytest.raises(EngineError, match="broken"):
            self.calibration(Failing(), clock).run([Load(1, 8, 1)], lambda done: None)


class NamelessExecutor:
    """Takes the time of COST and answers 1, whatever the requests are called."""

    def __init__(self, clock: SimulatedClock):
        self.clock = clock
        self.model = CostModel(COST)

    def execute(self, plan: StepPlan) -> StepResult:
        seconds = self.model.predict(shape_of(plan))
        self.clock.seconds += seconds
        rows = [RowResult(row.row, row.request_id, (1,) * row.wants_token) for row in plan.rows]
        return StepResult(plan.number, tuple(rows), seconds)


class TestPercentiles:
    def test_nearest_rank(self) -> None:
        values = list(range(1, 101))
        assert [percentile(values, share) for share in (1, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
        assert percentile([3.0], 50) == 3
        assert percentile([], 50) == 0
        assert spread([2.0, 1.0]).p50 == 1
        assert spread([]).p99 is None
