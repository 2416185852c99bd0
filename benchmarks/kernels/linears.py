"""Matrix products of the models' shapes, at 1 to 256 rows, over weights that lie in no cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from benchmarks.kernels.cases import Case, Work
from numpy.typing import NDArray

from octavo.compute.kernels.cpu import _native
from octavo.core.gguf_types import BLOCK_SIZES, GgmlType

ROWS = (1, 4, 16, 64, 256)
LARGE_WEIGHTS = 1 << 20
"""From so many weights on a product with one row should keep the memory busy."""

_MOST_HEAD_OPERATIONS = 20e9
_SCALE_BYTES = {
    GgmlType.Q4_0: (0,),
    GgmlType.Q4_1: (0, 2),
    GgmlType.Q5_0: (0,),
    GgmlType.Q8_0: (0,),
    GgmlType.Q4_K: (0, 2),
    GgmlType.Q6_K: (208,),
}
"""Where the float16 numbers of a block stand: random bytes there could be infinite."""

_NIBBLES = {GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q4_K}


@dataclass(frozen=True, slots=True)
class Shape:
    """A weight matrix [channels, width] as a model file stores it."""

    model: str
    name: str
    channels: int
    width: int
    stored: GgmlType


SHAPES = (
    Shape("smollm2-135m", "q, o", 576, 576, GgmlType.Q4_1),
    Shape("smollm2-135m", "k, v", 192, 576, GgmlType.Q4_1),
    Shape("smollm2-135m", "gate, up", 1536, 576, GgmlType.Q4_1),
    Shape("smollm2-135m", "down", 576, 1536, GgmlType.Q4_1),
    Shape("smollm2-135m", "head", 49152, 576, GgmlType.Q8_0),
    Shape("qwen2.5-coder-0.5b", "q, o", 896, 896, GgmlType.Q5_0),
    Shape("qwen2.5-coder-0.5b", "gate, up", 4864, 896, GgmlType.Q5_0),
    Shape("qwen2.5-coder-0.5b", "down", 896, 4864, GgmlType.Q4_K),
    Shape("qwen2.5-coder-0.5b", "down", 896, 4864, GgmlType.Q6_K),
    Shape("qwen2.5-coder-0.5b", "head", 151936, 896, GgmlType.Q8_0),
    Shape("gemma-3-270m", "q", 1024, 640, GgmlType.Q5_0),
    Shape("gemma-3-270m", "o", 640, 1024, GgmlType.Q4_K),
    Shape("gemma-3-270m", "gate, up", 2048, 640, GgmlType.Q5_0),
    Shape("gemma-3-270m", "down", 640, 2048, GgmlType.Q6_K),
    Shape("gemma-3-270m", "head", 262144, 640, GgmlType.Q8_0),
    Shape("llama-3.2-1b", "q, o", 2048, 2048, GgmlType.Q4_0),
    Shape("llama-3.2-1b", "gate, up", 8192, 2048, GgmlType.Q4_0),
    Shape("llama-3.2-1b", "gate, up", 8192, 2048, GgmlType.Q8_0),
    Shape("llama-3.2-1b", "down", 2048, 8192, GgmlType.Q4_0),
)


def random_rows(shape: Shape, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Random blocks whose scales are small numbers."""
    size = BLOCK_SIZES[shape.stored]
    blocks = rng.integers(
        0,
        256,
        (shape.channels * shape.width // size.block_elements, size.block_bytes),
        dtype=np.uint8,
    )
    scale = np.frombuffer(np.float16(0.01).tobytes(), dtype=np.uint8)
    for at in _SCALE_BYTES[shape.stored]:
        blocks[:, at : at + 2] = scale
    return blocks.reshape(-1)


def aim(shape: Shape, rows: int) -> float | None:
    """Share of the limit that a product should reach, where the project has set one."""
    if rows == 1 and shape.channels * shape.width >= LARGE_WEIGHTS:
        return 0.8
    if rows >= 64:
        return 0.45 if shape.width == 576 else 0.5
    return None


def cases(tier: str, threads: int, cold_bytes: int, rows: tuple[int, ...]) -> Iterator[Case]:
    """One case a shape and number of rows; `cold_bytes` of weights take turns."""
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        stored = random_rows(shape, rng)
        copies = max(1, -(-cold_bytes // len(stored)))
        timer = _native.LinearTimer(
            tier, threads, stored, int(shape.stored), shape.channels, shape.width, copies
        )
        for count in rows:
            operations = 2.0 * count * shape.channels * shape.width
            if shape.name == "head" and operations > _MOST_HEAD_OPERATIONS:
                continue
            x = rng.standard_normal((count, shape.width), dtype=np.float32)
            kind = "nibble_products" if shape.stored in _NIBBLES else "byte_products"
            yield Case(
                group="linear",
                name=f"{shape.model} {shape.name} {shape.channels}x{shape.width} "
                f"{shape.stored.name} M={count}",
                work=Work(timer.bytes, operations, kind),
                rotation=copies if count < 64 else 1,
                run=lambda calls, x=x, timer=timer: timer.run(x, calls),
                aim=aim(shape, count),
            )
