"""Values of the 32-element block formats and of plain floats.

Every function takes blocks [n, block bytes] uint8 and returns float32 [n, block elements]. The
order of float operations is that of ggml, so the results are equal to it by bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

NONLINEAR_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)
"""What the 16 codes of IQ4_NL and IQ4_XS stand for."""


def half(field: Bytes) -> Floats:
    """Two bytes a block, read as float16: [n, 2] to [n, 1]."""
    return np.ascontiguousarray(field).view("<f2").astype(np.float32)


def planes(packed: Bytes, bits: int) -> Bytes:
    """Split the last axis' bytes into codes of `bits`: [..., w] to [..., 8 / bits, w].

    Plane p holds the bits from p * bits up, which is how ggml packs runs of w codes.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)


def fifth_bits(packed: Bytes) -> Bytes:
    """The top bits of 32 codes: [n, 4] to [n, 32], already in place 4."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def q4_0(blocks: Bytes) -> Floats:
    codes = planes(blocks[:, 2:], 4).reshape(-1, 32)
    return half(blocks[:, :2]) * (codes.astype(np.float32) - np.float32(8))


def q4_1(blocks: Bytes) -> Floats:
    codes = planes(blocks[:, 4:], 4).reshape(-1, 32)
    return half(blocks[:, :2]) * codes.astype(np.float32) + half(blocks[:, 2:4])


def q5_0(blocks: Bytes) -> Floats:
    codes = planes(blocks[:, 6:], 4).reshape(-1, 32) | fifth_bits(blocks[:, 2:6])
    return half(blocks[:, :2]) * (codes.astype(np.float32) - np.float32(16))


def q5_1(blocks: Bytes) -> Floats:
    codes = planes(blocks[:, 8:], 4).reshape(-1, 32) | fifth_bits(blocks[:, 4:8])
    return half(blocks[:, :2]) * codes.astype(np.float32) + half(blocks[:, 2:4])


def q8_0(blocks: Bytes) -> Floats:
    return half(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def iq4_nl(blocks: Bytes) -> Floats:
    return half(blocks[:, :2]) * NONLINEAR_VALUES[planes(blocks[:, 2:], 4).reshape(-1, 32)]
