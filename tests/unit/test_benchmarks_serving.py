"""Whole measurements of a server, and the command that makes them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.serving.connection import Target
from benchmarks.serving.load import Lengths, Load
from benchmarks.serving.measure import MeasurementError, Options, measure
from benchmarks.serving.pace import Record
from benchmarks.serving.report import Summary, table
from benchmarks.serving.run import main

from http_harness import Server, app_on_fake
from remote_harness import SlowModel
from tiny import make_tiny_gguf


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = make_tiny_gguf(tmp_path_factory.mktemp("measured") / "tiny.gguf", seed=3)
    with app_on_fake(path) as server:
        yield server


def measured(server: Server, load: Load, options: Options) -> tuple[Summary, tuple[Record, ...]]:
    shown: list[Record] = []
    found = asyncio.run(
        measure(
            Target.parse(server.url), load, options, stop=asyncio.Event(), on_record=shown.append
        )
    )
    assert sorted(shown, key=lambda record: record.job.number) == list(found.records)
    return found.summary, found.records


MIXED = Load(12, Lengths(60, 120), Lengths(1, 24), at_once=5, seed=9)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(as_ids=False),
        Options(route="chat"),
        Options(streamed=False),
    ],
    ids=["ids", "text", "chat", "unstreamed"],
)
def test_lengths_are_exact_as_the_server_counts(served: Server, options: Options) -> None:
    summary, records = measured(served, MIXED, options)
    jobs = MIXED.jobs()
    assert [record.job for record in records] == jobs
    for record in records:
        assert record.answer.failure is None
        assert record.answer.prompt_tokens == record.job.prompt_tokens
        assert record.answer.output_tokens == record.job.output_tokens
        assert record.answer.finish_reason == "length"
    assert summary.prompt_tokens == sum(job.prompt_tokens for job in jobs)
    assert summary.output_tokens == sum(job.output_tokens for job in jobs)
    assert summary.prompts_of_other_length == summary.answers_of_other_length == 0
    assert (summary.ttft is not None) == options.streamed


def test_only_prompts_of_the_same_seed_are_found_in_a_cache(served: Server) -> None:
    load = replace(MIXED, at_once=None, rate=300.0, seed=77)
    summary, records = measured(served, load, Options())
    assert summary.whole == 12
    assert [record.job for record in records] == load.jobs()
    assert summary.cached_tokens == 0
    again, _ = measured(served, load, Options())
    assert 0 < again.cached_tokens < again.prompt_tokens


def test_without_a_tokenizer_the_report_tells_how_far_off_prompts_are(
    served: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(*_: object) -> None:
        return None

    monkeypatch.setattr("benchmarks.serving.measure.find_tokenize", none)
    summary, records = measured(served, MIXED, Options())
    off = [abs((record.answer.prompt_tokens or 0) - record.job.prompt_tokens) for record in records]
    assert summary.prompts_of_other_length == sum(each > 0 for each in off)
    assert summary.largest_prompt_difference_tokens == max(off)
    assert max(off) < 40


def test_refused_requests_are_counted_not_timed(served: Server) -> None:
    load = replace(MIXED, prompt=Lengths(900, 1100), output=Lengths(2, 2))
    summary, records = measured(served, load, Options(warmup_requests=0))
    too_long = sum(job.prompt_tokens >= 1024 for job in load.jobs())
    assert 0 < too_long < 12
    assert summary.failures == {"HTTP 400": too_long}
    assert "1024" in summary.first_messages["HTTP 400"]
    assert summary.whole == 12 - too_long
    assert summary.ttft is not None
    textless = sum(record.answer.failure is None and not record.answer.text for record in records)
    assert summary.textless_answers == textless
    assert summary.ttft.count == 12 - too_long - textless
    assert f"failed: {too_long} x HTTP 400" in table(summary)


def test_a_wrong_model_is_told_before_the_load(served: Server) -> None:
    with pytest.raises(MeasurementError, match="no model 'other'"):
        measured(served, MIXED, Options(model="other"))


def test_extra_fields_go_out_and_null_takes_one_away(served: Server) -> None:
    options = Options(extra={"logit_bias": {"100000": 1}}, warmup_requests=0)
    summary, _ = measured(served, replace(MIXED, requests=1), options)
    assert "logit_bias" in summary.first_messages["HTTP 400"]
    summary, records = measured(
        served, replace(MIXED, requests=1), Options(extra={"stream_options": None})
    )
    assert records[0].answer.output_tokens is None
    assert summary.uncounted_answers == 1
    assert summary.output_tokens == len(records[0].answer.text_seconds)


def test_the_command_writes_table_and_json(
    served: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    flags = ["--requests=3", "--prompt=16", "--output=4-6", "--at-once=2", f"--json={file}"]
    assert main([f"{served.url}/v1", *flags, "--records"]) == 0
    shown = capsys.readouterr().out
    assert "3 of 3 requests whole" in shown
    assert "all as wanted" in shown
    tree = json.loads(file.read_text())
    assert tree["load"]["prompt"] == "16"
    assert tree["summary"]["whole"] == 3
    assert [record["answer"]["prompt_tokens"] for record in tree["records"]] == [16] * 3


@pytest.mark.parametrize(
    "flags",
    [["--prompt=0"], ["--rate=-1"], ["--extra=["], ["--extra=3"], ["--route=chat"]],
)
def test_misuse_is_told_at_once(
    served: Server, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if flags == ["--route=chat"]:
        flags = [*flags, "--prompts-as=ids"]
    assert main([served.url, *flags]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_interrupt_sums_up_what_there_is(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    path = make_tiny_gguf(tmp_path_factory.mktemp("slow") / "tiny.gguf", seed=3)
    model = SlowModel(512, 1024, answers=range(300, 500))
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.serving"]
    # Many seconds if nobody interrupts it.
    flags = ["--requests=60", "--prompt=8", "--output=5-200", "--at-once=4", f"--json={file}"]
    with app_on_fake(path, model) as server:
        process = subprocess.Popen(
            [*command, server.url, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        server.wait_until(
            lambda: server.metric("octavo_requests_total") > 4 or process.poll() is not None
        )
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert b"(interrupted)" in shown
        assert b"Traceback" not in errors
        summary = json.loads(file.read_text())["summary"]
        assert 0 < summary["whole"] < 60
        assert summary["failures"] == {}
        server.wait_idle()
