"""The native linear operator: formats, activation modes, and bits that never change."""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType
from numpy.typing import NDArray

from octavo.compute.kernels.cpu import _native

Floats = NDArray[np.float32]


class Format(NamedTuple):
    """What the tests know of a format; `tolerance` is relative to |w| · |x|."""

    type: GgmlType
    super_scales: tuple[int, ...] = ()
    tolerance: float = 2e-6


FORMATS = [
    Format(GgmlType.F32),
    Format(GgmlType.F16),
    Format(GgmlType.BF16),
    Format(GgmlType.Q4_0),
    Format(GgmlType.Q4_1),
    Format(GgmlType.Q5_0),
    Format(GgmlType.Q5_1),
    Format(GgmlType.Q8_0),
    # Offsets of the fp16 super-scales inside a block. Products of scales are rounded to fp16.
    Format(GgmlType.Q2_K, (80, 82), 1e-3),
    Format(GgmlType.Q3_K, (108,), 1e-3),
    Format(GgmlType.Q4_K, (0, 2), 1e-3),
    Format(GgmlType.Q5_K, (0, 2), 1e-3),
    Format(GgmlType.Q6_K, (208,), 1e-3),
    Format(GgmlType.IQ4_NL, (0,)),
    Format(GgmlType.IQ4_XS, (0,), 1e-3),
]
QUANTISED = [format for format in FORMATS if format.type.name not in ("F32", "F16", "BF16")]
MODES = ["int8", "int8x2", "fp32"]
ROW_COUNTS = [1, 2, 5, 7, 16, 64, 130]
WIDTH = 768
CHANNELS = 72


def name(format: Format) -> str:
    return format.type.name


def tiers() -> list[str]:
    """The tiers this processor can run."""
    found = []
    for tier in ("scalar", "avx2", "avx512-vnni"):
        try:
            found.append(_native.tier(tier))
        except ValueError:
            continue
    return found


class Weight(NamedTuple):
    raw: NDArray[np.uint8]
    values: Floats
    packed: _native.PackedMatrix


