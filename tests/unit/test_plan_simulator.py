"""The simulation against numbers worked out by hand, and what it reports."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import CapacityError
from octavo.core.settings import Settings
from octavo.core.settings_load import load_settings
from octavo.plan.profile import EngineFacts, Profile, default_profile, parse_profile
from octavo.plan.records import Outcome, Record, StepTotals
from octavo.plan.report import Report, Targets, format_report, make_report
from octavo.plan.setup import CacheSize, build_scheduler, plan_cache, simulate
from octavo.plan.simulator import SimulatedClock, Simulation, StepNoise
from octavo.plan.traces import TraceRequest, TraceScale, read_trace
from octavo.schedule.cost import CostProfile
from octavo.schedule.counters import SchedulerCounters

# Only tokens cost time: 1 ms each.
COST = CostProfile(constant=0, token=0.001, decode_row=0, past_token=0, chunk_square=0)
PROFILE = Profile(COST, 0.0, 1, EngineFacts(2, 4096, 2, 64, 1 << 20))


def settings(*flags: str) -> Settings:
    return load_settings(environment={}, flags=flags).settings


def simulation(*trace: TraceRequest, size: CacheSize | None = None, **fields: Any) -> Simulation:
    clock = SimulatedClock()
    scheduler = build_scheduler(
        settings("scheduler.token_budget=1024"),
        size or CacheSize(pages=64, page_tokens=16, context_tokens=1024),
        COST,
        clock,
    )
    made = Simulation(scheduler, COST, clock, trace, **fields)
    made.run()
    assert scheduler.audit() == []
    return made


def asked(at: float, prompt: int, output: int, **fields: object) -> TraceRequest:
    return TraceRequest(at, prompt, output, **fields)  # type: ignore[arg-type]


class TestTimes:
    def test_one_request_takes_the_time_of_its_steps(self) -> None:
        (record,) = simulation(asked(0, 10, 4)).records
        assert record.queue_seconds == 0
        assert record.time_to_first_token_seconds == pytest.approx(0.01)
        assert list(record.gap_seconds) == pytest.approx([0.001] * 3)
        assert record.seconds_per_token == pytest.approx(0.001)
        assert record.ended_seconds == pytest.approx(0.013)
        assert (record.answer_tokens, record.outcome) == (4, Outcome.FINISHED)

    def test_what_passes_between_steps_comes_before_each_and_is_none_of_their_time(self) -> None:
        made = simulation(asked(0, 10, 4), between_seconds=0.002)
        (record,) = made.records
        assert record.time_to_first_token_seconds == pytest.approx(0.012)
        assert list(record.gap_seconds) == pytest.approx([0.003] * 3)
        assert made.totals.busy_seconds == pytest.approx(0.013)

    def test_idle_time_is_skipped_and_arrivals_wait_for_the_end_of_a_step(self) -> None:
        made = simulation(asked(0, 10, 1), asked(0.005, 10, 1), asked(1000, 10, 1))
        first, second, late = made.records
        assert first.ended_seconds == pytest.approx(0.01)
        assert second.queue_seconds == pytest.approx(0.005)
        assert second.time_to_first_token_seconds == pytest.approx(0.015)
        assert late.time_to_first_token_seconds == pytest.approx(0.01)
        assert made.totals.busy_seconds == pytest.approx(0.03)

    def test_a_request_without_output_ends_without_a_token(self) -> None:
        (record,) = simulation(asked(0, 10, 0)).records
        assert (record.outcome, record.first_token_seconds) == (Outcome.FINISHED, None)
        assert record.seconds_per_token is None

    def test_steps_vary_as_much_as_the_profile_was_wrong(self) -> None:
        first, again, quiet = StepNoise(0.08), StepNoise(0.08), StepNoise(0.0)
        factors = [first.factor() for _ in range(20_000)]
        assert factors[:100] == [again.factor() for _ in range(100)]
        assert quiet.factor() == 1.0
        assert statistics.mean(factors) == pytest.approx(1.0, abs=0.02)
        assert statistics.median(abs(each - 1) for each in factors) == pytest.approx(0.08, rel=0.1)
        # Least of all is one stretch slower than another.
        assert [statistics.mean(factors[at : at + 20]) for at in range(0, 400, 20)] == (
            pytest.approx([1.0] * 20)
        )


class TestCache:
    def test_equal_blocks_are_computed_once(self) -> None:
        shared = {"block_ids": (1, 2), "block_tokens": 32}
        made = simulation(asked(0, 64, 1, **shared), asked(5, 64, 1, **shared))
        first, second = made.records
        assert (first.cached_tokens, second.cached_tokens) == (0, 48)
        assert second.time_to_first_token_seconds == pytest.approx(0.016)

    def test_prompts_without_blocks_share_nothing(self) -> None:
        made = simulation(asked(0, 64, 1), asked(5, 64, 1))
        assert [record.cached_tokens for record in made.records] == [0, 0]

    def test_a_prompt_that_never_fits_is_unservable(self) -> None:
        size = CacheSize(pages=4, page_tokens=16, context_tokens=64)
        made = simulation(asked(0, 100, 1), asked(0, 10, 1), size=size)
        long, short = made.records
        assert long.outcome is Outcome.UNSERVABLE
        assert "64" in (long.error or "")
        assert short.outcome is Outcome.FINISHED


class TestReport:
    def report(self, *flags: str, trace: list[TraceRequest]) -> Report:
        return simulate(settings(*flags), PROFILE, trace)

    def test_two_runs_are_equal(self) -> None:
        trace = [asked(n * 0.05, 10 + n % 7 * 9, n % 5 + 1) for n in range(60)]
        assert self.report(trace=trace).to_dict() == self.report(trace=trace).to_dict()

    def test_less_memory_means_preemption_and_no_other_answers(self) -> None:
        trace = [asked(0, 30, 60) for _ in range(8)]
        roomy = self.report(trace=trace)
        tight = self.report("memory.kv_bytes=32KB", "memory.block_size=16tok", trace=trace)
        assert roomy.preemptions == 0 < tight.preemptions
        assert tight.utilisation["pages_held_peak"] > 0.9
        for report in (roomy, tight):
            assert report.classes[0].answer_tokens == 8 * 60
            assert report.classes[0].outcomes["finished"] == 8

    def test_attainment_counts_every_offered_request(self) -> None:
        def record(outcome: Outcome, first: float, last: float) -> Record:
            return Record(
                "chat",
                10,
                arrival_seconds=0,
                first_token_seconds=first,
                last_token_seconds=last,
                ended_seconds=10,
                answer_tokens=11,
                outcome=outcome,
            )

        records = [
            record(Outcome.FINISHED, 0.4, 1.4),
            record(Outcome.FINISHED, 0.4, 9.4),
            record(Outcome.FINISHED, 0.6, 1.6),
            record(Outcome.REFUSED, 0.1, 0.2),
        ]
        report = make_report(
            records,
            StepTotals(),
            SchedulerCounters(),
            targets={"chat": Targets(0.5, 0.1), "unused": Targets()},
            max_rows=1,
            token_budget=1,
        )
        (one,) = report.classes
        assert (one.first_token_attainment, one.token_attainment) == (0.5, 0.5)
        assert one.goodput_per_second == pytest.approx(1 / 10)
        assert one.outcomes["refused"] == 1
        assert "50.0%" in format_report(report)

    def test_classes_come_strictest_first(self) -> None:
        names = ["batch", "realtime", "standard", None]
        trace = [asked(n, 10, 2, service_class=name) for n, name in enumerate(names)]
        report = self.report(trace=trace)
        assert [(one.name, one.offered) for one in report.classes] == [
            ("realtime", 1),
            ("standard", 2),
            ("batch", 1),
        ]
        text = format_report(report)
        assert text.index("realtime") < text.index("standard") < text.index("batch")
        assert max(map(len, text.splitlines())) <= 100

    def test_step_counts_add_up(self) -> None:
        report = self.report(trace=[asked(0, 20, 5), asked(0.1, 20, 5)])
        steps = report.steps
        assert steps["total"] == sum(
            steps[name] for name in ("prefill_only", "decode_only", "mixed")
        )
        assert steps["computed_tokens"] == 2 * (20 + 4)
        assert 0 < report.utilisation["busy"] <= 1


class TestCacheSize:
    def test_memory_follows_the_settings_and_the_profile(self) -> None:
        assert plan_cache(settings(), PROFILE) == CacheSize(256, 32, 4096)
        small = settings("memory.kv_bytes=64KB", "memory.block_size=16tok")
        assert plan_cache(small, PROFILE) == CacheSize(32, 16, 512)
        with pytest.raises(CapacityError, match="one page"):
            plan_cache(settings("memory.kv_bytes=1KB"), PROFILE)


def test_windows_leave_room_for_longer_contexts() -> None:
    grouped = EngineFacts(2, 40_960, 12, 64, 12 * 64 * 2048, 6, 2, 512)
    profile = Profile(COST, 0.0, 1, grouped)
    assert parse_profile(profile.to_json().encode(), "profile") == profile
    size = plan_cache(settings(), profile)
    assert (size.pages, size.page_tokens, size.groups, size.window_tokens) == (384, 32, 6, 512)
    assert size.context_tokens == 2048
    few = settings("scheduler.max_chunk_tokens=64")
    assert plan_cache(few, profile).context_tokens == 32 * (384 - 5 * (16 + 1 + 2))
    whole = settings("memory.layout=contiguous")
    assert plan_cache(whole, profile) == CacheSize(64, 32, 2048)
    assert build_scheduler(few, plan_cache(few, profile), COST, SimulatedClock()).layout.groups == 6


def test_progress_reaches_the_end() -> None:
    seen: list[tuple[int, int]] = []
    trace = [asked(5 * n, 5, 300) for n in range(4)]
    simulate(settings(), PROFILE, trace, progress=lambda *done: seen.append(done))
    assert len(seen) > 1
    assert seen[-1] == (4, 4)


def test_the_published_traces_replay(data_dir: Path) -> None:
    folder = data_dir / "azure-llm-2023"
    scale = TraceScale(gaps=6, lengths=0.125, limit=150)
    for name in ("AzureLLMInferenceTrace_conv.csv", "AzureLLMInferenceTrace_code.csv"):
        report = simulate(settings(), default_profile(), read_trace(folder / name, scale))
        assert report.classes[0].outcomes["finished"] == 150
    shared = read_trace(
        data_dir / "mooncake" / "conversation_trace.head.jsonl",
        dataclasses.replace(scale, gaps=20, lengths=1 / 32),
    )
    report = simulate(settings(), default_profile(), shared)
    assert report.classes[0].outcomes["finished"] == 150
    # The head of this trace shares little but its system prompt.
    assert 0 < report.cache["hit_share"] < 0.5
