"""Kernels as a share of this machine's limits, which are measured in turn with each.

python -m benchmarks.kernels [--json FILE] [--only TEXT] [--threads N] [--tier NAME]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.kernels import attentions, limits, linears, others
from benchmarks.kernels.cases import Case, Result, measure
from benchmarks.kernels.limits import Limits
from benchmarks.serving.report import machine
from tqdm import tqdm

from octavo.compute.kernels.cpu.model import choose_tier
from octavo.compute.kernels.cpu.threads import threads_and_reason

_COLD_TIMES_LARGEST_CACHE = 3
_LARGEST_CACHE_BYTES = 32 << 20
_BESIDE_SECONDS = 0.012


def largest_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the last-level cache; 32 MiB where the system does not say."""
    sizes = []
    for file in folder.glob("index*/size"):
        text = file.read_text().strip()
        if text.endswith("K"):
            sizes.append(int(text[:-1]) << 10)
    return max(sizes, default=_LARGEST_CACHE_BYTES)


def all_cases(tier: str, threads: int, rows: tuple[int, ...]) -> Iterator[Case]:
    cold_bytes = _COLD_TIMES_LARGEST_CACHE * largest_cache_bytes()
    yield from linears.cases(tier, threads, cold_bytes, rows)
    yield from attentions.cases(tier, threads, cold_bytes)
    yield from others.cases(tier, threads)


def show_limits(tier: str, found: dict[int, Limits]) -> None:
    print(f"limits of {tier} ({limits.LEAST_SHARE:.0%} of the reference at least)")
    for threads, one in found.items():
        expected = limits.reference(tier, threads)
        for kind, value in asdict(one).items():
            wanted = "" if expected is None else f"  reference {getattr(expected, kind):8.1f}"
            print(f"  {threads} threads  {kind:16} {value:8.1f} {limits.UNITS[kind]}{wanted}")


def show(result: Result) -> None:
    aim = "" if result.aim is None else f"  aim {result.aim:4.0%}"
    missed = " missed" if result.aim is not None and result.share < result.aim else ""
    print(
        f"{result.name:62} {result.best_microseconds:10.1f} us {result.rate:8.1f} "
        f"{limits.UNITS[result.bound]:7} {result.share:5.0%} ({result.median_share:4.0%}) of "
        f"{result.bound}{aim}{missed}"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write limits and results to this file")
    parser.add_argument("--only", default="", help="only kernels with this text in their names")
    parser.add_argument("--rows", type=int, nargs="+", default=list(linears.ROWS))
    parser.add_argument("--threads", type=int, help="default: all cores, as the engine has it")
    parser.add_argument("--tier", help="instruction set; default: the best of this machine")
    parser.add_argument("--seconds", type=float, default=0.2, help="a kernel and shape")
    options = parser.parse_args(arguments)
    tier = choose_tier(options.tier)
    threads = options.threads or threads_and_reason()[0]
    meters = {count: limits.Meter(tier, count) for count in sorted({1, threads})}
    found = {count: meter.measure(0.6) for count, meter in meters.items()}
    show_limits(tier, found)
    beside = partial(meters[threads].measure, _BESIDE_SECONDS)
    results: list[Result] = []
    began = time.monotonic()
    print("shares: best burst (median burst) of the least time that the limits allow")
    for case in tqdm(all_cases(tier, threads, tuple(options.rows)), unit="case", disable=None):
        if options.only not in f"{case.group} {case.name}":
            continue
        results.append(measure(case, beside, options.seconds))
        with tqdm.external_write_mode():
            show(results[-1])
    again = {count: meter.measure(0.3) for count, meter in meters.items()}
    best = {count: one.or_better(again[count]) for count, one in found.items()}
    for result in results:
        best[threads] = best[threads].or_better(result.limits)
    print(f"{len(results)} kernels in {time.monotonic() - began:.0f} s; limits measured again:")
    show_limits(tier, again)
    if options.json:
        figures = {
            "machine": machine(),
            "tier": tier,
            "threads": threads,
            "limits": {count: asdict(one) for count, one in best.items()},
            "results": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    failures = [
        f"{count} threads: {text}"
        for count, one in best.items()
        for text in limits.shortfalls(one, limits.reference(tier, count))
    ]
    for failure in failures:
        print(f"too slow: {failure}", file=sys.stderr)
    return 1 if failures else 0
