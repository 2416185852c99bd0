"""The command line of the comparison with other engines."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import benchmarks.peers
from benchmarks.peers.candidates import Place, engines_of
from benchmarks.peers.engine import Engine, id_maker, prompts_of
from benchmarks.peers.environments import PEERS, InstallError, install
from benchmarks.peers.report import Report
from benchmarks.peers.rounds import OURS, PEER_LOADS, Run, alternate
from benchmarks.serving.load import Lengths, Load
from benchmarks.serving.measure import MeasurementError
from benchmarks.serving.processes import StartError
from benchmarks.serving.run import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_MISUSED

from octavo.compute.kernels.cpu.threads import threads_and_reason
from octavo.core.catalog import DEFAULT_MODEL, resolve_model
from octavo.core.errors import OctavoError

FOLDER = Path(".peers")
FIRST_PROMPT = Load(1, Lengths(32, 32), Lengths(1, 1), at_once=1, seed=-1)


def main(arguments: Sequence[str]) -> int:
    """0 if Octavo and at least one peer were measured and every request had a whole answer."""
    options = _parser().parse_args(arguments)
    try:
        names = names_of(options.peers)
        if options.install and not names:
            raise ValueError("say with --peers what to install")
        if options.rounds < 1 or options.threads < 1:
            raise ValueError("rounds and threads must be at least 1")
        environments = environments_of(options)
        loads = loads_of(options)
        model_file = resolve_model(options.model)
    except (ValueError, OctavoError) as error:
        print(error, file=sys.stderr)
        return EXIT_MISUSED
    if options.install:
        try:
            for name in names:
                install(PEERS[name], environments[name])
        except InstallError as error:
            print(error, file=sys.stderr)
            return EXIT_FAILED
    place = Place(
        model_file,
        environments,
        options.folder / "models",
        settings=tuple(options.set),
        openvino_step_tokens=options.openvino_step_tokens,
        vllm_model=options.vllm_model,
    )
    engines, skipped = engines_of(place, names or list(PEERS))
    for name, why in skipped.items():
        print(f"skipped: {name}: {why}", file=sys.stderr)
    if len(engines) == 1:
        print("there is no peer to compare with", file=sys.stderr)
        return EXIT_FAILED
    return _measure(options, loads, engines, skipped, model_file)


def _measure(
    options: argparse.Namespace,
    loads: Mapping[str, Load],
    engines: Sequence[Engine],
    skipped: dict[str, str],
    model_file: Path,
) -> int:
    (first_prompt,) = asyncio.run(prompts_of(id_maker(model_file), FIRST_PROMPT))
    runs: list[Run] = []
    status = 0
    try:
        for found in alternate(
            engines,
            loads,
            rounds=options.rounds,
            threads=options.threads,
            first_prompt=first_prompt,
        ):
            if isinstance(found, Run):
                runs.append(found)
                print(line_of(found), file=sys.stderr)
            else:
                skipped[found.engine] = found.why
                print(f"set aside: {found.engine}: {found.why}", file=sys.stderr)
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    except (MeasurementError, StartError) as error:
        print(error, file=sys.stderr)
        status = EXIT_FAILED
    report = Report(
        options.model, options.threads, options.rounds, loads, engines, skipped, tuple(runs)
    )
    print(report.text())
    for path, text in (
        (options.json, json.dumps(report.tree(), indent=2) + "\n"),
        (options.html, report.html()),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"written: {options.json}, {options.html}")
    measured = {run.engine for run in runs}
    whole = OURS in measured and len(measured) > 1
    failed = not whole or any(run.summary.failures for run in runs)
    return status or (EXIT_FAILED if failed else 0)


def line_of(run: Run) -> str:
    """What a run brought, while others go on."""
    rate, ttft = run.summary.output_tokens_per_second, run.summary.ttft
    first = "" if ttft is None else f", TTFT p50 {1000 * ttft.p50:.0f} ms"
    return (
        f"{run.load}, round {run.round + 1}, {run.engine}: {rate:.1f} output tokens/s{first}, "
        f"{run.peak_bytes / 1e6:.0f} MB, first token {run.start_seconds:.2f} s after its start"
    )


def names_of(text: str) -> list[str]:
    """Peers by name, apart by commas; none if nothing was said.

    Raises:
        ValueError: one is not known.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise ValueError(f"no peer {name!r}: there are {', '.join(PEERS)}")
    return names


def environments_of(options: argparse.Namespace) -> dict[str, Path]:
    """Where each peer is installed, or would be.

    Raises:
        ValueError: an assignment makes no sense.
    """
    found = {name: options.folder / name for name in PEERS}
    for assignment in options.environment:
        name, _, folder = assignment.partition("=")
        if name not in PEERS or not folder:
            raise ValueError(f"{assignment!r} is not one of {', '.join(PEERS)} and a folder")
        found[name] = Path(folder)
    return found


def loads_of(options: argparse.Namespace) -> dict[str, Load]:
    """The loads to run, by name.

    Raises:
        ValueError: there are no requests in them.
    """
    loads = {name: PEER_LOADS[name] for name in options.load or PEER_LOADS}
    if options.requests is None:
        return loads
    return {name: replace(load, requests=options.requests) for name, load in loads.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=benchmarks.peers.__doc__
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="name or GGUF file")
    parser.add_argument("--peers", default="", help="names with commas between (default: all)")
    parser.add_argument("--install", action="store_true", help="make what --peers lacks first")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where environments are")
    parser.add_argument("--environment", action="append", default=[], metavar="PEER=FOLDER")
    parser.add_argument("--openvino-step-tokens", type=int, help="(default: its own, 256)")
    parser.add_argument("--vllm-model", type=Path, metavar="FOLDER", help="with safetensors")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of octavo")
    parser.add_argument(
        "--threads",
        type=int,
        default=threads_and_reason()[0],
        help="of each engine (default: the physical cores this process may use)",
    )
    parser.add_argument(
        "--load", action="append", choices=sorted(PEER_LOADS), help="(default: all)"
    )
    parser.add_argument("--requests", type=int, help="of each load, instead of its own number")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("reports/peers.json"))
    parser.add_argument("--html", type=Path, default=Path("reports/peers.html"))
    return parser
