"""Choices of the linear kernels that change no bit: what they are, and the table of a machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from octavo.compute.kernels.cpu import _native
from octavo.core.catalog import octavo_home


@dataclass(frozen=True, slots=True)
class Knobs:
    """How a product with one weight is cut up; mirrors `LinearKnobs` of csrc/octavo/panel.h.

    `tile_rows`: most rows of a tile; `block_rows`: rows that share a pass over a panel;
    `spread_rows`: from so many rows on codes are unpacked once for all tiles; `chunks_per_thread`:
    parts the panels are shared out in; `prefetch_bytes`: how far a lone row reads ahead.
    """

    tile_rows: int = 8
    block_rows: int = 96
    spread_rows: int = 24
    chunks_per_thread: int = 8
    prefetch_bytes: int = 2048


DEFAULT = Knobs()

Tuning = Mapping[str, Knobs]
"""Knobs by shape, see `shape_key`; shapes that are missing have the default."""


def shape_key(shape: Sequence[int], stored: str) -> str:
    """Name of a weight's shape [channels, width] and stored format in the table."""
    return f"{'x'.join(map(str, shape))} {stored}"


def processor_name() -> str:
    """The processor as the system names it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    name = found.group(1).strip() if found else platform.processor()
    return name or platform.machine()


def kernel_digest() -> str:
    """Digest of the native module: other kernels have other best choices."""
    return hashlib.blake2b(Path(_native.__file__).read_bytes(), digest_size=16).hexdigest()


_DAMAGE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)


def tuning_path(tier: str, threads: int, *, folder: Path | None = None) -> Path:
    """File with the table of this processor, instruction set, thread count and build."""
    facts = "\n".join((processor_name(), kernel_digest(), tier, str(threads)))
    name = hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()
    return (folder or octavo_home() / "tuning") / f"{name}.json"


def read_tuning(path: Path) -> Tuning:
    """The table in a file; empty if there is none or it is damaged, for it only costs speed."""
    names = {field.name for field in fields(Knobs)}
    try:
        shapes = json.loads(path.read_text(encoding="utf-8"))["shapes"]
        table = {
            key: Knobs(**{name: int(value) for name, value in knobs.items() if name in names})
            for key, knobs in shapes.items()
        }
        valid = all(_native.knobs_are_valid(*values(knobs)) for knobs in table.values())
    except _DAMAGE:
        return {}
    return table if valid else {}


def write_tuning(path: Path, tuning: Tuning, *, tier: str, threads: int) -> None:
    """Replace the file as a whole.

    Raises:
        OSError: it cannot be written.
    """
    content = {
        "processor": processor_name(),
        "tier": tier,
        "threads": threads,
        "shapes": {key: asdict(knobs) for key, knobs in sorted(tuning.items())},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def values(knobs: Knobs) -> tuple[int, int, int, int, int]:
    """In the order native code takes them."""
    return (
        knobs.tile_rows,
        knobs.block_rows,
        knobs.spread_rows,
        knobs.chunks_per_thread,
        knobs.prefetch_bytes,
    )
