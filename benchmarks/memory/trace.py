"""Prefix hits on a recorded trace: the scheduler in simulated time beside an ideal LRU cache.

The trace is one with `hash_ids`, as Mooncake published it. The ideal cache has as many pages as the
KV cache and spends none on requests that run or on answers: each request finds the longest
beginning that it holds, and leaves its whole prompt there at once. Lengths are scaled so that a
block of the trace is one page, gaps so that requests do not only queue.
"""

from __future__ import annotations

import argparse
import os
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from benchmarks.memory.table import Rows

from octavo.core.settings_load import load_settings
from octavo.memory.keys import extend_keys, root_key
from octavo.plan.profile import default_profile
from octavo.plan.setup import CacheSize, build_scheduler
from octavo.plan.simulator import SimulatedClock, Simulation
from octavo.plan.synthetic import SyntheticPrompts
from octavo.plan.traces import BLOCK_TOKENS, TraceRequest, TraceScale, read_trace
from octavo.schedule.counters import SchedulerCounters

_PAGE_TOKENS = 16
_CONTEXT_TOKENS = 8192
_TRACE = Path("mooncake") / "conversation_trace.head.jsonl"


def add_options(parser: argparse.ArgumentParser) -> None:
    found = Path(os.environ.get("OCTAVO_DATA", ".")) / _TRACE
    parser.add_argument("--trace", type=Path, default=found)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--gaps", type=float, default=4.0)
    parser.add_argument("--pages", type=int, nargs="+", default=[1024, 4096, 16384])


def measure(options: argparse.Namespace) -> Rows:
    scale = TraceScale(
        gaps=options.gaps, lengths=_PAGE_TOKENS / BLOCK_TOKENS, limit=options.requests
    )
    trace = read_trace(options.trace, scale)
    rows = []
    for pages in options.pages:
        simulation, counters = simulate(trace, pages)
        records = simulation.records
        cached_tokens = sum(record.cached_tokens for record in records)
        prompt_tokens = sum(record.prompt_tokens for record in records)
        hit, ideal = 100 * cached_tokens / prompt_tokens, 100 * ideal_hit_share(trace, pages)
        rows.append(
            {
                "pages": pages,
                "hit_percent": hit,
                "ideal_percent": ideal,
                "points_below": ideal - hit,
                "evicted_pages": counters.evicted_pages,
                "peak_held_percent": 100 * simulation.totals.peak_held_share,
                "preemptions": counters.preemptions,
            }
        )
    return rows


def simulate(trace: list[TraceRequest], pages: int) -> tuple[Simulation, SchedulerCounters]:
    """The whole trace on a scheduler with so many pages and the bundled profile's machine."""
    # Without promises nobody is refused, who would leave nothing in the cache.
    settings = load_settings(flags=["scheduler.service_classes=off"]).settings
    profile = default_profile()
    clock = SimulatedClock()
    size = CacheSize(pages, _PAGE_TOKENS, _CONTEXT_TOKENS)
    scheduler = build_scheduler(settings, size, profile.cost, clock)
    simulation = Simulation(scheduler, profile.cost, clock, trace)
    simulation.run()
    return simulation, scheduler.counters


def ideal_hit_share(trace: Iterable[TraceRequest], pages: int) -> float:
    """Prompt tokens found ÷ prompt tokens, with requests that take no time and no memory."""
    prompts = SyntheticPrompts()
    root = root_key(b"", b"")
    held: OrderedDict[bytes, None] = OrderedDict()
    found_tokens = prompt_tokens = 0
    for number, traced in enumerate(trace):
        prompt = prompts.request(traced, number, "standard").prompt
        keys: list[bytes] = []
        extend_keys(keys, root, prompt, _PAGE_TOKENS)
        prompt_tokens += len(prompt)
        # One token at least is computed.
        for key in keys[: (len(prompt) - 1) // _PAGE_TOKENS]:
            if key not in held:
                break
            found_tokens += _PAGE_TOKENS
        for key in reversed(keys):
            held[key] = None
            held.move_to_end(key)
        while len(held) > pages:
            held.popitem(last=False)
    return found_tokens / prompt_tokens
