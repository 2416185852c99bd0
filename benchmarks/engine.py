"""Decode and prefill speed of the engine in process, and its time outside the native call.

python benchmarks/engine.py [--model NAME] [--json FILE] [--set key=value ...]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from octavo import LLM, SamplingParams
from octavo.core.settings_load import load_settings
from octavo.engine.handle import Handle

Run = tuple[int, float, float, int]
"""Tokens, seconds, seconds inside the native call, steps."""


@dataclass(frozen=True)
class Measurement:
    """Best and median of several runs; tokens are decoded or prefilled ones, as the name says."""

    name: str
    streams: int
    context_tokens: int
    tokens: int
    best_tokens_per_second: float
    median_tokens_per_second: float
    outside_native_share: float
    outside_native_microseconds_per_step: float


class Timer:
    """Seconds, native seconds and steps of an engine between two readings."""

    def __init__(self, llm: LLM):
        self._metrics = llm.assembly.engine.metrics
        self.restart()

    def restart(self) -> None:
        self._began = time.perf_counter()
        self._native = self._metrics.native_seconds.value
        self._steps = self._metrics.steps.value

    def read(self) -> tuple[float, float, int]:
        return (
            time.perf_counter() - self._began,
            self._metrics.native_seconds.value - self._native,
            int(self._metrics.steps.value - self._steps),
        )


def prompt_ids(llm: LLM, length: int, salt: int) -> list[int]:
    """Plain tokens that differ from the first on, so that no run finds another's prefix."""
    text = f"{salt} is the number of this run. " + "The quick brown fox jumps over the dog. " * (
        length // 8 + 1
    )
    return llm.tokenizer.encode(text, add_special=False, parse_special=False)[:length]


def submit(llm: LLM, length: int, salt: int, new_tokens: int) -> Handle:
    params = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
    return llm.client.submit(llm.client.prepare(prompt_ids(llm, length, salt), params))


def decode(llm: LLM, streams: int, context: int, new_tokens: int, salt: int) -> Run:
    """Time from the first token of the last stream to the end; only whole-batch steps count."""
    handles = [
        submit(llm, context, salt * 1000 + number, new_tokens + 8) for number in range(streams)
    ]
    while any(handle.answers[0].token_count == 0 for handle in handles):
        llm.client.pump()
    before = sum(handle.answers[0].token_count for handle in handles)
    timer = Timer(llm)
    while all(handle.answers[0].token_count < new_tokens for handle in handles):
        llm.client.pump()
    seconds, native_seconds, steps = timer.read()
    tokens = sum(handle.answers[0].token_count for handle in handles) - before
    for handle in handles:
        llm.client.cancel(handle)
    llm.client.pump()
    return tokens, seconds, native_seconds, steps


def prefill(llm: LLM, length: int, salt: int) -> Run:
    handle = submit(llm, length, salt * 1000, 1)
    timer = Timer(llm)
    while not handle.done:
        llm.client.pump()
    seconds, native_seconds, steps = timer.read()
    return length, seconds, native_seconds, steps


def measure(
    name: str, streams: int, context: int, run: Callable[[int], Run], repeats: int, bar: tqdm
) -> Measurement:
    runs = []
    for repeat in range(repeats):
        runs.append(run(repeat))
        bar.update(1)
    rates = [tokens / seconds for tokens, seconds, _, _ in runs]
    seconds = sum(item[1] for item in runs)
    native_seconds = sum(item[2] for item in runs)
    steps = sum(item[3] for item in runs)
    return Measurement(
        name=name,
        streams=streams,
        context_tokens=context,
        tokens=runs[0][0],
        best_tokens_per_second=max(rates),
        median_tokens_per_second=statistics.median(rates),
        outside_native_share=1 - native_seconds / seconds,
        outside_native_microseconds_per_step=(seconds - native_seconds) / max(steps, 1) * 1e6,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    settings = load_settings(flags=options.set).settings
    with LLM(options.model, settings=settings) as llm:
        cases: list[tuple[str, int, int, Callable[[int], Run]]] = [
            ("decode", 1, 256, lambda salt: decode(llm, 1, 256, options.new_tokens, salt + 1)),
            ("decode", 32, 256, lambda salt: decode(llm, 32, 256, options.new_tokens, salt + 10)),
            ("prefill", 1, 512, lambda salt: prefill(llm, 512, salt + 20)),
            ("prefill", 1, 2000, lambda salt: prefill(llm, 2000, salt + 30)),
        ]
        decode(llm, 1, 16, 8, 99)
        with tqdm(total=len(cases) * options.repeats, unit="run", file=sys.stderr) as bar:
            results = [
                measure(name, streams, context, run, options.repeats, bar)
                for name, streams, context, run in cases
            ]
    print(f"{options.model}, {platform.processor() or platform.machine()}")
    print(f"{'':8} streams context  best tok/s  median tok/s  outside native  us/step")
    for item in results:
        print(
            f"{item.name:8} {item.streams:7} {item.context_tokens:7}"
            f" {item.best_tokens_per_second:11.1f} {item.median_tokens_per_second:13.1f}"
            f" {item.outside_native_share:14.1%}"
            f" {item.outside_native_microseconds_per_step:9.0f}"
        )
    if options.json:
        figures = {"model": options.model, "results": [asdict(item) for item in results]}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
