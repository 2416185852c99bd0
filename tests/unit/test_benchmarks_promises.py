"""What is sent to see whether promises are kept, and how that is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from benchmarks.promises.loads import crowd, long_prompt, mix, shared_prefix, varied
from benchmarks.promises.overload import overload
from benchmarks.promises.reality import simulate, traced
from benchmarks.promises.report import results_of, table
from benchmarks.serving.answers import Answer, Failure
from benchmarks.serving.connection import Target
from benchmarks.serving.load import Job, Lengths, Load, Timetable
from benchmarks.serving.measure import Options, measure
from benchmarks.serving.pace import Record

from http_harness import Server, app_on_fake
from octavo.core.service_classes import ServiceClass
from octavo.core.settings_load import load_settings
from octavo.plan.profile import default_profile
from remote_harness import SlowModel
from tiny import make_tiny_gguf

CLASSES = (
    ServiceClass("realtime", first_token_seconds=30, inter_token_seconds=10),
    ServiceClass("standard", first_token_seconds=60, queue_requests=1),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One row, and room for one standard request to wait."""
    path = make_tiny_gguf(tmp_path_factory.mktemp("promises") / "tiny.gguf", seed=3)
    model = SlowModel(512, 1024, answers=range(300, 500))
    model.step_seconds = 0.02
    options = {"classes": CLASSES}
    with app_on_fake(path, model, max_rows=1, classes=CLASSES, service_options=options) as running:
        yield running


def record(
    service_class: str, first: float, gap: float, *, tokens: int = 5, failure: str = ""
) -> Record:
    times = tuple(1.0 + first + gap * number for number in range(tokens))
    answer = Answer(
        () if failure else times,
        times[-1],
        text="x",
        output_tokens=tokens,
        failure=Failure(failure, "") if failure else None,
    )
    return Record(Job(0, 8, tokens, 1.0, service_class), 1.0, 1.0, answer)


def test_the_mix_comes_class_by_class() -> None:
    jobs = mix().jobs()
    found = {
        name: [job for job in jobs if job.service_class == name]
        for name in ("batch", "standard", "realtime")
    }
    assert [len(each) for each in found.values()] == [3, 8, 22]
    assert [job.due_seconds for job in found["batch"]] == pytest.approx([0, 0.05, 0.1])
    assert found["realtime"][-1].due_seconds == pytest.approx(0.65 + 21 * 0.062)
    assert {(job.prompt_tokens, job.output_tokens) for job in found["standard"]} == {(512, 128)}
    assert [job.number for job in jobs] == list(range(33))
    assert [job.due_seconds for job in jobs] == sorted(job.due_seconds for job in jobs)


def test_a_crowd_has_its_rate_and_its_share() -> None:
    jobs = crowd(10.0, 200.0, seed=3).jobs()
    assert jobs == crowd(10.0, 200.0, seed=3).jobs()
    assert len(jobs) == pytest.approx(2000, rel=0.1)
    share = sum(job.service_class == "realtime" for job in jobs) / len(jobs)
    assert share == pytest.approx(0.2, abs=0.03)


def test_what_was_kept_is_a_share_of_what_was_offered() -> None:
    records = [
        record("realtime", 0.4, 0.04),
        record("realtime", 0.6, 0.04),
        record("realtime", 0.4, 0.06),
        record("realtime", 0.1, 0.01, failure="HTTP 429"),
        record("batch", 100.0, 9.0),
    ]
    realtime, batch = results_of(records)
    assert (realtime.name, realtime.offered, realtime.whole) == ("realtime", 4, 3)
    assert (realtime.kept_first_token, realtime.kept_inter_token) == (0.5, 0.5)
    assert realtime.kept_both == 0.25
    assert (batch.kept_first_token, batch.kept_both) == (None, 1.0)
    assert realtime.ttft is not None
    assert realtime.ttft.largest == pytest.approx(0.6)
    assert "3/4" in table([realtime, batch])


def test_varied_requests_are_short_and_long() -> None:
    jobs = varied(seconds=200.0, seed=2).jobs()
    assert jobs == varied(seconds=200.0, seed=2).jobs()
    assert len(jobs) == pytest.approx(200, rel=0.25)
    prompts = [job.prompt_tokens for job in jobs]
    assert 16 <= min(prompts) < 32
    assert 1000 < max(prompts) <= 1500
    assert {job.service_class for job in jobs} == {"standard"}


def test_the_simulator_gets_the_same_requests() -> None:
    settings = load_settings(environment={}).settings
    found = simulate(settings, default_profile(), long_prompt(streams=2, prompt_tokens=600))
    assert found["end to end"].count == 3
    first, second = (
        traced(Job(number, 100, 8, 0.0, "standard", prefix=1, prefix_tokens=64))
        for number in (1, 2)
    )
    assert first.block_ids[:2] == second.block_ids[:2]
    assert not set(first.block_ids[2:]) & set(second.block_ids[2:])
    assert len(first.block_ids) * first.block_tokens >= first.prompt_tokens
    assert {job.prefix for job in shared_prefix().planned} == {0, 1, 2, 3}


def test_jobs_name_their_class_and_share_their_beginning(server: Server) -> None:
    jobs = [Job(number, 40, 2, 0.0, "realtime", 5, 32) for number in range(3)]
    measured = asyncio.run(
        measure(
            Target.parse(server.url),
            Timetable(tuple(jobs)),
            Options(warmup_requests=0),
            stop=asyncio.Event(),
            on_record=lambda record: None,
        )
    )
    assert measured.summary.whole == 3
    assert measured.summary.cached_tokens >= 32
    assert server.metric("octavo_offered_requests_total", service_class="realtime") >= 3
    assert server.metric("octavo_step_work_total", per="token") >= 40


def test_who_is_refused_comes_back_when_told(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = tuple(
        replace(job, number=number, due_seconds=0.0, service_class="standard")
        for number, job in enumerate(Load(5, Lengths(8, 8), Lengths(4, 4), at_once=1).jobs())
    )
    monkeypatch.setattr(
        "benchmarks.promises.overload.crowd", lambda *rest, **options: Timetable(jobs)
    )
    found = asyncio.run(overload(Target.parse(server.url), 1.0, 60.0, 0))
    assert len(found.records) == 5
    assert found.refused == len(found.retries) >= 1
    assert found.retries_admitted == 1.0
    assert all(each.due_seconds >= 1.0 for each in found.retries)
