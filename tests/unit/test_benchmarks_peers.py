"""Octavo beside other engines: turns, ratios, memory, the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from benchmarks.peers.compare import FIGURES, Ratio, compare, remarks
from benchmarks.peers.engine import Budget, Engine, RunningEngine
from benchmarks.peers.memory import PeakMemory, peak_memory, process_tree
from benchmarks.peers.openvino_engine import summary_of
from benchmarks.peers.report import Report
from benchmarks.peers.rounds import OURS, PEER_LOADS, Run, SetAside, alternate
from benchmarks.serving.answers import Answer
from benchmarks.serving.load import Job, Lengths, Load
from benchmarks.serving.measure import MeasurementError
from benchmarks.serving.pace import Record
from benchmarks.serving.report import Summary, summarise

LOAD = Load(3, Lengths(8, 8), Lengths(3, 3), at_once=1)


def summary(step_seconds: float) -> Summary:
    """Three tokens, one each `step_seconds`, the first after two of them."""
    times = tuple(step_seconds * (2 + number) for number in range(3))
    answer = Answer(times, times[-1], text="abc", prompt_tokens=8, output_tokens=3)
    return summarise(
        [Record(Job(0, 8, 3, 0.0), 0.0, 0.0, answer)], seconds=times[-1], client_cpu_seconds=0.0
    )


def run(
    engine: str, number: int, step_seconds: float, *, load: str = "one", start: float = 1.0
) -> Run:
    return Run(number, load, engine, start, round(100e6 * step_seconds), summary(step_seconds))


def test_ratios_above_one_say_that_octavo_is_better() -> None:
    runs = [
        run(OURS, 0, 1.0, start=1.0),
        run("other", 0, 2.0, start=3.0),
        run("other", 1, 4.0, start=3.0),
        run(OURS, 1, 1.0, start=1.0),
    ]
    rows = {(row.load, row.figure): row for row in compare(runs)}
    assert {load for load, _ in rows} == {"one", "any"}
    assert rows["one", "decode tokens/s"].medians == {OURS: 1.0, "other": pytest.approx(0.375)}
    assert rows["one", "decode tokens/s"].ratios["other"].median == pytest.approx(8 / 3)
    assert rows["one", "TTFT p50, ms"].medians == {OURS: 2000.0, "other": 6000.0}
    assert rows["one", "TTFT p50, ms"].ratios == {"other": Ratio(3.0, 2.0, 4.0)}
    assert rows["one", "peak memory, MB"].ratios == {"other": Ratio(3.0, 2.0, 4.0)}
    assert rows["any", "start to first token, s"].ratios == {"other": Ratio(3.0, 3.0, 3.0)}


def test_every_load_has_figures() -> None:
    for load in PEER_LOADS:
        rows = compare([run(OURS, 0, 1.0, load=load), run("other", 0, 0.5, load=load)])
        figures = [row for row in rows if row.load == load]
        assert [row.figure for row in figures] == [figure.name for figure in FIGURES[load]]
        assert all(row.ratios["other"].median == pytest.approx(0.5) for row in figures)
    assert compare([]) == []


def test_an_engine_without_a_figure_is_left_out_of_its_row() -> None:
    silent = replace(run("silent", 0, 1.0), summary=summarise([], seconds=1, client_cpu_seconds=0))
    rows = {row.figure: row for row in compare([run(OURS, 0, 1.0), silent])}
    assert rows["TTFT p50, ms"].medians.keys() == {OURS}
    assert rows["TTFT p50, ms"].ratios == {}
    assert rows["peak memory, MB"].ratios.keys() == {"silent"}


def test_failures_and_wrong_lengths_are_remarked() -> None:
    short = replace(run("other", 0, 1.0).summary, answers_of_other_length=1, cached_tokens=5)
    broken = replace(short, answers_of_other_length=0, cached_tokens=0, failures={"timeout": 2})
    broken = replace(broken, first_messages={"timeout": "too late"})
    runs = [
        replace(run("other", number, 1.0), summary=each)
        for number, each in enumerate((short, broken, summary(1.0)))
    ]
    from_cache = replace(summary(1.0), cached_tokens=5)
    found = remarks([*runs, replace(run("other", 3, 1.0), load="prefix", summary=from_cache)])
    assert found == [
        "other, one, round 1: lengths differ from what was wanted",
        "other, one, round 1: 5 prompt tokens came from a cache",
        "other, one, round 2: 2 x timeout: too late",
    ]


class Tags(HTMLParser):
    """Names of all tags, and every attribute that would fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [name for name, _ in attrs if name in ("src", "href")]


def report(tmp_path: Path) -> Report:
    engines = [Engine(name, "1.0", tmp_path / "m.gguf", no_start) for name in (OURS, "a", "b")]
    runs = (run(OURS, 0, 1.0), run("a", 0, 2.0), run("b", 0, 0.5))
    return Report("m<odel>", 2, 1, {"one": LOAD}, engines, {"vllm": "it is <not> there"}, runs)


@contextmanager
def no_start(budget: Budget) -> Iterator[RunningEngine]:
    raise AssertionError("nothing is started here")
    yield


def test_the_report_is_text_json_and_one_page(tmp_path: Path) -> None:
    found = report(tmp_path)
    text = found.text()
    assert "| one | TTFT p50, ms | 2000.0 | 4000.0 (2.00; 2.00 to 2.00) | 1000.0 (0.50;" in text
    assert "skipped: vllm: it is <not> there" in text
    assert "seed" not in json.dumps(found.tree()["loads"])
    tree = json.loads(json.dumps(found.tree()))
    assert tree["skipped"] == {"vllm": "it is <not> there"}
    assert [each["engine"] for each in tree["runs"]] == [OURS, "a", "b"]
    assert {row["figure"] for row in tree["rows"]} >= {"decode tokens/s", "start to first token, s"}
    page = found.html()
    tags = Tags()
    tags.feed(page)
    assert "m&lt;odel&gt;" in page
    assert "it is &lt;not&gt; there" in page
    assert tags.fetched == []
    assert not {"script", "link", "img"} & set(tags.tags)
    assert tags.tags.count("tr") == 1 + len(found.rows())


