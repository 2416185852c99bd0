"""Stored tensors to float32, equal to ggml's values by bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.compute.quant import blocks, superblocks
from octavo.core.gguf_types import BLOCK_SIZES, GgmlType, row_bytes

_CHUNK_ELEMENTS = 2**20
"""Bounds the temporaries of a conversion to a few megabytes whatever the tensor's size."""

_FORMATS: dict[GgmlType, Callable[[blocks.Bytes], blocks.Floats]] = {
    GgmlType.F32: blocks.f32,
    GgmlType.F16: blocks.f16,
    GgmlType.BF16: blocks.bf16,
    GgmlType.Q4_0: blocks.q4_0,
    GgmlType.Q4_1: blocks.q4_1,
    GgmlType.Q5_0: blocks.q5_0,
    GgmlType.Q5_1: blocks.q5_1,
    GgmlType.Q8_0: blocks.q8_0,
    GgmlType.Q2_K: superblocks.q2_k,
    GgmlType.Q3_K: superblocks.q3_k,
    GgmlType.Q4_K: superblocks.q4_k,
    GgmlType.Q5_K: superblocks.q5_k,
    GgmlType.Q6_K: superblocks.q6_k,
    GgmlType.IQ4_NL: blocks.iq4_nl,
    GgmlType.IQ4_XS: superblocks.iq4_xs,
}


def dequantise(
    data: NDArray[np.uint8], ggml_type: int, shape: Sequence[int]
) -> NDArray[np.float32]:
    """Values of a tensor [shape]; `data` are its bytes, a row's blocks one after the other.

    Raises:
        ValueError: the bytes do not fit the shape and format.
    """
    form = GgmlType(ggml_type)
    size = BLOCK_SIZES[form]
    expected_bytes = math.prod(shape[:-1]) * row_bytes(form, shape[-1])
    if data.size != expected_bytes:
        raise ValueError(
            f"{form.name} {tuple(shape)} takes {expected_bytes} bytes, not {data.size}"
        )
    stored = data.reshape(-1, size.block_bytes)
    values = np.empty((len(stored), size.block_elements), dtype=np.float32)
    step = max(1, _CHUNK_ELEMENTS // size.block_elements)
    # Scales of a damaged tensor may be infinite; that shows in the results, not as a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(stored), step):
            part = np.ascontiguousarray(stored[start : start + step])
            values[start : start + step] = _FORMATS[form](part)
    return values.reshape(tuple(shape))


def dequantise_rows(
    data: NDArray[np.uint8], ggml_type: int, shape: Sequence[int], rows: NDArray[np.integer]
) -> NDArray[np.float32]:
    """Values of some rows of a matrix: [len(rows), width], in the order asked for."""
    per_row = data.reshape(shape[0], -1)
    chosen = np.ascontiguousarray(per_row[rows]).reshape(-1)
    return dequantise(chosen, ggml_type, (len(rows), shape[1]))
