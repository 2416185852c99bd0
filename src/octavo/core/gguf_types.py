"""The element types of tensors in a GGUF file: their ids, names and block sizes.

A tensor's rows are cut into blocks of `block_elements` values that share scales; a block takes
`block_bytes`. Ids and sizes are those of the ggml format.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class GgmlType(IntEnum):
    """Element types that Octavo reads; the value is the id in the file."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30


@dataclass(frozen=True, slots=True)
class BlockSize:
    """Values in one block, and its bytes."""

    block_elements: int
    block_bytes: int


BLOCK_SIZES: dict[GgmlType, BlockSize] = {
    GgmlType.F32: BlockSize(1, 4),
    GgmlType.F16: BlockSize(1, 2),
    GgmlType.BF16: BlockSize(1, 2),
    GgmlType.Q4_0: BlockSize(32, 18),
    GgmlType.Q4_1: BlockSize(32, 20),
    GgmlType.Q5_0: BlockSize(32, 22),
    GgmlType.Q5_1: BlockSize(32, 24),
    GgmlType.Q8_0: BlockSize(32, 34),
    GgmlType.Q2_K: BlockSize(256, 84),
    GgmlType.Q3_K: BlockSize(256, 110),
    GgmlType.Q4_K: BlockSize(256, 144),
    GgmlType.Q5_K: BlockSize(256, 176),
    GgmlType.Q6_K: BlockSize(256, 210),
    GgmlType.IQ4_NL: BlockSize(32, 18),
    GgmlType.IQ4_XS: BlockSize(256, 136),
}

OTHER_TYPE_NAMES: dict[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""Types of the format that Octavo does not read, for the message that refuses them."""


def row_bytes(ggml_type: GgmlType, elements: int) -> int:
    """Bytes of one row.

    Raises:
        ValueError: the width is not a whole number of blocks.
    """
    size = BLOCK_SIZES[ggml_type]
    blocks, rest = divmod(elements, size.block_elements)
    if rest:
        raise ValueError(
            f"{elements} values are not a multiple of the {size.block_elements} of a block"
        )
    return blocks * size.block_bytes
