"""Batching policies on the same requests: continuous, dynamic, static, static with padding."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

from benchmarks.promises.sides import octavo
from benchmarks.serving.connection import Target
from benchmarks.serving.load import LOADS, Load
from benchmarks.serving.measure import Options
from benchmarks.serving.report import Summary
from benchmarks.serving.run import run

POLICIES = {
    "continuous": ("scheduler.batching=continuous",),
    "dynamic": ("scheduler.batching=dynamic",),
    "static": ("scheduler.batching=static",),
    "static, padded": ("scheduler.batching=static", "scheduler.static_padding=true"),
}


def measure_batching(options: argparse.Namespace) -> dict[str, object]:
    """Print throughput of a closed loop, and TTFT of an open one; the numbers."""
    closed = replace(LOADS["crowd"], at_once=options.rows, seed=options.seed)
    found: dict[str, dict[str, Summary]] = {"closed": {}, "open": {}}
    for name in POLICIES:
        found["closed"][name] = _measured(options, name, closed)
    best = found["closed"]["continuous"]
    print(f"\n{closed.requests} requests, {options.rows} at once")
    for name, summary in found["closed"].items():
        ratio = best.output_tokens_per_second / summary.output_tokens_per_second
        print(
            f"  {name:<16}{summary.output_tokens_per_second:8.1f} output tokens/s, "
            f"continuous {ratio:.2f} times as fast",
            flush=True,
        )
    rate = options.load * best.requests_per_second
    opened = replace(closed, at_once=None, rate=rate)
    for name in POLICIES:
        found["open"][name] = _measured(options, name, opened)
    print(f"\nthe same at {rate:.2f} requests/s, {options.load:.0%} of what continuous can do")
    first = found["open"]["continuous"].ttft
    for name, summary in found["open"].items():
        if summary.ttft is not None and first is not None:
            ratio = first.p99 / summary.ttft.p99
            print(
                f"  {name:<16}TTFT p50 {1000 * summary.ttft.p50:8.0f} ms, "
                f"p99 {1000 * summary.ttft.p99:8.0f} ms, continuous has {ratio:.2f} of it",
                flush=True,
            )
    return {
        "batching": {
            pace: {name: asdict(summary) for name, summary in each.items()}
            for pace, each in found.items()
        }
    }


def _measured(options: argparse.Namespace, name: str, load: Load) -> Summary:
    settings = (
        # A static batch reads its prompts in one go, as far as the token budget goes.
        "scheduler.service_classes=off",
        "scheduler.max_step_ms=off",
        f"scheduler.max_batch_size={options.rows}",
        *POLICIES[name],
    )
    with octavo(options, *settings) as server:
        target = Target.parse(server.url)
        return run(target, load, Options(), name=name).summary