class Scripted:
    """An engine in this process that answers at a given pace, or fails."""

    def __init__(self, step_seconds: float, order: list[str], fails_in_round: int | None = None):
        self.process_id = os.getpid()
        self.budgets: list[Budget] = []
        self.interrupted_in: int | None = None
        self._step_seconds = step_seconds
        self._order = order
        self._fails_in_round = fails_in_round

    @contextmanager
    def start(self, budget: Budget) -> Iterator[RunningEngine]:
        self.budgets.append(budget)
        yield self

    def first_token_seconds(self, prompt: list[int]) -> float:
        return float("inf") if prompt != [1, 2] else 1e12

    def measure(self, load: Load, *, warmup_requests: int, label: str) -> Summary:
        if load.seed == self._fails_in_round:
            raise MeasurementError("it fell over")
        self._order.append(label)
        return replace(summary(self._step_seconds), interrupted=load.seed == self.interrupted_in)


def scripted(order: list[str], **fails_in_round: int) -> tuple[list[Engine], dict[str, Scripted]]:
    made = {
        name: Scripted(1.0, order, fails_in_round.get(name)) for name in (OURS, "first", "second")
    }
    engines = [Engine(name, "1", Path("m"), each.start) for name, each in made.items()]
    return engines, made


def test_engines_take_turns_within_one_budget() -> None:
    order: list[str] = []
    engines, made = scripted(order)
    loads = {"one": LOAD, "crowd": replace(LOAD, at_once=4)}
    found = list(alternate(engines, loads, rounds=2, threads=3, first_prompt=[1, 2]))
    assert [label.split(", ")[1] for label in order[:6]] == [OURS, "first", "second"] * 2
    assert [label.split(", ")[1] for label in order[6:]] == ["second", "first", OURS] * 2
    assert order[0].startswith("one 1 of 2")
    assert all(isinstance(each, Run) and each.peak_bytes > 0 for each in found)
    budgets = [each.budgets for each in made.values()]
    assert budgets[0] == budgets[1] == budgets[2]
    assert {budget.kv_tokens for budget in budgets[0]} == {256, 4 * 256}
    assert {budget.threads for budget in budgets[0]} == {3}


def test_a_peer_that_fails_is_set_aside_and_the_others_go_on() -> None:
    order: list[str] = []
    engines, _ = scripted(order, first=1)
    found = list(alternate(engines, {"one": LOAD}, rounds=3, threads=2, first_prompt=[1, 2]))
    assert [each for each in found if isinstance(each, SetAside)] == [
        SetAside("first", "it fell over")
    ]
    ran = [each.engine for each in found if isinstance(each, Run)]
    assert ran == [OURS, "first", "second", "second", OURS, OURS, "second"]


def test_a_failure_of_our_own_is_no_result() -> None:
    engines, _ = scripted([], **{OURS: 0})
    with pytest.raises(MeasurementError, match="fell over"):
        list(alternate(engines, {"one": LOAD}, rounds=1, threads=2, first_prompt=[1, 2]))


def test_an_interrupt_keeps_what_there_is() -> None:
    engines, made = scripted([])
    made["first"].interrupted_in = 1
    turns = alternate(engines, {"one": LOAD}, rounds=2, threads=2, first_prompt=[1, 2])
    found = [next(turns) for _ in range(4)]
    with pytest.raises(KeyboardInterrupt):
        next(turns)
    ran = [(each.engine, each.round) for each in found if isinstance(each, Run)]
    assert ran == [(OURS, 0), ("first", 0), ("second", 0), ("second", 1)]


def test_peak_memory_counts_every_descendant_once() -> None:
    held_bytes = 64_000_000
    child = f"held = bytearray(b'x') * {held_bytes}; print('held', flush=True); input()"
    parent = (
        "import subprocess, sys, threading; "
        f"start = lambda: subprocess.run([sys.executable, '-c', {child!r}]); "
        # Started by a thread, so that only that thread has it as a child.
        "thread = threading.Thread(target=start); thread.start(); thread.join()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", parent], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"held\n"
        assert len(process_tree(process.pid)) == 2
        with peak_memory(process.pid) as peak:
            pass
        assert held_bytes < peak.bytes < 4 * held_bytes
        process.communicate(b"\n")
    before = peak.bytes
    gone = PeakMemory(process.pid)
    gone.sample()
    assert gone.bytes == 0
    assert peak.bytes == before


def test_the_answers_of_a_worker_are_numbers_like_a_servers() -> None:
    jobs = [Job(0, 8, 3, 0.0), Job(1, 8, 3, 0.0)]
    trees = [
        {
            "number": 1,
            "sent_seconds": 101.0,
            "text_seconds": [102.0, 103.0, 104.0],
            "output_tokens": 3,
            "status": "FINISHED",
            "text": "abc",
        },
        {
            "number": 0,
            "sent_seconds": 100.0,
            "text_seconds": [],
            "output_tokens": 0,
            "status": "IGNORED",
            "text": "",
        },
    ]
    found = summary_of(jobs, trees)
    assert found.failures == {"ignored": 1}
    assert (found.whole, found.output_tokens, found.seconds) == (1, 3, 4.0)
    assert found.ttft is not None
    assert found.tpot is not None
    assert (found.ttft.p50, found.tpot.p50) == (1.0, 1.0)
    assert found.answers_of_other_length == 0
