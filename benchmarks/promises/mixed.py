"""Two loads that break promises: a mix of classes, and a long prompt beside answers that stream."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise

from benchmarks.promises.loads import LONG_PROMPT_SECONDS, long_prompt, mix
from benchmarks.promises.report import results_of, table
from benchmarks.promises.sides import promises_of, sides
from benchmarks.serving.load import Timetable
from benchmarks.serving.measure import Measurement, Options
from benchmarks.serving.report import Spread
from benchmarks.serving.run import run

_OPTIONS = Options(warmup_requests=1)


def measure_mix(options: argparse.Namespace) -> dict[str, object]:
    """Print what each class got on each side; the numbers."""
    found = {}
    for name, measurement in _each_side(options, mix(options.seed)):
        results = results_of(measurement.records, promises_of(options))
        print(f"\n{name}: {measurement.summary.seconds:.1f} s in all\n{table(results)}", flush=True)
        found[name] = [asdict(one) for one in results]
    return {"mix": found}


def measure_long_prompt(options: argparse.Namespace) -> dict[str, object]:
    """Print the gaps of the streams while the long prompt is computed; the numbers."""
    load = long_prompt(options.streams, options.prompt_tokens, options.seed)
    found = {}
    for name, measurement in _each_side(options, load):
        end = _first_text_seconds(measurement)
        before, during = Spread.of(_gaps(measurement, 0.0, LONG_PROMPT_SECONDS)), None
        if end is not None:
            during = Spread.of(_gaps(measurement, LONG_PROMPT_SECONDS, end))
        print(f"\n{name}: first token of the long prompt after {_since_long_prompt(end)}")
        for when, gaps in (("before", before), ("meanwhile", during)):
            if gaps is not None:
                print(
                    f"  gaps {when:<10} p50 {1000 * gaps.p50:6.1f} ms, p99 {1000 * gaps.p99:6.1f},"
                    f" largest {1000 * gaps.largest:6.1f} ({gaps.count} gaps)",
                    flush=True,
                )
        found[name] = {
            "before": None if before is None else asdict(before),
            "meanwhile": None if during is None else asdict(during),
            "first_token_seconds": None if end is None else end - LONG_PROMPT_SECONDS,
        }
    return {"long_prompt": found}


def _each_side(options: argparse.Namespace, load: Timetable) -> Iterator[tuple[str, Measurement]]:
    for name, opened in sides(options, load).items():
        with opened() as target:
            measurement = run(target, load, _OPTIONS, name=name)
        yield name, measurement


def _first_text_seconds(measurement: Measurement) -> float | None:
    for record in measurement.records:
        if record.job.service_class == "batch" and record.answer.text_seconds:
            return record.answer.text_seconds[0]
    return None


def _since_long_prompt(end: float | None) -> str:
    return "no answer" if end is None else f"{end - LONG_PROMPT_SECONDS:.2f} s"


def _gaps(measurement: Measurement, begin: float, end: float) -> list[float]:
    """Gaps between tokens of the streams that ended in this time."""
    return [
        later - earlier
        for record in measurement.records
        if record.job.service_class == "realtime"
        for earlier, later in pairwise(record.answer.text_seconds)
        if begin <= later <= end
    ]
