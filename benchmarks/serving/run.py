"""The command line of the load generator."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.serving.connection import Target
from benchmarks.serving.load import LOADS, Lengths, Load, Timetable
from benchmarks.serving.measure import (
    ROUTES,
    InterruptedEarly,
    Measurement,
    MeasurementError,
    Options,
    measure,
)
from benchmarks.serving.pace import Record
from benchmarks.serving.processes import StartError, octavo_server
from benchmarks.serving.report import machine, record_tree, table
from tqdm import tqdm

EXIT_FAILED = 1
EXIT_MISUSED = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """0 if every request had a whole answer."""
    options = _parser().parse_args(arguments)
    try:
        load, request_options = load_of(options), options_of(options)
        given = None if options.serve else Target.parse(options.url, options.api_key)
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_MISUSED
    try:
        with nullcontext(given) if given else _served(options) as target:
            measurement = run(target, load, request_options)
    except (MeasurementError, StartError) as error:
        print(error, file=sys.stderr)
        return EXIT_INTERRUPTED if isinstance(error, InterruptedEarly) else EXIT_FAILED
    print(f"{measurement.model} at {target.url}, route {request_options.route}, {load}")
    print(table(measurement.summary))
    if options.json:
        tree = tree_of(measurement, target, load, request_options)
        if options.records:
            tree["records"] = [record_tree(record) for record in measurement.records]
        options.json.write_text(json.dumps(tree, indent=2, default=str) + "\n")
    if measurement.summary.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if measurement.summary.failures else 0


def run(
    target: Target, load: Load | Timetable, options: Options, *, name: str = "requests"
) -> Measurement:
    """Measure with a progress bar. Ctrl-C stops sending and sums up what there is; a second one
    ends at once.

    Raises:
        MeasurementError: the server cannot be measured as asked.
    """

    async def measured() -> Measurement:
        stop = asyncio.Event()
        with tqdm(
            total=load.requests, unit="request", desc=name, file=sys.stderr, disable=None
        ) as bar:
            tokens = 0

            def show(record: Record) -> None:
                nonlocal tokens
                tokens += record.answer.output_tokens or 0
                bar.set_postfix_str(f"{tokens} tokens", refresh=False)
                bar.update()

            with _stops_on_interrupt(stop):
                return await measure(target, load, options, stop=stop, on_record=show)

    return asyncio.run(measured())


@contextmanager
def _stops_on_interrupt(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def _served(options: argparse.Namespace) -> Iterator[Target]:
    with octavo_server(options.serve, options.set) as server:
        yield Target.parse(server.url)


def load_of(options: argparse.Namespace) -> Load:
    """The named load, with what was given instead.

    Raises:
        ValueError: a value makes no sense.
    """
    load = replace(LOADS[options.load], seed=options.seed)
    if options.requests is not None:
        load = replace(load, requests=options.requests)
    if options.prompt is not None:
        load = replace(load, prompt=Lengths.parse(options.prompt))
    if options.output is not None:
        load = replace(load, output=Lengths.parse(options.output))
    if options.rate is not None:
        return replace(load, at_once=None, rate=options.rate)
    return load if options.at_once is None else replace(load, at_once=options.at_once)


def options_of(options: argparse.Namespace) -> Options:
    """How requests look.

    Raises:
        ValueError: a value makes no sense.
    """
    try:
        extra = json.loads(options.extra)
    except ValueError as error:
        raise ValueError(f"--extra is no JSON: {error}") from error
    if not isinstance(extra, dict):
        raise ValueError("--extra must be a JSON object")
    if options.prompts_as == "ids" and options.route == "chat":
        raise ValueError("the chat route takes text only: leave out --prompts-as ids")
    return Options(
        route=options.route,
        model=options.model,
        as_ids={"auto": None, "ids": True, "text": False}[options.prompts_as],
        exact_ends=not options.free_ends,
        streamed=not options.unstreamed,
        temperature=options.temperature,
        tokenizer_file=options.tokenizer,
        warmup_requests=options.warmup,
        timeout_seconds=options.timeout,
        extra=extra,
    )


def tree_of(
    measurement: Measurement, target: Target, load: Load, options: Options
) -> dict[str, object]:
    """All of a run but the single requests, for JSON. Seconds throughout."""
    return {
        "server": target.url,
        "model": measurement.model,
        "client": machine(),
        "load": {**asdict(load), "prompt": str(load.prompt), "output": str(load.output)},
        "options": {**asdict(options), "as_ids": measurement.as_ids},
        "summary": asdict(measurement.summary),
    }


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that say what is sent."""
    group = parser.add_argument_group("load")
    group.add_argument("--load", choices=sorted(LOADS), default="crowd", help="a load by name")
    group.add_argument("--requests", type=int)
    group.add_argument("--prompt", metavar="TOKENS", help="128, 32-512, lognormal:200,0.8,16-1024")
    group.add_argument("--output", metavar="TOKENS", help="likewise")
    pace = group.add_mutually_exclusive_group()
    pace.add_argument("--at-once", type=int, help="closed loop: clients that ask one by one")
    pace.add_argument("--rate", type=float, help="open loop: Poisson arrivals a second")
    group.add_argument("--seed", type=int, default=0)


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that say how a request looks."""
    group = parser.add_argument_group("requests")
    group.add_argument("--route", choices=sorted(ROUTES), default="completions")
    group.add_argument("--model", help="(default: the first that the server lists)")
    group.add_argument("--prompts-as", choices=("auto", "ids", "text"), default="auto")
    group.add_argument("--tokenizer", type=Path, help="tokenizer.json or GGUF file")
    group.add_argument("--free-ends", action="store_true", help="the model may end its answers")
    group.add_argument("--unstreamed", action="store_true")
    group.add_argument("--temperature", type=float, default=0.0)
    group.add_argument("--warmup", type=int, default=2, help="requests before, not counted")
    group.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    group.add_argument(
        "--extra", default="{}", metavar="JSON", help="more fields of each body; null takes one out"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("url", nargs="?", help="base URL of a server, with or without /v1")
    where.add_argument("--serve", metavar="MODEL", help="start `octavo serve MODEL` for the run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"))
    add_load_arguments(parser)
    add_request_arguments(parser)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--records", action="store_true", help="with every request in it")
    return parser
