"""Values of the 256-element formats: K-quants and IQ4_XS.

A superblock's float16 scale multiplies small integer scales of its 8 or 16 groups. Every function
takes blocks [n, block bytes] uint8 and returns float32 [n, 256], equal to ggml by bits.
"""

from __future__ import annotations

import numpy as np

from octavo.compute.quant.blocks import NONLINEAR_VALUES, Bytes, Floats, half, planes


def _by_groups(scales: Floats, codes: Floats, minimums: Floats | None = None) -> Floats:
    """scale * code (- minimum), with scales and minimums [n, groups] and codes [n, 256]."""
    groups = scales.shape[1]
    values = scales[:, :, None] * codes.reshape(-1, groups, 256 // groups)
    if minimums is not None:
        values -= minimums[:, :, None]
    return values.reshape(-1, 256)


def _scales_and_minimums(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and eight 6-bit minimums out of 12 bytes (Q4_K and Q5_K).

    The first four of each lie in the low bits of bytes 0-3 and 4-7; the last four have their low
    nibbles in bytes 8-11 and their two high bits on top of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    low, top = np.uint8(63), np.uint8(0x30)
    scales = [first & low, (third & np.uint8(15)) | ((first >> 2) & top)]
    minimums = [second & low, (third >> 4) | ((second >> 2) & top)]
    return (
        np.concatenate(scales, axis=1).astype(np.float32),
        np.concatenate(minimums, axis=1).astype(np.float32),
    )


def q2_k(blocks: Bytes) -> Floats:
    scales, codes = blocks[:, :16], planes(blocks[:, 16:80].reshape(-1, 2, 32), 2)
    steps = half(blocks[:, 80:82]) * (scales & np.uint8(15)).astype(np.float32)
    minimums = half(blocks[:, 82:84]) * (scales >> 4).astype(np.float32)
    return _by_groups(steps, codes.reshape(-1, 256).astype(np.float32), minimums)


def q3_k(blocks: Bytes) -> Floats:
    top_bits = planes(blocks[:, :32], 1).reshape(-1, 256)
    low_bits = planes(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 256)
    codes = (low_bits | (top_bits << 2)).astype(np.float32) - np.float32(4)
    low_scales = planes(blocks[:, 96:104], 4).reshape(-1, 16)
    high_scales = planes(blocks[:, 104:108], 2).reshape(-1, 16)
    scales = (low_scales | (high_scales << 4)).astype(np.float32) - np.float32(32)
    return _by_groups(half(blocks[:, 108:110]) * scales, codes)


def q4_k(blocks: Bytes) -> Floats:
    scales, minimums = _scales_and_minimums(blocks[:, 4:16])
    codes = planes(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 256)
    steps, offsets = half(blocks[:, :2]) * scales, half(blocks[:, 2:4]) * minimums
    return _by_groups(steps, codes.astype(np.float32), offsets)


def q5_k(blocks: Bytes) -> Floats:
    scales, minimums = _scales_and_minimums(blocks[:, 4:16])
    top_bits = planes(blocks[:, 16:48], 1).reshape(-1, 256)
    low_bits = planes(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 256)
    codes = (low_bits | (top_bits << 4)).astype(np.float32)
    return _by_groups(half(blocks[:, :2]) * scales, codes, half(blocks[:, 2:4]) * minimums)


def q6_k(blocks: Bytes) -> Floats:
    low_bits = planes(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 256)
    top_bits = planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 256)
    codes = (low_bits | (top_bits << 4)).astype(np.float32) - np.float32(32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _by_groups(half(blocks[:, 208:210]) * scales, codes)


def iq4_xs(blocks: Bytes) -> Floats:
    high_bits = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")
    high = ((high_bits >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)).astype(np.uint8)
    # Groups 2i and 2i + 1 share byte i of the low nibbles.
    low = planes(blocks[:, 4:8], 4).transpose(0, 2, 1).reshape(-1, 8)
    scales = (low | (high << 4)).astype(np.float32) - np.float32(32)
    codes = planes(blocks[:, 8:].reshape(-1, 8, 16), 4).reshape(-1, 256)
    return _by_groups(half(blocks[:, :2]) * scales, NONLINEAR_VALUES[codes])