def random_weight(format: Format, channels: int = CHANNELS, width: int = WIDTH) -> Weight:
    """Random valid blocks, their values by the gguf package, and the packed matrix."""
    rng = np.random.default_rng(zlib.crc32(name(format).encode()))
    if format.super_scales:
        _, block_bytes = gguf.GGML_QUANT_SIZES[format.type]
        row_bytes = _native.row_bytes(format.type, width)
        raw = rng.integers(0, 256, (channels, row_bytes // block_bytes, block_bytes), np.uint8)
        for offset in format.super_scales:
            scales = rng.normal(0, 0.002, raw.shape[:2]).astype(np.float16)
            raw[:, :, offset : offset + 2] = scales.view(np.uint8).reshape(*raw.shape[:2], 2)
        raw = raw.reshape(channels, row_bytes)
    else:
        values = rng.normal(0, 0.05, (channels, width)).astype(np.float32)
        raw = gguf.quants.quantize(values, format.type).view(np.uint8).reshape(channels, -1)
    values = gguf.quants.dequantize(raw, format.type).astype(np.float32)
    packed = _native.PackedMatrix(raw.reshape(-1), format.type, channels, width, threads=2)
    return Weight(raw, values.reshape(channels, width), packed)


def random_rows(rows: int, width: int = WIDTH, seed: int = 1) -> Floats:
    """Activations with a few outliers, as networks have them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (rows, width)).astype(np.float32)
    x[:, ::97] *= 20
    return x


def linear(
    weight: Weight,
    x: Floats,
    mode: str,
    *,
    tier: str = "",
    threads: int = 1,
    bias: Floats | None = None,
) -> Floats:
    out = np.full((len(x), len(weight.values)), np.nan, np.float32)
    _native.linear(tier, threads, [weight.packed], mode, x, [bias], [out])
    return out


def quantise(x: Floats, mode: str, tier: str = "") -> tuple[NDArray[np.int8], Floats, Floats]:
    terms = 2 if mode == "int8x2" else 1
    groups = -(-x.shape[1] // 32)
    codes = np.full((len(x) * terms, groups * 32), 99, np.int8)
    scales = np.full((len(x) * terms, groups), np.nan, np.float32)
    sums = scales.copy()
    _native.quantize(tier, 1, mode, x, codes, scales, sums)
    return codes, scales, sums


def model_of_int8(x: Floats) -> NDArray[np.float64]:
    """The values that int8 activations stand for: groups of 32, scale amax / 127."""
    groups = x.reshape(len(x), -1, 32)
    amax = np.abs(groups).max(axis=-1, keepdims=True)
    inverse = np.float32(127) / amax
    codes = np.rint(groups * inverse)
    return (codes.astype(np.float64) * (amax / np.float32(127))).reshape(x.shape)


def relative_error(found: Floats, x: NDArray[np.floating], weight: Weight) -> float:
    """Largest error of an output as a part of |w| · |x|, the sum of its terms' sizes."""
    exact = x.astype(np.float64) @ weight.values.T.astype(np.float64)
    size = np.abs(x).astype(np.float64) @ np.abs(weight.values).T.astype(np.float64)
    return float((np.abs(found - exact) / size).max())


@pytest.mark.parametrize("format", FORMATS, ids=name)
def test_fp32_activations_give_the_product_of_the_stored_weights(format: Format) -> None:
    weight = random_weight(format)
    x = random_rows(9)
    assert relative_error(linear(weight, x, "fp32"), x, weight) < format.tolerance


@pytest.mark.parametrize("fill", [0x00, 0xFF])
@pytest.mark.parametrize(
    "format",
    [format for format in QUANTISED if re.fullmatch("Q[4-8]_[01]|Q6_K", name(format))],
    ids=name,
)
def test_the_largest_sums_are_exact(format: Format, fill: int) -> None:
    """All codes at one end of their range, all activations at the other: no tier may overflow."""
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[format.type]
    raw = np.full((CHANNELS, WIDTH // block_elements, block_bytes), fill, np.uint8)
    if format.type.name == "Q8_0":
        raw ^= 0x80  # its codes are signed
    if format.type.name == "Q6_K":
        raw[:, :, 192:208] = 1  # the scales of the groups
    two = np.frombuffer(np.float16(2.0**-6).tobytes(), np.uint8)
    for offset in format.super_scales or ((0, 2) if format.type.name.endswith("_1") else (0,)):
        raw[:, :, offset : offset + 2] = two
    raw = raw.reshape(CHANNELS, -1)
    values = gguf.quants.dequantize(raw, format.type).astype(np.float32)
    packed = _native.PackedMatrix(raw.reshape(-1), format.type, CHANNELS, WIDTH, threads=1)
    weight = Weight(raw, values.reshape(CHANNELS, WIDTH), packed)
    x = np.ones((30, WIDTH), np.float32) * np.resize([1, -1], (30, 1)).astype(np.float32)
    for tier in tiers():
        for rows in (x[:2], x):
            found = linear(weight, rows, "int8", tier=tier)
            assert relative_error(found, rows, weight) < format.tolerance


@pytest.mark.parametrize("format", QUANTISED, ids=name)
def test_int8_activations_give_the_product_of_the_rounded_rows(format: Format) -> None:
    weight = random_weight(format)
    x = random_rows(9)
    found = linear(weight, x, "int8")
    assert relative_error(found, model_of_int8(x), weight) < format.tolerance
    assert relative_error(found, x, weight) > 1e-5, "int8 activations were not used"


@pytest.mark.parametrize("format", QUANTISED, ids=name)
def test_two_int8_terms_err_like_fp16(format: Format) -> None:
    weight = random_weight(format)
    x = random_rows(9)
    # The scales of folded formats are rounded as well: judge against the same weights in fp32.
    exact = linear(weight, x, "fp32").astype(np.float64)
    size = np.linalg.norm(exact)
    one = np.linalg.norm(linear(weight, x, "int8") - exact) / size
    two = np.linalg.norm(linear(weight, x, "int8x2") - exact) / size
    half = np.linalg.norm(linear(weight, x.astype(np.float16).astype(np.float32), "fp32") - exact)
    assert two < 2 * half / size
    assert two < one / 100


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("format", FORMATS, ids=name)
def test_rows_threads_and_tiers_do_not_change_a_bit(format: Format, mode: str) -> None:
    weight = random_weight(format)
    x = random_rows(max(ROW_COUNTS))
    expected = linear(weight, x, mode, tier="scalar")
    for tier in tiers():
        for rows in ROW_COUNTS:
            for threads in (1, 2):
                found = linear(weight, x[:rows], mode, tier=tier, threads=threads)
                assert found.tobytes() == expected[:rows].tobytes(), (tier, rows, threads)


@pytest.mark.parametrize("width", [32, 512, 544, 1120])
@pytest.mark.parametrize("type", [GgmlType.Q4_1, GgmlType.Q5_0, GgmlType.Q8_0])
def test_widths_around_a_pass_keep_bits_and_values(type: GgmlType, width: int) -> None:
    weight = random_weight(Format(type), width=width)
    x = random_rows(50, width)
    whole = linear(weight, x, "int8")
    assert relative_error(whole, model_of_int8(x), weight) < 2e-6
    for row in (0, 23, 49):
        assert linear(weight, x[row : row + 1], "int8").tobytes() == whole[row].tobytes()


@pytest.mark.parametrize("channels", [1, 15, 16, 17, 31, 33, 100])
@pytest.mark.parametrize("mode", MODES)
def test_any_number_of_channels_and_a_bias(channels: int, mode: str) -> None:
    weight = random_weight(Format(GgmlType.Q4_0), channels=channels)
    x = random_rows(3)
    bias = np.random.default_rng(5).normal(0, 1, channels).astype(np.float32)
    plain = linear(weight, x, mode)
    assert np.array_equal(linear(weight, x, mode, bias=bias), plain + bias)


@pytest.mark.parametrize("type", [GgmlType.F32, GgmlType.F16, GgmlType.BF16])
@pytest.mark.parametrize("width", [1, 31, 33, 70])
def test_float_weights_take_any_width_in_every_mode(type: GgmlType, width: int) -> None:
    weight = random_weight(Format(type), width=width)
    x = random_rows(4, width)
    outputs = [linear(weight, x, mode) for mode in MODES]
    assert relative_error(outputs[0], x, weight) < 2e-6
    assert outputs[0].tobytes() == outputs[1].tobytes() == outputs[2].tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_mixed_formats_share_one_call(mode: str) -> None:
    weights = [random_weight(format, channels=24 + 16 * i) for i, format in enumerate(FORMATS)]
    x = random_rows(40)
    outs = [np.full((40, len(weight.values)), np.nan, np.float32) for weight in weights]
    _native.linear("", 2, [w.packed for w in weights], mode, x, [None] * len(weights), outs)
    for weight, out in zip(weights, outs, strict=True):
        assert out.tobytes() == linear(weight, x, mode).tobytes()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_stays_alone(mode: str, bad: float) -> None:
    weight = random_weight(Format(GgmlType.Q4_1))
    x = random_rows(30)
    expected = linear(weight, x, mode)
    x[7, 300] = bad
    for tier in tiers():
        found = linear(weight, x, mode, tier=tier, threads=2)
        assert not np.isfinite(found[7]).any()
        others = np.arange(30) != 7
        assert found[others].tobytes() == expected[others].tobytes()


def test_quantised_rows_are_the_model_by_bits_in_every_tier() -> None:
    x = random_rows(6)
    groups = x.reshape(6, -1, 32)
    amax = np.abs(groups).max(axis=-1)
    codes = np.rint(groups * (np.float32(127) / amax)[..., None]).astype(np.int8)
    scales = amax / np.float32(127)
    for tier in tiers():
        found_codes, found_scales, found_sums = quantise(x, "int8", tier)
        assert np.array_equal(found_codes, codes.reshape(6, -1))
        assert found_scales.tobytes() == scales.tobytes()
        sums = codes.sum(axis=-1, dtype=np.int32).astype(np.float32)
        assert found_sums.tobytes() == (scales * sums).tobytes()


def test_the_second_term_holds_what_the_first_left_over() -> None:
    x = random_rows(4)
    codes, scales, _ = quantise(x, "int8x2")
    terms = codes.reshape(4, 2, -1, 32) * scales.reshape(4, 2, -1, 1).astype(np.float64)
    rest = np.abs(x.reshape(4, -1, 32) - terms.sum(axis=1))
    amax = np.abs(x.reshape(4, -1, 32)).max(axis=-1, keepdims=True)
    assert (rest <= amax / (127 * 127 * 2)).all()
    assert (np.abs(x.reshape(4, -1, 32) - terms[:, 0]) <= amax / 253).all()


def test_groups_of_zeros_and_of_tiny_values_are_zero() -> None:
    x = np.zeros((1, 96), np.float32)
    x[0, 32:64] = 1e-38
    x[0, 64] = -3.0
    for tier in tiers():
        codes, scales, sums = quantise(x, "int8", tier)
        assert not codes[0, :64].any()
        assert codes[0, 64] == -127
        assert scales[0].tolist() == [0.0, 0.0, np.float32(3) / np.float32(127)]
        assert sums[0, :2].tolist() == [0.0, 0.0]


def test_the_last_group_of_an_odd_width_is_padded_with_zeros() -> None:
    x = random_rows(2, 75)
    padded = np.zeros((2, 96), np.float32)
    padded[:, :75] = x
    for tier in tiers():
        for found, expected in zip(
            quantise(x, "int8", tier), quantise(padded, "int8"), strict=True
        ):
            assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("format", FORMATS, ids=name)
def test_an_embedding_row_is_the_stored_row(format: Format) -> None:
    weight = random_weight(format)
    tokens = np.array([0, 71, 31, 32, 5, 5], np.int32)
    expected = weight.values[tokens] * np.float32(1.5)
    for tier in tiers():
        out = np.full((6, WIDTH), np.nan, np.float32)
        _native.embed_rows(tier, 2, weight.packed, tokens, 1.5, out)
        if format.tolerance < 1e-3:
            assert np.array_equal(out, expected)
        else:
            limit = 6e-4 * np.abs(weight.values[tokens]).max(axis=1, keepdims=True) * 1.5
            assert (np.abs(out - expected) <= limit).all()


@pytest.mark.parametrize("format", FORMATS, ids=name)
def test_packed_size_is_what_the_layout_needs(format: Format) -> None:
    bits = {"F32": 32, "F16": 16, "BF16": 16, "Q4_0": 4.5, "Q4_1": 5, "Q4_K": 5}
    bits |= {"Q2_K": 6, "Q3_K": 5, "Q5_0": 5.5, "Q5_1": 6, "Q5_K": 6, "Q6_K": 7}
    weight = random_weight(format, channels=64)
    assert weight.packed.bytes == 64 * WIDTH * bits.get(name(format), 8.5) / 8


def test_tiny_super_scales_keep_their_precision() -> None:
    """Products of subnormal fp16 factors would vanish without the tensor's power of two."""
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 256, (32, 210), np.uint8)
    raw[:, 208:210] = np.full((32, 1), 3e-7, np.float16).view(np.uint8)
    values = gguf.quants.dequantize(raw, GgmlType.Q6_K).reshape(32, 256)
    packed = _native.PackedMatrix(raw.reshape(-1), GgmlType.Q6_K, 32, 256)
    weight = Weight(raw, values.astype(np.float32), packed)
    assert 0 < packed.tensor_scale < 1e-6
    assert np.log2(packed.tensor_scale) == round(np.log2(packed.tensor_scale))
    x = random_rows(2, 256)
    assert relative_error(linear(weight, x, "fp32"), x, weight) < 1e-3


def test_bad_shapes_and_formats_are_refused() -> None:
    raw = np.zeros(18 * 2, np.uint8)
    with pytest.raises(ValueError, match="format is not supported"):
        _native.PackedMatrix(raw, 99, 1, 64)
    with pytest.raises(ValueError, match="width does not fit"):
        _native.PackedMatrix(raw, GgmlType.Q4_0, 1, 48)
    with pytest.raises(ValueError, match="width does not fit"):
        _native.PackedMatrix(raw, GgmlType.Q4_0, 0, 64)
    with pytest.raises(ValueError, match="bytes do not fit"):
        _native.PackedMatrix(raw, GgmlType.Q4_0, 2, 64)
    weight = random_weight(Format(GgmlType.Q4_0))
    with pytest.raises(ValueError, match="x does not fit"):
        linear(weight, random_rows(1, WIDTH + 32), "int8")
    with pytest.raises(ValueError, match="activations must be"):
        linear(weight, random_rows(1), "int4")
    out = np.zeros((1, WIDTH), np.float32)
    beyond = np.array([CHANNELS], np.int32)
    with pytest.raises(ValueError, match="no such token"):
        _native.embed_rows("", 1, weight.packed, beyond, 1.0, out)
