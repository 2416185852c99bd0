"""Growth of a step's time when a frontend keeps a core busy beside the engine.

python -m benchmarks.busy_frontend [MODEL] [--share 0.2] [--streams 8] [--json FILE]

A process of its own works for a share of every 10 ms, as a frontend does that turns tokens into
text and sockets; its rest is the engine's. Quiet and busy stretches alternate, so that a change of
the machine meets both. The engine's threads are as many as the cores, so a share of 1 takes a whole
core from them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from octavo import LLM, SamplingParams
from octavo.core.settings_load import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.engine.handle import Handle

_PERIOD_SECONDS = 0.01
_CONTEXT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Growth:
    """Median step times of quiet and busy stretches, and how much longer the busy ones are."""

    streams: int
    busy_share: float
    quiet_step_seconds: float
    busy_step_seconds: float

    @property
    def share(self) -> float:
        return self.busy_step_seconds / self.quiet_step_seconds - 1


def work(share: float) -> None:
    """Compute for `share` of every period, for ever."""
    due = time.perf_counter()
    while True:
        began = time.thread_time()
        while time.thread_time() - began < share * _PERIOD_SECONDS:
            sum(range(200))
        due = max(due + _PERIOD_SECONDS, time.perf_counter())
        time.sleep(max(0.0, due - time.perf_counter()))


@contextmanager
def busy(share: float, context: SpawnContext) -> Iterator[None]:
    """A frontend's work in another process while the block runs."""
    process = context.Process(target=work, args=(share,), daemon=True)
    process.start()
    try:
        time.sleep(1.0)  # a fresh interpreter imports first
        yield
    finally:
        process.terminate()
        process.join()


def start(llm: LLM, streams: int, new_tokens: int, salt: int) -> list[Handle]:
    """Requests past their prompts."""
    params = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
    handles = []
    for number in range(streams):
        text = f"{salt} {number} " + "The quick brown fox jumps over the dog. " * 40
        ids = llm.tokenizer.encode(text, add_special=False, parse_special=False)
        handles.append(llm.client.submit(llm.client.prepare(ids[:_CONTEXT_TOKENS], params)))
    while any(handle.answers[0].token_count == 0 for handle in handles):
        llm.client.pump()
    return handles


def step_seconds(llm: LLM, streams: int, steps: int, salt: int) -> list[float]:
    """Time of each decoding step of `streams` requests."""
    handles = start(llm, streams, steps + 16, salt)
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        llm.client.pump()
        times.append(time.perf_counter() - began)
    for handle in handles:
        llm.client.cancel(handle)
    llm.client.pump()
    return times


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy_frontend", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--share", type=float, default=0.2, help="of a core, 0 to 1")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60, help="a stretch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    if not 0.0 < options.share <= 1.0:
        parser.error("--share must be above 0 and at most 1")
    context = multiprocessing.get_context("spawn")
    quiet: list[float] = []
    loaded: list[float] = []
    with LLM(options.model, settings=load_settings(flags=options.set).settings) as llm:
        step_seconds(llm, options.streams, 10, 0)
        for repeat in tqdm(range(options.repeats), unit="pair", file=sys.stderr):
            quiet += step_seconds(llm, options.streams, options.steps, 2 * repeat + 1)
            with busy(options.share, context):
                loaded += step_seconds(llm, options.streams, options.steps, 2 * repeat + 2)
    found = Growth(
        options.streams, options.share, statistics.median(quiet), statistics.median(loaded)
    )
    print(
        f"{options.model}, {found.streams} streams: {found.quiet_step_seconds * 1e3:.2f} ms a step,"
        f" {found.busy_step_seconds * 1e3:.2f} ms with {found.busy_share:.0%} of a core busy:"
        f" {found.share:+.1%}"
    )
    if options.json:
        figures = {**asdict(found), "growth": found.share}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
