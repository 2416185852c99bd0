"""Decode and prefill attention over scattered pages that lie in no cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from benchmarks.kernels.cases import Case, Work

from octavo.compute.kernels.cpu import _native
from octavo.compute.kernels.reference.cache import head_bytes

PAGE_TOKENS = 32
FORMATS = {"fp16": 0, "int8": 2, "fp32": 1}
"""Number of a KV format in native code."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Query heads share each of `kv_heads`; `aim` is for fp16."""

    kv_heads: int
    shared: int
    head_dim: int
    aim: float | None


DECODE = (
    Shape(3, 3, 64, 0.70),
    Shape(8, 3, 128, 0.65),
    Shape(2, 7, 64, 0.55),
    Shape(1, 4, 256, None),
    Shape(8, 4, 64, None),
)

PREFILL = (Shape(3, 3, 64, 0.5), Shape(2, 7, 64, 0.5), Shape(1, 4, 256, 0.5))


class Cache:
    """Layers of a paged cache with random contents, `sequences` of `tokens` each."""

    def __init__(self, shape: Shape, kv_format: str, layers: int, sequences: int, tokens: int):
        self.shape, self.layers, self.tokens = shape, layers, tokens
        self.code = FORMATS[kv_format]
        self.token_bytes = 2 * shape.kv_heads * head_bytes(kv_format, shape.head_dim)
        rng = np.random.default_rng(0)
        pages = tokens // PAGE_TOKENS
        page_bytes = self.token_bytes * PAGE_TOKENS * layers
        self.bytes = np.zeros(sequences * pages * page_bytes, dtype=np.uint8)
        self.tables = rng.permutation(sequences * pages).astype(np.int32).reshape(sequences, pages)
        k, v = rng.standard_normal((2, tokens, shape.kv_heads * shape.head_dim), dtype=np.float32)
        positions = np.arange(tokens)
        slots = (positions % PAGE_TOKENS).astype(np.int32)
        for layer in range(layers):
            for table in self.tables:
                _native.write_kv(
                    "", 1, self.bytes, layers, layer, shape.head_dim, PAGE_TOKENS, self.code,
                    k, v, table[positions // PAGE_TOKENS], slots,
                )  # fmt: skip

    def time(self, tier: str, threads: int, new_tokens: int, calls: int) -> list[float]:
        """Attention of the last `new_tokens` of each sequence; calls go through the layers."""
        shape, sequences = self.shape, len(self.tables)
        heads = shape.kv_heads * shape.shared
        rng = np.random.default_rng(1)
        q = rng.standard_normal((sequences * new_tokens, heads * shape.head_dim), dtype=np.float32)
        starts = np.arange(sequences + 1, dtype=np.int32) * new_tokens
        past = np.full(sequences, self.tokens - new_tokens, dtype=np.int32)
        return _native.time_attention(
            tier, threads, self.bytes, self.layers, shape.kv_heads, PAGE_TOKENS, self.code, q,
            heads, starts.astype(np.int32), past, self.tables, np.empty_like(q), calls,
        )  # fmt: skip


def _decode(
    tier: str, threads: int, cold_bytes: int, shape: Shape, kv_format: str, sequences: int,
    tokens: int,
) -> Case:  # fmt: skip
    layer_bytes = sequences * tokens * 2 * shape.kv_heads * head_bytes(kv_format, shape.head_dim)
    layers = max(1, -(-cold_bytes // layer_bytes))
    cache = Cache(shape, kv_format, layers, sequences, tokens)
    operations = 4.0 * sequences * tokens * shape.kv_heads * shape.shared * shape.head_dim
    return Case(
        group="decode attention",
        name=f"{shape.kv_heads} kv heads x {shape.shared}, d{shape.head_dim}, {kv_format}, "
        f"{sequences} x {tokens} tokens",
        work=Work(sequences * tokens * cache.token_bytes, operations, "fma"),
        rotation=layers,
        run=lambda calls: cache.time(tier, threads, 1, calls),
        aim=shape.aim if kv_format == "fp16" and sequences > 1 else None,
    )


def _prefill(
    tier: str, threads: int, shape: Shape, kv_format: str, past: int, new_tokens: int
) -> Case:
    cache = Cache(shape, kv_format, 2, 1, past + new_tokens)
    pairs = new_tokens * past + new_tokens * (new_tokens + 1) / 2
    return Case(
        group="prefill attention",
        name=f"{shape.kv_heads} kv heads x {shape.shared}, d{shape.head_dim}, {kv_format}, "
        f"{new_tokens} tokens after {past}",
        work=Work(
            (past + new_tokens) * cache.token_bytes,
            4.0 * pairs * shape.kv_heads * shape.shared * shape.head_dim,
            "fma",
        ),
        rotation=2,
        run=lambda calls: cache.time(tier, threads, new_tokens, calls),
        aim=shape.aim,
    )


def cases(tier: str, threads: int, cold_bytes: int) -> Iterator[Case]:
    """Decode of a batch and of one long sequence, and prefill, in each KV format."""
    for kv_format in FORMATS:
        for shape in DECODE:
            yield _decode(tier, threads, cold_bytes, shape, kv_format, 8, 1024)
        for shape in (DECODE[0], DECODE[3]):
            yield _decode(tier, threads, cold_bytes, shape, kv_format, 1, 8192)
        for shape in PREFILL:
            yield _prefill(tier, threads, shape, kv_format, 0, 512)
        yield _prefill(tier, threads, PREFILL[0], kv_format, 768, 256)
