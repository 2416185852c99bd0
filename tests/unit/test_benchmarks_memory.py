"""The memory measurements that need no model: what they show must stay true."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.memory import bookkeeping, layouts, sharing, trace
from benchmarks.memory.table import show


def test_pages_waste_little_and_admit_more_than_contiguous_runs() -> None:
    rows = {row["layout"]: row for row in layouts.measure(argparse.Namespace(memory_tokens=8192))}
    waste = {name: float(row["waste_percent"]) for name, row in rows.items()}
    running = {name: float(row["mean_running"]) for name, row in rows.items()}
    assert waste["pages of 32 tokens"] <= 6
    assert waste["pages of 16 tokens"] <= 3
    assert waste["contiguous"] > waste["contiguous, lengths known"] > 10
    assert running["pages of 32 tokens"] > 1.3 * running["contiguous"]
    assert running["pages of 16 tokens"] > running["contiguous, lengths known"]


def test_a_shared_prefix_takes_its_memory_once() -> None:
    parser = argparse.ArgumentParser()
    sharing.add_options(parser)
    on, off = sharing.measure(parser.parse_args([]))
    assert (on["sharing"], off["sharing"]) == ("on", "off")
    assert float(on["mean_running"]) > 2.5 * float(off["mean_running"])
    assert float(on["peak_held_pages"]) < 0.63 * float(off["peak_held_pages"])
    # The prefix is computed once, tails and answers by everybody.
    assert on["computed_tokens"] == 512 + 64 * (64 + 63)
    assert off["computed_tokens"] == 64 * (512 + 64 + 63)


def test_a_recorded_trace_hits_as_often_as_in_an_ideal_cache(data_dir: Path) -> None:
    options = argparse.Namespace(
        trace=data_dir / "mooncake" / "conversation_trace.head.jsonl",
        requests=200,
        gaps=4.0,
        pages=[512],
    )
    (row,) = trace.measure(options)
    assert float(row["evicted_pages"]) > 512
    assert float(row["ideal_percent"]) > 2
    assert abs(float(row["points_below"])) <= 3


def test_bookkeeping_is_timed_for_every_kind_of_work() -> None:
    rows = bookkeeping.measure(argparse.Namespace(pages=1024, repeats=1))
    assert len(rows) == 8
    assert all(float(row["microseconds_a_page"]) > 0 for row in rows)
    lines = show(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].startswith("take (planned")
