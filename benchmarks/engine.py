"""Decode and prefill speed of the engine in process, and its steps' time outside the native call.

python benchmarks/engine.py [--model NAME] [--json FILE] [--profile] [--set key=value ...]
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

from octavo import LLM, SamplingParams
from octavo.compute.kernels.cpu.profile import Profiled, StepPart, profile_lines
from octavo.core.settings_load import load_settings
from octavo.engine.handle import Handle


@dataclass(frozen=True)
class Run:
    """Decoded or prefilled tokens, and what they took; `parts` only with a profile.

    Of `seconds` the engine's steps took `step_seconds`; in the rest their caller read its answers.
    """

    tokens: int
    seconds: float
    step_seconds: float
    native_seconds: float
    steps: int
    parts: tuple[StepPart, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """Best and median of several runs; tokens are decoded or prefilled ones, as the name says.

    `outside_native_share` is a share of the steps, `between_steps_share` of all the time.
    """

    name: str
    streams: int
    context_tokens: int
    tokens: int
    best_tokens_per_second: float
    median_tokens_per_second: float
    outside_native_share: float
    outside_native_microseconds_per_step: float
    between_steps_share: float
    fastest: Run


class Timer:
    """What an engine's steps take between two readings, with a profile if one is wanted."""

    def __init__(self, llm: LLM, profile: bool):
        self._metrics = llm.assembly.engine.metrics
        model = llm.assembly.model
        self._profiled = model if profile and isinstance(model, Profiled) else None
        if self._profiled is not None:
            self._profiled.enable_profile()
        self._native = self._metrics.native_seconds.value
        self._step_seconds = self._metrics.step_seconds.total
        self._steps = self._metrics.steps.value
        self._began = time.perf_counter()

    def read(self, tokens: int) -> Run:
        return Run(
            tokens,
            time.perf_counter() - self._began,
            self._metrics.step_seconds.total - self._step_seconds,
            self._metrics.native_seconds.value - self._native,
            int(self._metrics.steps.value - self._steps),
            () if self._profiled is None else self._profiled.profile(),
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


def decode(
    llm: LLM, streams: int, context: int, new_tokens: int, salt: int, *, profile: bool = False
) -> Run:
    """Steps of the whole batch, from the first token of the last stream on.

    Streams that began early go on until the last has begun, so each may have many more tokens.
    """
    most = min(llm.context_tokens - context, 16 * new_tokens)
    handles = [submit(llm, context, salt * 1000 + number, most) for number in range(streams)]

    def decoded() -> list[int]:
        return [handle.answers[0].token_count for handle in handles]

    while not all(decoded()):
        llm.client.pump()
    before = sum(decoded())
    timer = Timer(llm, profile)
    while max(decoded()) < most and sum(decoded()) < before + streams * new_tokens:
        llm.client.pump()
    run = timer.read(sum(decoded()) - before)
    for handle in handles:
        llm.client.cancel(handle)
    llm.client.pump()
    return run


def prefill(llm: LLM, length: int, salt: int, *, profile: bool = False) -> Run:
    handle = submit(llm, length, salt * 1000, 1)
    timer = Timer(llm, profile)
    while not handle.done:
        llm.client.pump()
    return timer.read(length)


def summary(name: str, streams: int, context: int, runs: Sequence[Run]) -> Measurement:
    rates = [item.tokens / item.seconds for item in runs]
    seconds = sum(item.seconds for item in runs)
    step_seconds = sum(item.step_seconds for item in runs)
    native_seconds = sum(item.native_seconds for item in runs)
    steps = sum(item.steps for item in runs)
    return Measurement(
        name=name,
        streams=streams,
        context_tokens=context,
        tokens=runs[0].tokens,
        best_tokens_per_second=max(rates),
        median_tokens_per_second=statistics.median(rates),
        outside_native_share=1 - native_seconds / step_seconds,
        outside_native_microseconds_per_step=(step_seconds - native_seconds) / max(steps, 1) * 1e6,
        between_steps_share=1 - step_seconds / seconds,
        fastest=max(runs, key=lambda item: item.tokens / item.seconds),
    )


def show_profile(run: Run) -> None:
    for line in profile_lines(
        run.parts,
        steps=run.steps,
        step_seconds=run.step_seconds,
        native_seconds=run.native_seconds,
    ):
        print(line)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 32], help="decode at once")
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 2000], help="tokens")
    parser.add_argument("--profile", action="store_true", help="also show where the time went")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    settings = load_settings(flags=options.set).settings
    with LLM(options.model, settings=settings) as llm:
        decoding = partial(decode, llm, profile=options.profile)
        prefilling = partial(prefill, llm, profile=options.profile)
        cases: list[tuple[str, int, int, Callable[[int], Run]]] = [
            *(
                ("decode", streams, 256, partial(decoding, streams, 256, options.new_tokens))
                for streams in options.streams
            ),
            *(("prefill", 1, length, partial(prefilling, length)) for length in options.prompts),
        ]
        decode(llm, 1, 16, 8, 99)
        # Every run has a salt of its own, so that none finds another's prefix.
        salts = itertools.count(100)
        results = []
        with tqdm(total=len(cases) * options.repeats, unit="run", file=sys.stderr) as bar:
            for name, streams, context, run in cases:
                runs = []
                for _ in range(options.repeats):
                    runs.append(run(next(salts)))
                    bar.update(1)
                results.append(summary(name, streams, context, runs))
    print(f"{options.model}, {platform.processor() or platform.machine()}")
    columns = ("best tok/s", " median tok/s", " outside native", " us/step", " between steps")
    print(f"{'':8} streams context  {' '.join(columns)}")
    for item in results:
        print(
            f"{item.name:8} {item.streams:7} {item.context_tokens:7}"
            f" {item.best_tokens_per_second:11.1f} {item.median_tokens_per_second:13.1f}"
            f" {item.outside_native_share:14.1%}"
            f" {item.outside_native_microseconds_per_step:8.0f}"
            f" {item.between_steps_share:14.1%}"
        )
    for item in results if options.profile else ():
        print(f"\n{item.name}, {item.streams} streams, {item.context_tokens} tokens: fastest run")
        show_profile(item.fastest)
    if options.json:
        figures = {"model": options.model, "results": [asdict(item) for item in results]}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
