"""Single operators of the CPU back end: definitions, and bits that no circumstance changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo.compute.kernels.cpu import _native
from octavo.compute.kernels.cpu.lower import Rotation
from octavo.compute.kernels.reference import operators
from octavo.compute.kernels.reference.cache import head_bytes
from octavo.compute.program import Attention, Rope, RopeStyle

Floats = NDArray[np.float32]
FORMATS = {"fp16": 0, "fp32": 1, "int8": 2}


def tiers() -> list[str]:
    """The tiers this processor can run."""
    found = []
    for tier in ("scalar", "avx2", "avx512-vnni"):
        try:
            found.append(_native.tier(tier))
        except ValueError:
            continue
    return found


def normal(shape: tuple[int, ...], seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@dataclass(frozen=True)
class Shape:
    """An attention problem; one layer of several, so that the offset of a layer matters."""

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    window: int = 0
    softcap: float = 0.0
    kv_format: str = "fp16"
    page_tokens: int = 32
    layers: int = 2
    layer: int = 1

    @property
    def operator(self) -> Attention:
        return Attention(
            "out", "q", self.layer, self.heads, self.kv_heads, self.head_dim,
            self.head_dim**-0.5, self.window, self.softcap,
        )  # fmt: skip


class Cache:
    """A paged cache whose bytes are all ones, NaN as a number or as a scale, until written."""

    def __init__(self, shape: Shape, lengths: Sequence[int], seed: int = 0) -> None:
        self.shape = shape
        self.code = FORMATS[shape.kv_format]
        pages = [-(-length // shape.page_tokens) for length in lengths]
        page_bytes = (shape.layers * shape.kv_heads * 2 * shape.page_tokens) * head_bytes(
            shape.kv_format, shape.head_dim
        )
        self.bytes = np.full(sum(pages) * page_bytes, 255, dtype=np.uint8)
        free = np.random.default_rng(seed).permutation(sum(pages)).astype(np.int32)
        self.was_split = False
        self.tables = np.full((len(lengths), max(pages)), -1, dtype=np.int32)
        for row, count in enumerate(pages):
            self.tables[row, :count], free = free[:count], free[count:]

    def write(self, row: int, start: int, k: Floats, v: Floats, tier: str = "scalar") -> None:
        shape = self.shape
        positions = np.arange(start, start + len(k))
        _native.write_kv(
            tier, 1, self.bytes, shape.layers, shape.layer, shape.head_dim, shape.page_tokens,
            self.code, k.reshape(len(k), -1), v.reshape(len(v), -1),
            self.tables[row, positions // shape.page_tokens],
            (positions % shape.page_tokens).astype(np.int32),
        )  # fmt: skip

    def attend(
        self,
        queries: Sequence[Floats],
        past: Sequence[int],
        *,
        rows: Sequence[int] | None = None,
        tier: str,
        threads: int = 1,
        split: bool = False,
    ) -> list[Floats]:
        """Attention of the new tokens of each sequence in one call."""
        shape = self.shape
        q = np.concatenate(queries).reshape(sum(map(len, queries)), -1)
        starts = np.cumsum([0, *map(len, queries)]).astype(np.int32)
        out = np.full_like(q, np.nan)
        tables = self.tables if rows is None else self.tables[list(rows)]
        self.was_split = _native.attention(
            tier, threads, self.bytes, shape.layers, shape.layer, shape.kv_heads,
            shape.page_tokens, self.code, q, shape.heads, starts,
            np.asarray(past, dtype=np.int32), tables, shape.operator.scale, shape.window,
            shape.softcap, split, out,
        )  # fmt: skip
        return [out[a:b] for a, b in pairwise(starts)]


@dataclass
class Sequences:
    """Random q, k and v of sequences of the given lengths."""

    q: list[Floats]
    k: list[Floats]
    v: list[Floats]

    @classmethod
    def random(cls, shape: Shape, lengths: Sequence[int], seed: int = 1) -> Sequences:
        def draw(heads: int, salt: int) -> list[Floats]:
            return [
                normal((length, heads, shape.head_dim), 100 * seed + 10 * salt + row)
                for row, length in enumerate(lengths)
            ]

        return cls(draw(shape.heads, 1), draw(shape.kv_heads, 2), draw(shape.kv_heads, 3))

    def cache(self, shape: Shape, tier: str = "scalar", seed: int = 0) -> Cache:
        cache = Cache(shape, [len(k) for k in self.k], seed)
        for row, (k, v) in enumerate(zip(self.k, self.v, strict=True)):
            cache.write(row, 0, k, v, tier)
        return cache


def expected(shape: Shape, q: Floats, k: Floats, v: Floats, past: int) -> NDArray[np.float64]:
    """In float64 over K and V as stored; over codes the scaled queries are codes too."""
    queries = q[past:]
    if shape.kv_format == "int8":
        scale = np.float32(shape.operator.scale)
        stored = [as_codes(values) for values in (k, v)]
        exact = as_codes(queries * scale) / float(scale)
    else:
        dtype = np.float16 if shape.kv_format == "fp16" else np.float32
        stored = [values.astype(dtype).astype(np.float64) for values in (k, v)]
        exact = queries.astype(np.float64)
    return operators.attention(shape.operator, exact.reshape(len(queries), -1), *stored, past)


def as_codes(values: Floats) -> NDArray[np.float64]:
    codes, scales = operators.quantise_heads(values)
    return codes.astype(np.float64) * scales.astype(np.float64)[..., None]


SHAPES = {
    "plain": Shape(),
    "gqa3-d64": Shape(heads=9, kv_heads=3, head_dim=64),
    "gqa7-d64-p16": Shape(heads=14, kv_heads=2, head_dim=64, page_tokens=16),
    "gqa4-d256": Shape(heads=4, kv_heads=1, head_dim=256, window=70),
    "mha-d80-p256": Shape(heads=2, kv_heads=2, head_dim=80, page_tokens=256),
    "gqa5-d48-softcap": Shape(heads=5, kv_heads=1, head_dim=48, softcap=3.0, page_tokens=64),
    "fp32-window": Shape(kv_format="fp32", window=13, page_tokens=128, layer=0),
    "int8-gqa3-d64": Shape(kv_format="int8", heads=9, kv_heads=3, head_dim=64),
    "int8-gqa7-p16": Shape(kv_format="int8", heads=14, kv_heads=2, head_dim=64, page_tokens=16),
    "int8-d256-window": Shape(
        kv_format="int8", heads=4, kv_heads=1, head_dim=256, window=70, softcap=3.0, layer=0
    ),
    "int8-mha-d80": Shape(kv_format="int8", kv_heads=6, head_dim=80, page_tokens=64),
    "one-layer-d16": Shape(heads=1, kv_heads=1, head_dim=16, layers=1, layer=0),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("tier", tiers())
def test_attention_follows_its_definition(tier: str, name: str) -> None:
    shape, lengths, past = SHAPES[name], [150, 37, 1, 600], [0, 30, 0, 565]
    data = Sequences.random(shape, lengths)
    cache = data.cache(shape, tier)
    queries = [q[start:] for q, start in zip(data.q, past, strict=True)]
    got = cache.attend(queries, past, tier=tier, threads=2)
    for row, start in enumerate(past):
        want = expected(shape, data.q[row], data.k[row], data.v[row], start)
        np.testing.assert_allclose(got[row], want, rtol=0, atol=3e-6)


def one_by_one(cache: Cache, data: Sequences, row: int, tier: str) -> Floats:
    """As decoding does it: each token is written, then attends."""
    out = []
    for position in range(len(data.q[row])):
        span = slice(position, position + 1)
        cache.write(row, position, data.k[row][span], data.v[row][span], tier)
        out += cache.attend([data.q[row][span]], [position], rows=[row], tier=tier)
    return np.concatenate(out)


@pytest.mark.parametrize(
    "name",
    [
        "gqa3-d64",
        "gqa4-d256",
        "gqa5-d48-softcap",
        "fp32-window",
        "int8-gqa7-p16",
        "int8-d256-window",
    ],
)
def test_chunks_decoding_and_batches_give_the_same_bits(name: str) -> None:
    shape, tier, length = SHAPES[name], tiers()[-1], 200
    data = Sequences.random(shape, [length, 90])
    whole = data.cache(shape).attend(data.q, [0, 0], tier=tier)
    assert np.array_equal(one_by_one(Cache(shape, [length, 90]), data, 0, tier), whole[0])
    chunked = Cache(shape, [length, 90], seed=5)
    pieces, past = [], 0
    for size in (1, 7, 64, 33, 95):
        span = slice(past, past + size)
        chunked.write(0, past, data.k[0][span], data.v[0][span])
        pieces += chunked.attend([data.q[0][span]], [past], rows=[0], tier=tier)
        past += size
    assert past == length
    assert np.array_equal(np.concatenate(pieces), whole[0])
    alone = data.cache(shape).attend([data.q[1]], [0], rows=[1], tier=tier)
    assert np.array_equal(alone[0], whole[1])


@pytest.mark.parametrize("page_tokens", [16, 64, 128, 256])
@pytest.mark.parametrize("name", ["gqa3-d64", "int8-gqa3-d64"])
def test_page_size_does_not_change_a_bit(name: str, page_tokens: int) -> None:
    shape, tier = SHAPES[name], tiers()[-1]
    data = Sequences.random(shape, [300])
    want = data.cache(shape).attend(data.q, [0], tier=tier)
    other = data.cache(replace(shape, page_tokens=page_tokens)).attend(data.q, [0], tier=tier)
    assert np.array_equal(other[0], want[0])


@pytest.mark.parametrize("name", SHAPES)
def test_tiers_agree_by_bits(name: str) -> None:
    shape, lengths, past = SHAPES[name], [90, 530], [0, 500]
    data = Sequences.random(shape, lengths)
    queries = [q[start:] for q, start in zip(data.q, past, strict=True)]
    results = [
        np.concatenate(data.cache(shape, tier).attend(queries, past, tier=tier)) for tier in tiers()
    ]
    for result in results[1:]:
        assert np.array_equal(result.view(np.uint32), results[0].view(np.uint32))


@pytest.mark.parametrize("name", ["gqa7-d64-p16", "int8-gqa3-d64"])
def test_scores_so_far_apart_that_weights_underflow(name: str) -> None:
    shape = SHAPES[name]
    data = Sequences.random(shape, [150])
    data.q[0] *= 40.0
    scores = np.einsum("hd,tkd->hkt", data.q[0][149], data.k[0]) * shape.operator.scale
    least = scores.min() - scores.max()
    assert least < -104.0  # the exponential of these is 0 or subnormal, beside normal ones
    results = [data.cache(shape).attend(data.q, [0], tier=tier)[0] for tier in tiers()]
    for result in results[1:]:
        assert np.array_equal(result.view(np.uint32), results[0].view(np.uint32))
    single = one_by_one(Cache(shape, [150]), data, 0, tiers()[-1])
    assert np.array_equal(single.view(np.uint32), results[-1].view(np.uint32))
    want = expected(shape, data.q[0], data.k[0], data.v[0], 0)
    np.testing.assert_allclose(results[0], want, rtol=0, atol=3e-4)


@pytest.mark.parametrize("window", [0, 600])
@pytest.mark.parametrize("kv_format", ["fp16", "int8"])
def test_segments_as_tasks_of_their_own_give_the_same_bits(kv_format: str, window: int) -> None:
    shape = replace(SHAPES["gqa4-d256"], window=window, kv_format=kv_format)
    tier, length = tiers()[-1], 1700
    data = Sequences.random(shape, [length])
    cache = data.cache(shape)
    for past in (length - 1, length - 20):
        query = [data.q[0][past:]]
        want = cache.attend(query, [past], tier=tier, threads=1)
        assert not cache.was_split
        for threads in (2, 3):
            split = cache.attend(query, [past], tier=tier, threads=threads, split=True)
            assert cache.was_split
            assert np.array_equal(split[0], want[0])
    reference = expected(shape, data.q[0], data.k[0], data.v[0], length - 20)
    np.testing.assert_allclose(want[0], reference, rtol=0, atol=3e-6)


@pytest.mark.parametrize("name", ["gqa3-d64", "int8-gqa3-d64"])
def test_a_bad_later_token_does_not_reach_earlier_ones(name: str) -> None:
    shape, tier = SHAPES[name], tiers()[-1]
    data = Sequences.random(shape, [100])
    want = data.cache(shape).attend(data.q, [0], tier=tier)[0]
    for stream in (data.q, data.k, data.v):
        stream[0][60] = np.nan
    got = data.cache(shape).attend(data.q, [0], tier=tier)[0]
    assert np.array_equal(got[:60], want[:60])
    assert np.isnan(got[60:]).all()


@pytest.mark.parametrize("name", ["fp32-window", "int8-d256-window"])
def test_tokens_outside_the_window_are_not_even_read(name: str) -> None:
    shape, tier = replace(SHAPES[name], page_tokens=16), tiers()[-1]
    data = Sequences.random(shape, [200])
    cache = data.cache(shape)
    want = cache.attend([data.q[0][150:]], [150], tier=tier)[0]
    cleared = Cache(shape, [200])
    first = 150 + 1 - shape.window
    cleared.write(0, first, data.k[0][first:], data.v[0][first:])
    assert np.array_equal(cleared.attend([data.q[0][150:]], [150], tier=tier)[0], want)


def test_fp16_cache_saturates() -> None:
    shape, tier = Shape(heads=1, kv_heads=1, head_dim=16), tiers()[-1]
    v = np.array([1e6, -1e6, 65504.0, 1e-9] * 4, dtype=np.float32).reshape(1, 1, 16)
    cache = Cache(shape, [1])
    cache.write(0, 0, np.zeros_like(v), v, tier)
    out = cache.attend([np.ones_like(v)], [0], tier=tier)[0]
    assert out[0].tolist() == [65504.0, -65504.0, 65504.0, 0.0] * 4


@pytest.mark.parametrize("tier", tiers())
def test_int8_cache_holds_the_codes_of_the_definition(tier: str) -> None:
    shape = Shape(kv_format="int8", kv_heads=1, head_dim=48, page_tokens=16, layers=1, layer=0)
    k, v = normal((7, 1, 48), 1), normal((7, 1, 48), 2)
    k[1], v[2], k[3, 0, 5], v[4, 0, 6] = 0.0, 1e-35, np.nan, np.inf
    cache = Cache(shape, [7])
    cache.write(0, 0, k, v, tier)
    half = 16 * head_bytes("int8", 48)
    for values, at in ((k, 0), (v, half)):
        codes, scales = operators.quantise_heads(values[:, 0])
        stored = cache.bytes[at : at + 16 * 48].view(np.int8)
        if at == 0:
            stored = stored.reshape(12, 16, 4).transpose(1, 0, 2)
        assert np.array_equal(stored.reshape(16, 48)[:7], codes)
        found = cache.bytes[at + 16 * 48 : at + half].view(np.float32)
        assert np.array_equal(found[:7], scales, equal_nan=True)
        assert np.abs(codes).max() == 127


@pytest.mark.parametrize("width", [16, 20, 64, 576, 640, 1000])
@pytest.mark.parametrize("heads", [1, 3])
def test_rms_norm(width: int, heads: int) -> None:
    x, weight = normal((5, heads * width)), normal((width,), 1)
    want = operators.rms_norm(x.astype(np.float64), weight.astype(np.float64), 1e-5, heads)
    results = []
    for tier in tiers():
        out = np.empty_like(x)
        _native.rms_norm(tier, 2, x, weight, 1e-5, out)
        np.testing.assert_allclose(out, want, rtol=2e-6, atol=1e-6)
        alone = np.empty_like(x[2:3])
        _native.rms_norm(tier, 1, x[2:3].copy(), weight, 1e-5, alone)
        assert np.array_equal(alone[0], out[2])
        results.append(out.view(np.uint32))
    assert all(np.array_equal(results[0], other) for other in results[1:])


def rope_table(rotation: Rotation, positions: Sequence[int]) -> Floats:
    angles = np.outer(np.asarray(positions, dtype=np.float64), rotation.frequencies(None))
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    if rotation.style is RopeStyle.HALVES:
        return np.concatenate([cosine, sine], axis=1)
    twice = np.repeat(cosine, 2, axis=1)
    signed = np.stack([-sine, sine], axis=2).reshape(len(sine), -1)
    return np.concatenate([twice, signed], axis=1)


@pytest.mark.parametrize("style", RopeStyle)
@pytest.mark.parametrize(("head_dim", "dims"), [(64, 64), (64, 32), (80, 40), (256, 256)])
def test_rope(style: RopeStyle, head_dim: int, dims: int) -> None:
    heads, positions = 3, [0, 1, 77, 30_000]
    rotation = Rotation(dims, style, 10_000.0, 1.0, None)
    x = normal((len(positions), heads * head_dim))
    definition = Rope("x", "x", heads, head_dim, dims, 10_000.0, style)
    want = operators.rope(definition, x.astype(np.float64), np.asarray(positions))
    table, results = rope_table(rotation, positions), []
    for tier in tiers():
        out = np.empty_like(x)
        _native.rope(tier, 2, x, table, heads, dims, style is RopeStyle.INTERLEAVED, out)
        np.testing.assert_allclose(out, want, rtol=0, atol=2e-6)
        in_place = x.copy()
        _native.rope(
            tier, 1, in_place, table, heads, dims, style is RopeStyle.INTERLEAVED, in_place
        )
        assert np.array_equal(in_place, out)
        results.append(out.view(np.uint32))
    assert all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("name", ["silu_mul", "gelu_mul"])
@pytest.mark.parametrize("width", [1, 16, 100])
def test_gates(name: str, width: int) -> None:
    gate = np.concatenate(
        [8 * normal((6, width)), np.full((1, width), -200.0, dtype=np.float32),
         np.full((1, width), 200.0, dtype=np.float32)]
    )  # fmt: skip
    up = normal(gate.shape, 1)
    want = getattr(operators, name)(gate.astype(np.float64), up.astype(np.float64))
    results = []
    for tier in tiers():
        out = np.empty_like(gate)
        getattr(_native, name)(tier, 2, gate, up, out)
        np.testing.assert_allclose(out, want, rtol=3e-6, atol=3e-7)
        results.append(out.view(np.uint32))
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_add() -> None:
    a, b = normal((3, 37)), normal((3, 37), 1)
    for tier in tiers():
        out = a.copy()
        _native.add(tier, 2, out, b, out)
        assert np.array_equal(out, a + b)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40), st.floats(1.0, 100.0))
def test_softcap_of_a_product_bounds_and_keeps_order(values: list[float], cap: float) -> None:
    column = np.array([values], dtype=np.float32).T
    matrix = _native.PackedMatrix(column.view(np.uint8).reshape(-1), 0, len(values), 1)
    one, results = np.ones((1, 1), dtype=np.float32), []
    for tier in tiers():
        out = np.empty((1, len(values)), dtype=np.float32)
        _native.linear(tier, 1, [matrix], "fp32", one, [None], [out], softcap=cap)
        want = operators.soft_cap(column.T.astype(np.float64), cap)
        np.testing.assert_allclose(out, want, rtol=1e-6, atol=4e-7 * cap)
        results.append(out.view(np.uint32))
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_bad_arguments_raise() -> None:
    x, weight = normal((2, 48)), normal((32,))
    with pytest.raises(ValueError, match="does not divide"):
        _native.rms_norm("", 1, x, weight, 1e-5, x.copy())
    with pytest.raises(ValueError, match="unknown tier"):
        _native.add("mmx", 1, x, x, x.copy())
    with pytest.raises(ValueError, match="differ in shape"):
        _native.add("", 1, x, x[:1].copy(), x.copy())
    shape = Shape()
    data = Sequences.random(shape, [10])
    cache = data.cache(shape)
    cache.tables[0, 0] = 99
    with pytest.raises(ValueError, match="page out of range"):
        cache.attend([data.q[0]], [0], tier="scalar")
    with pytest.raises(ValueError, match="table too short"):
        cache.attend([data.q[0]], [40], tier="scalar")
