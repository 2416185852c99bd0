"""`python -m benchmarks.memory PART [--json FILE] ...`; without arguments it names the parts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.memory import bookkeeping, idle, layouts, prefix, reclaim, sharing, trace
from benchmarks.memory.table import Rows, show

PARTS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], Callable[..., Rows]]] = {
    "layouts": (layouts.add_options, layouts.measure),
    "sharing": (sharing.add_options, sharing.measure),
    "trace": (trace.add_options, trace.measure),
    "prefix": (prefix.add_options, prefix.measure),
    "bookkeeping": (bookkeeping.add_options, bookkeeping.measure),
    "reclaim": (reclaim.add_options, reclaim.measure),
    "idle": (idle.add_options, idle.measure),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.memory")
    parts = parser.add_subparsers(dest="part", required=True)
    for name, (add_options, measure) in PARTS.items():
        module = sys.modules[measure.__module__]
        part = parts.add_parser(name, description=module.__doc__)
        part.add_argument("--json", type=Path, help="also write the figures to this file")
        add_options(part)
    options = parser.parse_args(arguments)
    rows = PARTS[options.part][1](options)
    print(show(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
