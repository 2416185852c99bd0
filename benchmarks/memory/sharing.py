"""A prefix that all requests share, with sharing on and off: memory, concurrency and work.

64 requests with a 512-token prefix and a 64-token tail of their own, answers of 64 tokens: first
with memory for everybody, 32 at a time, then all at once in --memory-tokens of memory.
"""

from __future__ import annotations

import argparse

from benchmarks.memory.crowd import Crowd, Visitor
from benchmarks.memory.table import Rows

_PLENTY_TOKENS = 1 << 17
_PAGE_TOKENS = 32


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefix-tokens", type=int, default=512)
    parser.add_argument("--tail-tokens", type=int, default=64)
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--memory-tokens", type=int, default=5120)


def measure(options: argparse.Namespace) -> Rows:
    visitors = [
        Visitor(
            (2,) * options.prefix_tokens + (number + 3,) * options.tail_tokens,
            options.answer_tokens,
            options.answer_tokens,
        )
        for number in range(64)
    ]
    rows = []
    for shares in (True, False):
        roomy, tight = (
            Crowd.of(
                pages=memory_tokens // _PAGE_TOKENS,
                page_tokens=_PAGE_TOKENS,
                max_rows=64,
                shares_prefixes=shares,
            ).serve(visitors, at_once)
            for memory_tokens, at_once in ((_PLENTY_TOKENS, 32), (options.memory_tokens, 64))
        )
        rows.append(
            {
                "sharing": "on" if shares else "off",
                "peak_held_pages": roomy.peak_held_pages,
                "computed_tokens": roomy.computed_tokens,
                "mean_running": tight.mean_running,
                "peak_running": tight.peak_running,
                "steps": tight.steps,
                "preemptions": tight.preemptions,
            }
        )
    return rows
