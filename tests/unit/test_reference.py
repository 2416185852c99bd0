"""The numpy interpreter: operators against torch and brute force, steps against each other."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo.compute.batch import Batch, Draw, Score
from octavo.compute.kernels.reference import operators
from octavo.compute.kernels.reference.model import ReferenceModel
from octavo.compute.load.source import GgufWeights
from octavo.compute.models.registry import load_program
from octavo.compute.program import Attention, Rope, RopeStyle
from octavo.core.errors import EngineError, SettingsError
from octavo.core.gguf import GgufFile
from tiny import FAMILIES, make_tiny_gguf

PAGES = 24


def _model(tmp_path: Path, family: str, **options: object) -> ReferenceModel:
    with GgufFile.open(make_tiny_gguf(tmp_path / "model.gguf", family, quant="mixed")) as file:
        model = ReferenceModel(load_program(file), GgufWeights(file), **options)  # type: ignore[arg-type]
    model.allocate_kv(PAGES, 16)
    return model


def _batch(rows: list[tuple[list[int], int, list[int]]]) -> Batch:
    """Rows of (tokens, past, pages)."""
    width = max(len(pages) for _, _, pages in rows)
    return Batch(
        np.array([token for tokens, _, _ in rows for token in tokens], np.int32),
        np.cumsum([0, *(len(tokens) for tokens, _, _ in rows)], dtype=np.int32),
        np.array([past for _, past, _ in rows], np.int32),
        np.array([pages + [-1] * (width - len(pages)) for _, _, pages in rows], np.int32),
    )


def test_activations_are_torchs() -> None:
    rng = np.random.default_rng(0)
    gate = np.concatenate([rng.normal(size=500) * 4, [-1e4, 1e4, 0.0]])[None]
    up = rng.normal(size=gate.shape)
    tensor = torch.tensor(gate)
    silu = torch.nn.functional.silu(tensor).numpy() * up
    gelu = torch.nn.functional.gelu(tensor, approximate="tanh").numpy() * up
    np.testing.assert_allclose(operators.silu_mul(gate, up), silu, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(operators.gelu_mul(gate, up), gelu, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("heads", [1, 4])
def test_rms_norm_is_torchs(heads: int) -> None:
    rng = np.random.default_rng(1)
    x, weight = rng.normal(size=(5, 64)), rng.normal(size=64 // heads)
    parts = torch.tensor(x).reshape(5, heads, -1)
    expected = torch.nn.functional.rms_norm(parts, parts.shape[-1:], torch.tensor(weight), 1e-5)
    found = operators.rms_norm(x, weight, 1e-5, heads)
    np.testing.assert_allclose(found, expected.reshape(5, 64).numpy(), rtol=1e-12)


@pytest.mark.parametrize("style", list(RopeStyle))
def test_rope_is_a_complex_rotation(style: RopeStyle) -> None:
    rng = np.random.default_rng(2)
    heads, head_dim, dims = 3, 16, 12
    operator = Rope("x", "x", heads, head_dim, dims, 1e4, style, scale=0.5, factors="f")
    x, factors = rng.normal(size=(7, heads * head_dim)), rng.uniform(1, 8, dims // 2)
    positions = np.array([0, 1, 2, 500, 8191, 3, 3])
    found = operators.rope(operator, x, positions, factors.astype(np.float32))
    expected = x.reshape(7, heads, head_dim).copy()
    for token, position in enumerate(positions):
        for pair in range(dims // 2):
            angle = position * 1e4 ** (-2 * pair / dims) * 0.5 / float(np.float32(factors[pair]))
            interleaved = style is RopeStyle.INTERLEAVED
            i, j = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + dims // 2)
            turned = (expected[token, :, i] + 1j * expected[token, :, j]) * np.exp(1j * angle)
            expected[token, :, i], expected[token, :, j] = turned.real, turned.imag
    np.testing.assert_allclose(found, expected.reshape(x.shape), atol=1e-9)


@pytest.mark.parametrize("window", [0, 1, 5])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_attention_is_brute_force(window: int, softcap: float) -> None:
    rng = np.random.default_rng(3)
    heads, kv_heads, head_dim, start, tokens = 6, 2, 8, 9, 4
    operator = Attention("o", "q", 0, heads, kv_heads, head_dim, 0.3, window, softcap)
    q = rng.normal(size=(tokens, heads * head_dim))
    k, v = rng.normal(size=(2, start + tokens, kv_heads, head_dim))
    found = operators.attention(operator, q, k, v, start).reshape(tokens, heads, head_dim)
    for token in range(tokens):
        for head in range(heads):
            own = start + token
            seen = range(max(0, own - window + 1) if window else 0, own + 1)
            query = q.reshape(tokens, heads, head_dim)[token, head]
            scores = [0.3 * float(query @ k[place, head // 3]) for place in seen]
            if softcap:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            masses = [math.exp(score) for score in scores]
            expected = sum(m * v[p, head // 3] for m, p in zip(masses, seen, strict=True))
            np.testing.assert_allclose(found[token, head], expected / sum(masses), rtol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_pages_and_company_do_not_change_the_logits(tmp_path: Path, family: str) -> None:
    model = _model(tmp_path, family, dtype=np.float64)
    rng = np.random.default_rng(4)
    prompt = rng.integers(0, 512, 70).tolist()
    other = rng.integers(0, 512, 20).tolist()
    pages = [7, 3, 11, 0, 5]
    whole = model.logits(_batch([(prompt, 0, pages)]), range(70))
    assert whole.dtype == np.float32
    assert np.isfinite(whole).all()
    for page_tokens, chunk in ((16, 1), (32, 7), (64, 33)):
        model.allocate_kv(PAGES, page_tokens)
        parts = []
        for start in range(0, 70, chunk):
            piece = prompt[start : start + chunk]
            batch = _batch([(other, 0, [20, 21]), (piece, start, pages)])
            parts.append(model.logits(batch, range(20, 20 + len(piece))))
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=2e-4)
    if family == "gemma3":  # a token outside every window still counts through the full layer
        prompt[0] += 1
        changed = model.logits(_batch([(prompt, 0, pages)]), [69])
        assert not np.array_equal(changed, whole[69:])


def test_float32_agrees_with_float64(tmp_path: Path) -> None:
    prompt = np.random.default_rng(5).integers(0, 512, 60).tolist()
    batch = _batch([(prompt, 0, [0, 1, 2, 3])])
    single, double = (
        _model(tmp_path, "gemma3", dtype=dtype, kv_format="fp32").logits(batch, range(60))
        for dtype in (np.float32, np.float64)
    )
    np.testing.assert_allclose(single, double, atol=2e-4)
    assert not np.array_equal(single, double)


def test_int8_storage_keeps_codes_and_a_scale_a_head(tmp_path: Path) -> None:
    full, small = (_model(tmp_path, "llama", kv_format=name) for name in ("fp32", "int8"))
    assert small.page_bytes(32) == 2 * 2 * 2 * (16 + 4) * 32
    batch = _batch([(list(range(40)), 0, [0, 1, 2])])
    exact, rounded = full.logits(batch, [39]), small.logits(batch, [39])
    assert not np.array_equal(exact, rounded)
    np.testing.assert_allclose(exact, rounded, atol=0.2)
    cache = small._cache
    assert cache is not None
    rows = np.random.default_rng(0).standard_normal((3, 2, 16)).astype(np.float32)
    rows[1, 0] = 0.0
    rows[2, 1, 7] = np.inf
    cache.write(1, np.array([4], np.int32), 5, rows, -rows)
    k, v = (part[5:] for part in cache.read(1, np.array([4], np.int32), 8, np.dtype(np.float64)))
    np.testing.assert_array_equal(k, -v)
    step = np.abs(rows).max(axis=2, keepdims=True) / 127
    error = np.abs(k - rows)[:2]
    assert (error <= step[:2] * 0.501).all()
    assert error.max() > 0
    assert np.isnan(k[2, 1]).all()


def test_half_storage_saturates_and_rounds(tmp_path: Path) -> None:
    full, half = (_model(tmp_path, "llama", kv_format=name) for name in ("fp32", "fp16"))
    assert full.page_bytes(32) == 2 * half.page_bytes(32) == 2 * 2 * 2 * 16 * 32 * 4
    batch = _batch([(list(range(40)), 0, [0, 1, 2])])
    exact, rounded = full.logits(batch, [39]), half.logits(batch, [39])
    assert not np.array_equal(exact, rounded)
    np.testing.assert_allclose(exact, rounded, atol=0.05)
    cache = half._cache
    assert cache is not None
    huge = np.full((1, 2, 16), 1e9, np.float32)
    cache.write(0, np.array([4], np.int32), 3, huge, -huge)
    k, v = cache.read(0, np.array([4], np.int32), 4, np.dtype(np.float32))
    assert (k[3].max(), v[3].min()) == (65504.0, -65504.0)
    assert np.isnan(k[2]).all()


def test_step_answers_in_the_order_of_the_questions(tmp_path: Path) -> None:
    model = _model(tmp_path, "llama")
    tokens = np.random.default_rng(6).integers(0, 512, 100).tolist()
    batch = _batch([(tokens, 0, list(range(7)))])
    logits = model.logits(batch, range(100))
    places = [99, 3, 50, 3]
    draws = [Draw(place, seed=1, counter=place, temperature=0.0, top=2) for place in places]
    scores = [Score(place, tokens[place + 1]) for place in range(98, -1, -1)]
    output = model.step(batch, draws, scores)
    assert output.drawn == [int(logits[place].argmax()) for place in places]
    assert not output.draw_errors
    shifted = logits - logits.max(axis=1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    for place, score in zip(range(98, -1, -1), output.scored, strict=True):
        assert score.token_id == tokens[place + 1]
        assert score.logprob == pytest.approx(logprobs[place, score.token_id], abs=1e-4)
    chosen = output.drawn_logprobs[0]
    assert chosen is not None
    assert [token for token, _ in chosen.top] == np.argsort(-logits[99])[:2].tolist()


def test_a_draw_that_fails_fails_alone(tmp_path: Path) -> None:
    model = _model(tmp_path, "llama")
    draws = [Draw(0, 1, 0, temperature=0.0), Draw(1, 1, 0, banned=range(512))]
    output = model.step(_batch([([5, 6], 0, [0])]), draws, [])
    assert list(output.draw_errors) == [1]
    assert output.drawn[0] >= 0
    assert output.drawn[1] == -1


BAD_BATCHES = {
    "token": _batch([([512], 0, [0])]),
    "negative token": _batch([([-1], 0, [0])]),
    "page": _batch([([1], 0, [PAGES])]),
    "page not given": _batch([([1], 16, [0, -1])]),
    "table too short": _batch([([1] * 17, 0, [0])]),
    "past": _batch([([1], -1, [0])]),
    "empty row": _batch([([], 0, [0]), ([1], 0, [0])]),
    "no rows": Batch(
        np.array([1], np.int32), *(np.zeros(0, np.int32),) * 2, np.zeros((0, 1), np.int32)
    ),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_bad_batches_are_refused_and_leave_the_model_usable(tmp_path: Path, name: str) -> None:
    model = _model(tmp_path, "llama")
    with pytest.raises(ValueError):
        model.logits(BAD_BATCHES[name], [0])
    assert np.isfinite(model.logits(_batch([([1], 0, [0])]), [0])).all()


def test_wrong_uses(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        _model(tmp_path, "llama", kv_format="int3")
    model = _model(tmp_path, "llama")
    with pytest.raises(ValueError):
        model.allocate_kv(4, 17)
    with pytest.raises(ValueError):
        model.logits(_batch([([1], 0, [0])]), [1])
    model.close()
    with pytest.raises(EngineError):
        model.logits(_batch([([1], 0, [0])]), [0])
