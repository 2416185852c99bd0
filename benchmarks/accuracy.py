"""Agreement with transformers float32 by model, activations and text, for both interpreters.

python benchmarks/accuracy.py [--model NAME] [--numpy-tokens N] [--scalar-tokens N] [--json FILE]

Needs the test extra and the shared data (OCTAVO_DATA).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from octavo.compute.batch import StepModel
from octavo.core.catalog import KNOWN_MODELS, models_dir, pull

REPOSITORY = Path(__file__).resolve().parent.parent
# The oracle belongs to the tests, which hold the same figures to their bounds.
sys.path.insert(0, str(REPOSITORY / "tests"))

import oracle as oracles  # noqa: E402

MODES = (("fp32", "fp16"), ("int8x2", "fp16"), ("int8", "fp16"), ("int8x2", "int8"))
"""Activations and KV format."""


@dataclass(frozen=True)
class Row:
    """One line of the table; `mean_kl` in nats."""

    model: str
    interpreter: str
    activations: str
    kv_format: str
    text: str
    tokens: int
    top1: float
    mean_kl: float


def measure(name: str, data: Path, numpy_tokens: int, scalar_tokens: int) -> Iterator[Row]:
    """All rows of one model; the scalar tier, which is slow, on the default model only."""
    path = pull(name, folder=models_dir())
    oracle = oracles.consult(path, oracles.sample_texts(path, data))
    models: dict[str, StepModel] = {" ".join(mode): oracles.open_cpu(path, *mode) for mode in MODES}
    for text in oracle.texts:
        for key, found in oracles.compare(oracle, models, text).items():
            yield Row(name, "cpu", *key.split(), text, **asdict(found))
    for model in models.values():
        model.close()
    if numpy_tokens:
        numpy = oracles.open_numpy(path)
        found = oracles.compare(oracle, {"numpy": numpy}, "english", numpy_tokens)["numpy"]
        yield Row(name, "reference", "fp32", "fp16", "english", **asdict(found))
        numpy.close()
    if scalar_tokens and name == "smollm2-135m":
        for mode in MODES:
            scalar = oracles.open_cpu(path, *mode, tier="scalar")
            found = oracles.compare(oracle, {"scalar": scalar}, "english", scalar_tokens)["scalar"]
            yield Row(name, "cpu, scalar tier", *mode, "english", **asdict(found))
            scalar.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=sorted(KNOWN_MODELS))
    parser.add_argument("--numpy-tokens", type=int, default=576)
    parser.add_argument("--scalar-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    data = Path(os.environ.get("OCTAVO_DATA", REPOSITORY.parent / "shared" / "data"))
    started = time.monotonic()
    rows: list[Row] = []
    for name in tqdm(options.model or sorted(KNOWN_MODELS), unit="model", disable=None):
        rows += measure(name, data, options.numpy_tokens, options.scalar_tokens)
    print("| model | interpreter | activations | KV | text | tokens | top-1 | mean KL |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.model} | {row.interpreter} | {row.activations} | {row.kv_format} "
            f"| {row.text} | {row.tokens} | {row.top1:.2%} | {row.mean_kl:.1e} |"
        )
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
