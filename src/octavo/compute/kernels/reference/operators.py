"""Every operator of a program as plain numpy; the definition that other back ends are tested by.

Arrays are float32 or float64, as the caller chose; x is [tokens, width] throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.compute.program import Attention, Rope, RopeStyle

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]


def rms_norm(x: Floats, weight: Floats, eps: float, heads: int = 1) -> Floats:
    """Root-mean-square norm (Zhang and Sennrich 2019), per head where `heads` > 1."""
    parts = x.reshape(len(x), heads, -1)
    mean_square = np.mean(parts * parts, axis=-1, keepdims=True)
    normed: Floats = parts / np.sqrt(mean_square + x.dtype.type(eps)) * weight
    return normed.reshape(x.shape)


def linear(x: Floats, weight: Floats, bias: Floats | None = None) -> Floats:
    """x · weightᵀ (+ bias)."""
    y: Floats = x @ weight.T
    return y if bias is None else y + bias


def rope(operator: Rope, x: Floats, positions: Ints, factors: Floats | None = None) -> Floats:
    """Rotate pairs of each head by angles that grow with the position; angles in float64."""
    pairs = operator.dims // 2
    exponents = -2.0 * np.arange(pairs) / operator.dims
    frequencies = operator.base**exponents * operator.scale
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    angles = positions.astype(np.float64)[:, None, None] * frequencies
    cosine, sine = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    turned = x.reshape(len(x), operator.heads, operator.head_dim).copy()
    if operator.style is RopeStyle.INTERLEAVED:
        first, second = slice(0, operator.dims, 2), slice(1, operator.dims, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, operator.dims)
    a, b = turned[..., first].copy(), turned[..., second].copy()
    turned[..., first] = a * cosine - b * sine
    turned[..., second] = a * sine + b * cosine
    return turned.reshape(x.shape)


def attention(operator: Attention, q: Floats, k: Floats, v: Floats, start: int) -> Floats:
    """Attention of one sequence's new tokens, which stand at `start` and after.

    q [tokens, heads * head_dim]; k, v [start + tokens, kv_heads, head_dim], as stored.
    """
    tokens, shared = len(q), operator.heads // operator.kv_heads
    queries = q.reshape(tokens, operator.kv_heads, shared, operator.head_dim)
    own = np.arange(start, start + tokens)[:, None]
    others = np.arange(len(k))[None, :]
    hidden = others > own
    if operator.window:
        hidden |= others <= own - operator.window
    scores = np.einsum("thgd,phd->hgtp", queries, k, optimize=True)
    scores = soft_cap(scores * q.dtype.type(operator.scale), operator.softcap)
    weights = softmax(np.where(hidden, q.dtype.type(-np.inf), scores))
    out: Floats = np.einsum("hgtp,phd->thgd", weights, v, optimize=True)
    return out.reshape(q.shape)


def quantise_heads(x: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Codes within ±127 and a float32 scale for each last axis of x, as an int8 cache stores them.

    A vector with a NaN or infinity has zero codes and scale NaN; one below 2^-100 counts as zero.
    """
    values = x.astype(np.float32)
    finite = np.isfinite(values).all(axis=-1)
    largest = np.where(finite, np.abs(values).max(axis=-1), np.float32(0))
    usable = largest >= np.float32(2.0**-100)
    factor = np.float32(127) / np.where(usable, largest, np.float32(1))
    codes = np.rint(np.where(usable[..., None], values, np.float32(0)) * factor[..., None])
    scales = np.where(usable, largest / np.float32(127), np.float32(0))
    return codes.astype(np.int8), np.where(finite, scales, np.float32(np.nan))


def softmax(x: Floats) -> Floats:
    """Softmax of the last axis."""
    exponentials = np.exp(x - np.max(x, axis=-1, keepdims=True))
    shares: Floats = exponentials / np.sum(exponentials, axis=-1, keepdims=True)
    return shares


def soft_cap(x: Floats, cap: float) -> Floats:
    """cap * tanh(x / cap); 0 is no cap."""
    return x if cap == 0.0 else x.dtype.type(cap) * np.tanh(x / x.dtype.type(cap))


def silu_mul(gate: Floats, up: Floats) -> Floats:
    """gate * sigmoid(gate) * up, written so that no exponential overflows."""
    decay = np.exp(-np.abs(gate))
    sigmoid = np.where(gate >= 0, 1, decay) / (1 + decay)
    product: Floats = gate * sigmoid * up
    return product


def gelu_mul(gate: Floats, up: Floats) -> Floats:
    """gelu(gate) * up by the tanh approximation (Hendrycks and Gimpel 2016)."""
    inner = gate.dtype.type(np.sqrt(2.0 / np.pi)) * (
        gate + gate.dtype.type(0.044715) * gate * gate * gate
    )
    product: Floats = gate.dtype.type(0.5) * gate * (1 + np.tanh(inner)) * up
    return product
