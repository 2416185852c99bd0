"""What serving over HTTP costs: the frontend's CPU time a token, and the engine's loss to it.

python -m benchmarks.frontend_cost [MODEL] [--streams 32] [--json FILE] [--set key=value ...]

The same prompts, all at once, go through the server and through an engine in this process, in turn,
each opened afresh. Frontend, engine and load generator share the cores, as they do in use; what
the generator itself took is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.serving.answers import Answer, ask
from benchmarks.serving.connection import Target
from benchmarks.serving.load import Job
from benchmarks.serving.pace import Record, drive
from benchmarks.serving.processes import StartError, cpu_seconds, octavo_server
from benchmarks.serving.prompts import words
from benchmarks.serving.report import machine
from tqdm import tqdm

from octavo import LLM, SamplingParams
from octavo.core.errors import OctavoError
from octavo.core.settings import Settings
from octavo.core.settings_load import load_settings

_TIMEOUT_SECONDS = 600.0


class CostError(Exception):
    """A stream did not bring its tokens, so that there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Work:
    """`streams` prompts at once; each gets exactly `output_tokens`."""

    streams: int
    prompt_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        return self.streams * self.output_tokens

    def prompts(self, llm: LLM, seed: int) -> list[list[int]]:
        """Token ids that no other round's begin with."""
        found = []
        for number in range(self.streams):
            endless = words(seed, number)
            text = " ".join(next(endless) for _ in range(self.prompt_tokens * 2))
            ids = llm.tokenizer.encode(text, add_special=False, parse_special=False)
            found.append(ids[: self.prompt_tokens])
        return found


@dataclass(frozen=True, slots=True)
class Served:
    """One round through the server. `events`: pieces of text that came."""

    seconds: float
    events: int
    frontend_cpu_seconds: float
    engine_cpu_seconds: float
    client_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of the rounds."""

    streams: int
    prompt_tokens: int
    output_tokens: int
    rounds: int
    frontend_cpu_milliseconds_per_token: float
    engine_cpu_milliseconds_per_token: float
    client_cpu_milliseconds_per_token: float
    tokens_per_event: float
    served_tokens_per_second: float
    in_process_tokens_per_second: float
    loss: float
    """The part of the engine's tokens per second that is gone when it serves."""


def in_process(llm: LLM, prompts: Sequence[Sequence[int]], output_tokens: int) -> float:
    """Seconds from the first submission to the last token."""
    params = SamplingParams(
        max_tokens=output_tokens, min_tokens=output_tokens, temperature=0.0, ignore_eos=True
    )
    started = time.perf_counter()
    handles = [llm.client.submit(llm.client.prepare(list(prompt), params)) for prompt in prompts]
    while not all(handle.done for handle in handles):
        llm.client.pump()
    return time.perf_counter() - started


async def served(
    target: Target, processes: tuple[int, int], prompts: Sequence[list[int]], work: Work
) -> Served:
    """One round; `processes` are those of frontend and engine."""
    records: list[Record] = []

    async def send(job: Job) -> Answer:
        body = {
            "prompt": prompts[job.number],
            "max_tokens": work.output_tokens,
            "min_tokens": work.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return await ask(
            target,
            "completions",
            body,
            clock=time.perf_counter,
            timeout_seconds=_TIMEOUT_SECONDS,
        )

    jobs = [Job(each, work.prompt_tokens, work.output_tokens, 0.0) for each in range(work.streams)]
    before = [cpu_seconds(each) for each in processes]
    client_before = time.process_time()
    seconds = await drive(
        jobs,
        send,
        at_once=work.streams,
        clock=time.perf_counter,
        stop=asyncio.Event(),
        on_record=records.append,
    )
    client_seconds = time.process_time() - client_before
    frontend, engine = (
        cpu_seconds(each) - start for each, start in zip(processes, before, strict=True)
    )
    for record in records:
        answer = record.answer
        if answer.failure is not None or answer.output_tokens != work.output_tokens:
            raise CostError(f"a stream brought {answer.output_tokens} tokens: {answer.failure}")
    events = sum(len(record.answer.text_seconds) for record in records)
    return Served(seconds, events, frontend, engine, client_seconds)


def measure(model: str, settings: Settings, flags: Sequence[str], work: Work, rounds: int) -> Cost:
    """All rounds.

    Raises:
        CostError, StartError, OctavoError: there is nothing to measure.
    """
    alone_seconds: list[float] = []
    through_server: list[Served] = []
    with tqdm(total=2 * rounds, unit="run", file=sys.stderr, disable=None) as bar:
        for number in range(rounds):
            with LLM(model, settings=settings) as llm:
                prompts = work.prompts(llm, number)
                in_process(llm, work.prompts(llm, -1 - number)[:2], 4)
                alone_seconds.append(in_process(llm, prompts, work.output_tokens))
            bar.update()
            with octavo_server(model, flags) as server:
                (engine,) = server.children()
                target, processes = Target.parse(server.url), (server.process_id, engine)
                short = Work(1, work.prompt_tokens, 4)
                asyncio.run(served(target, processes, prompts[-1:], short))
                through_server.append(asyncio.run(served(target, processes, prompts, work)))
            bar.update()
    return cost_of(work, alone_seconds, through_server)


def cost_of(work: Work, alone_seconds: Sequence[float], rounds: Sequence[Served]) -> Cost:
    def median(value: Callable[[Served], float]) -> float:
        return statistics.median(map(value, rounds))

    alone = work.tokens / statistics.median(alone_seconds)
    through = work.tokens / median(lambda each: each.seconds)
    thousands = work.tokens / 1000
    return Cost(
        streams=work.streams,
        prompt_tokens=work.prompt_tokens,
        output_tokens=work.output_tokens,
        rounds=len(rounds),
        frontend_cpu_milliseconds_per_token=median(lambda each: each.frontend_cpu_seconds)
        / thousands,
        engine_cpu_milliseconds_per_token=median(lambda each: each.engine_cpu_seconds) / thousands,
        client_cpu_milliseconds_per_token=median(lambda each: each.client_cpu_seconds) / thousands,
        tokens_per_event=work.tokens / max(median(lambda each: each.events), 1),
        served_tokens_per_second=through,
        in_process_tokens_per_second=alone,
        loss=1 - through / alone,
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args(arguments)
    work = Work(options.streams, options.prompt_tokens, options.output_tokens)
    try:
        settings = load_settings(flags=options.set).settings
        cost = measure(options.model, settings, options.set, work, options.rounds)
    except (CostError, StartError, OctavoError) as error:
        print(error, file=sys.stderr)
        return 1
    for name, value in asdict(cost).items():
        shown = f"{value:.3f}" if isinstance(value, float) else value
        print(f"{name.replace('_', ' '):<36} {shown}")
    if options.json:
        tree = {"model": options.model, "machine": machine(), **asdict(cost)}
        options.json.write_text(json.dumps(tree, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
