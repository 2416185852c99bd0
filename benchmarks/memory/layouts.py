"""Waste and concurrency of the 64-request mix: pages of 32 and 16 tokens beside contiguous runs.

The mix is the load "crowd" of benchmarks.serving. Waste is measured with memory for everybody and
32 requests at a time; concurrency with all 64 at once and memory for --memory-tokens only. A
client that does not know how long its answer gets asks for the longest one (`max_tokens` 192); the
last row is a contiguous layout that is told each length in advance.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from benchmarks.memory.crowd import Crowd, Stay, Visitor
from benchmarks.memory.table import Rows
from benchmarks.serving.load import LOADS

_PLENTY_TOKENS = 1 << 17


@dataclass(frozen=True, slots=True)
class Layout:
    name: str
    page_tokens: int
    is_contiguous: bool = False
    knows_lengths: bool = False


LAYOUTS = (
    Layout("pages of 32 tokens", 32),
    Layout("pages of 16 tokens", 16),
    Layout("contiguous", 16, is_contiguous=True),
    Layout("contiguous, lengths known", 16, is_contiguous=True, knows_lengths=True),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory-tokens", type=int, default=8192)


def measure(options: argparse.Namespace) -> Rows:
    rows = []
    for layout in LAYOUTS:
        roomy = serve(layout, _PLENTY_TOKENS, 32)
        tight = serve(layout, options.memory_tokens, 64)
        rows.append(
            {
                "layout": layout.name,
                "waste_percent": 100 * roomy.waste_share,
                "mean_running": tight.mean_running,
                "peak_running": tight.peak_running,
                "steps": tight.steps,
                "preemptions": tight.preemptions,
            }
        )
    return rows


def serve(layout: Layout, memory_tokens: int, at_once: int) -> Stay:
    """The mix in so much memory."""
    crowd = Crowd.of(
        pages=memory_tokens // layout.page_tokens,
        page_tokens=layout.page_tokens,
        max_rows=64,
        is_contiguous=layout.is_contiguous,
    )
    load = LOADS["crowd"]
    visitors = [
        Visitor(
            # No two prompts begin alike.
            (job.number + 2,) * job.prompt_tokens,
            job.output_tokens,
            job.output_tokens if layout.knows_lengths else load.output.high,
        )
        for job in load.jobs()
    ]
    return crowd.serve(visitors, at_once)
