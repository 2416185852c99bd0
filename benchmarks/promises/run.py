"""The command line: one verb a promise."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.promises.batching import measure_batching
from benchmarks.promises.mixed import measure_long_prompt, measure_mix
from benchmarks.promises.overload import measure_overload
from benchmarks.promises.reality import measure_reality
from benchmarks.promises.sides import add_peer_arguments, add_side_arguments
from benchmarks.serving.measure import InterruptedEarly, MeasurementError
from benchmarks.serving.processes import StartError
from benchmarks.serving.report import machine
from benchmarks.serving.run import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_MISUSED

from octavo.core.errors import OctavoError


def main(arguments: Sequence[str]) -> int:
    """0 if there is a result, whatever it says."""
    options = _parser().parse_args(arguments)
    try:
        found = options.measure(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_MISUSED
    except (MeasurementError, StartError, OctavoError) as error:
        print(error, file=sys.stderr)
        return EXIT_INTERRUPTED if isinstance(error, InterruptedEarly) else EXIT_FAILED
    if options.json:
        tree = {"machine": machine(), "arguments": list(arguments), **found}
        options.json.write_text(json.dumps(tree, indent=2, default=str) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promises", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)

    def verb(name: str, about: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=about, description=about)
        made.add_argument("--json", type=Path, help="also write the numbers to this file")
        made.add_argument("--seed", type=int, default=0)
        add_side_arguments(made)
        return made

    one = verb("mix", "batch, standard and realtime requests that come one after another")
    add_peer_arguments(one)
    one.set_defaults(measure=measure_mix)

    one = verb("long-prompt", "a long batch prompt while realtime answers stream")
    add_peer_arguments(one)
    one.add_argument("--streams", type=int, default=8)
    one.add_argument("--prompt-tokens", type=int, default=4000)
    one.set_defaults(measure=measure_long_prompt)

    one = verb("overload", "several times the capacity, which is looked for first")
    one.add_argument("--times", type=float, default=3.0, help="of the capacity")
    one.add_argument("--seconds", type=float, default=60.0)
    one.add_argument("--capacity", type=float, help="requests a second (default: find out)")
    one.add_argument("--highest-rate", type=float, default=8.0, help="surely above the capacity")
    one.add_argument("--probes", type=int, default=5)
    one.add_argument("--probe-seconds", type=float, default=20.0)
    one.set_defaults(measure=measure_overload)

    one = verb("batching", "policies: continuous, dynamic, static, static with padding")
    one.add_argument("--rows", type=int, default=32, help="requests at once, and in a batch")
    one.add_argument("--load", type=float, default=0.7, help="of the open loop")
    one.set_defaults(measure=measure_batching)

    one = verb("reality", "the simulator beside the server")
    one.add_argument("--profile", type=Path, help="of this machine; else the server learns one")
    one.add_argument("--runs", type=int, default=3)
    one.set_defaults(measure=measure_reality)
    return parser
