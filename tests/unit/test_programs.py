"""Programs: what each family's checkpoint becomes, and which checkpoints are refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.compute.models.registry import load_program
from octavo.compute.program import (
    Attention,
    Embedding,
    GeluMul,
    KvLayout,
    Linear,
    Logits,
    Program,
    RmsNorm,
    Rope,
    RopeStyle,
    SiluMul,
)
from octavo.core.errors import ModelFileError
from octavo.core.gguf import GgufFile
from tiny import FAMILIES, TinySizes, make_tiny_gguf


def _program(path: Path) -> Program:
    with GgufFile.open(path) as file:
        return load_program(file)


def _make(tmp_path: Path, family: str = "llama", **options: object) -> Program:
    return _program(make_tiny_gguf(tmp_path / "model.gguf", family, **options))  # type: ignore[arg-type]


def _refusal(tmp_path: Path, family: str = "llama", **options: object) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        _make(tmp_path, family, **options)
    return caught.value


def _all(program: Program, kind: type) -> list:  # type: ignore[type-arg]
    return [operator for operator in program.operators if isinstance(operator, kind)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_activation_is_written_before_it_is_read_and_has_a_width(
    tmp_path: Path, family: str
) -> None:
    program = _make(tmp_path, family)
    written: set[str] = set()
    for operator in program.operators:
        for read in ("x", "q", "k", "v", "gate", "up", "a", "b"):
            name = getattr(operator, read, None)
            assert name is None or name in written
        written.add(getattr(operator, "out", "nothing"))
    assert written - {"nothing"} == set(program.widths)
    assert isinstance(program.operators[0], Embedding)
    assert isinstance(program.operators[-1], Logits)


def test_llama(tmp_path: Path) -> None:
    program = _make(tmp_path)
    assert program.kv == KvLayout(layers=2, kv_heads=2, head_dim=16)
    assert (program.vocabulary_size, program.context_tokens) == (512, 512)
    assert {rope.style for rope in _all(program, Rope)} == {RopeStyle.INTERLEAVED}
    assert {rope.base for rope in _all(program, Rope)} == {10_000.0}
    assert all(linear.bias is None for linear in _all(program, Linear))
    assert {item.scale for item in _all(program, Attention)} == {0.25}
    assert len(_all(program, SiluMul)) == 2
    assert program.operators[-1] == Logits("normed", "token_embd.weight")


def test_qwen2(tmp_path: Path) -> None:
    program = _make(tmp_path, "qwen2")
    assert {rope.style for rope in _all(program, Rope)} == {RopeStyle.HALVES}
    biased = [linear.out for linear in _all(program, Linear) if linear.bias]
    assert biased == ["q", "k", "v"] * 3
    assert program.operators[-1] == Logits("normed", "output.weight")


def test_gemma3(tmp_path: Path) -> None:
    program = _make(tmp_path, "gemma3")
    assert program.operators[0] == Embedding("residual", "token_embd.weight", 8.0)
    assert [item.window for item in _all(program, Attention)] == [24] * 5 + [0]
    assert [rope.base for rope in _all(program, Rope)] == [1e4] * 10 + [1e6] * 2
    assert {item.heads for item in _all(program, RmsNorm)} == {1, 4}
    assert len(_all(program, RmsNorm)) == 6 * 6 + 1
    assert len(_all(program, GeluMul)) == 6


def test_gemma3_switches(tmp_path: Path) -> None:
    program = _make(
        tmp_path,
        "gemma3",
        override={
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
            "gemma3.rope.freq_base_swa": 5_000.0,
            "gemma3.attention.sliding_window_pattern": 3,
            "gemma3.final_logit_softcapping": 30.0,
            "gemma3.attn_logit_softcapping": 50.0,
        },
    )
    assert [item.window for item in _all(program, Attention)] == [24, 24, 0] * 2
    ropes = _all(program, Rope)[::2]
    assert [rope.scale for rope in ropes] == [1.0, 1.0, 0.125] * 2
    assert [rope.base for rope in ropes] == [5e3, 5e3, 1e6] * 2
    assert program.operators[-1].softcap == 30.0  # type: ignore[union-attr]
    assert {item.softcap for item in _all(program, Attention)} == {50.0}


def test_gemma3_takes_a_list_of_layers_with_a_window(tmp_path: Path) -> None:
    key = "gemma3.attention.sliding_window_pattern"
    pattern = [True, False, True, True, True, False]
    program = _make(tmp_path, "gemma3", override={key: pattern})
    assert [item.window for item in _all(program, Attention)] == [24, 0, 24, 24, 24, 0]
    assert _refusal(tmp_path, "gemma3", override={key: pattern[:5]}).field == key


def test_the_largest_gemma3_scales_by_hidden_size_per_head(tmp_path: Path) -> None:
    sizes = TinySizes(layers=62, kv_heads=1, head_dim=32)
    program = _make(tmp_path, "gemma3", sizes=sizes, quant="Q8_0")
    assert {item.scale for item in _all(program, Attention)} == {(64 // 4) ** -0.5}


def test_llama_rope_switches(tmp_path: Path) -> None:
    scaled = _make(tmp_path, override={"llama.rope.scaling.factor": 4.0})
    assert {rope.scale for rope in _all(scaled, Rope)} == {0.25}
    off = {"llama.rope.scaling.factor": 4.0, "llama.rope.scaling.type": "none"}
    assert {rope.scale for rope in _all(_make(tmp_path, override=off), Rope)} == {1.0}
    partial = _make(tmp_path, override={"llama.rope.dimension_count": 8})
    assert {rope.dims for rope in _all(partial, Rope)} == {8}


def _with_tensor(tmp_path: Path, name: str, values: np.ndarray) -> Path:
    """A tiny llama file with one more tensor."""
    source, target = tmp_path / "source.gguf", tmp_path / "model.gguf"
    make_tiny_gguf(source, quant="F32")
    writer = gguf.GGUFWriter(target, "llama")
    with GgufFile.open(source) as file:
        for key in file.metadata:
            value = file.metadata[key]
            if isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, str) and key != "general.architecture":
                writer.add_string(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, int) and not isinstance(value, bool):
                writer.add_uint32(key, value)
        for info in file.tensors.values():
            stored = np.frombuffer(file.raw(info.name), np.float32).reshape(info.shape)
            writer.add_tensor(info.name, stored.copy())
            del stored
    writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_llama_3_factors_are_used(tmp_path: Path) -> None:
    path = _with_tensor(tmp_path, "rope_freqs.weight", np.ones(8, np.float32))
    assert {rope.factors for rope in _all(_program(path), Rope)} == {"rope_freqs.weight"}


def test_llama_biases_are_used_where_there_are_any(tmp_path: Path) -> None:
    path = _with_tensor(tmp_path, "blk.1.attn_q.bias", np.ones(64, np.float32))
    biases = [linear.bias for linear in _all(_program(path), Linear) if linear.bias]
    assert biases == ["blk.1.attn_q.bias"]


def test_a_tensor_that_nobody_uses_is_refused(tmp_path: Path) -> None:
    path = _with_tensor(tmp_path, "blk.0.attn_sinks.weight", np.ones(4, np.float32))
    with pytest.raises(ModelFileError) as caught:
        _program(path)
    assert caught.value.field == "blk.0.attn_sinks.weight"


def test_window_of_a_llama_file_is_used(tmp_path: Path) -> None:
    program = _make(tmp_path, override={"llama.attention.sliding_window": 40})
    assert {item.window for item in _all(program, Attention)} == {40}


REQUIRED = (
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "context_length",
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_key_is_named(tmp_path: Path, family: str, name: str) -> None:
    key = f"{family}.{name}"
    assert _refusal(tmp_path, family, drop=frozenset({key})).field == key


@pytest.mark.parametrize("family", FAMILIES)
def test_every_missing_tensor_is_named(tmp_path: Path, family: str) -> None:
    with GgufFile.open(make_tiny_gguf(tmp_path / "whole.gguf", family)) as file:
        names = [name for name in file.tensors if name.startswith(("blk.1.", "output_norm", "tok"))]
    assert len(names) >= 11
    for name in names:
        error = _refusal(tmp_path, family, drop=frozenset({name}))
        assert (error.field, error.found) == (name, "nothing")


DAMAGE = {
    "architecture": ({"general.architecture": "gpt5"}, "general.architecture"),
    "wrong shape": ({"llama.feed_forward_length": 160}, "blk.0.ffn_gate.weight"),
    "hidden size": ({"llama.embedding_length": 96}, "token_embd.weight"),
    "layers beyond tensors": ({"llama.block_count": 2**31 - 1}, "llama.block_count"),
    "one layer too many": ({"llama.block_count": 3}, "blk.2.attn_norm.weight"),
    "one layer too few": ({"llama.block_count": 1}, "blk.1.attn_norm.weight"),
    "heads": ({"llama.attention.head_count": 3}, "llama.attention.head_count_kv"),
    "no heads": ({"llama.attention.head_count": 0}, "llama.attention.head_count"),
    "text for a number": ({"llama.block_count": "two"}, "llama.block_count"),
    "odd rope": ({"llama.rope.dimension_count": 7}, "llama.rope.dimension_count"),
    "rope base": ({"llama.rope.freq_base": float("inf")}, "llama.rope.freq_base"),
    "yarn": ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type"),
    "value size": ({"llama.attention.value_length": 32}, "llama.attention.value_length"),
    "experts": ({"llama.expert_count": 8}, "llama.expert_count"),
    "split": ({"split.count": 4}, "split.count"),
    "eps": ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "_epsilon"),
    "tokens": ({"tokenizer.ggml.tokens": ["a", "b"]}, "tokenizer.ggml.tokens"),
    "tokens no array": ({"tokenizer.ggml.tokens": "a"}, "tokenizer.ggml.tokens"),
    "uneven heads": ({"llama.attention.head_count": [4, 2]}, "llama.attention.head_count"),
    "heads of no layer": ({"llama.attention.head_count": [4]}, "llama.attention.head_count"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    override, field = DAMAGE[name]
    error = _refusal(tmp_path, override=override)
    assert error.field is not None
    assert error.field.endswith(field)
    assert error.expected
    assert error.found


def test_no_vocabulary_at_all(tmp_path: Path) -> None:
    error = _refusal(tmp_path, drop=frozenset({"tokenizer.ggml.tokens"}))
    assert error.field == "tokenizer.ggml.tokens"


def test_equal_head_counts_a_layer_are_one_count(tmp_path: Path) -> None:
    listed = _make(tmp_path, override={"llama.attention.head_count_kv": [2, 2]})
    assert listed == _make(tmp_path)


@pytest.mark.parametrize(
    ("model", "layout", "operators"),
    [
        ("smollm2_path", KvLayout(30, 3, 64), 483),
        ("gemma3_path", KvLayout(18, 1, 256), 363),
        ("qwen_path", KvLayout(24, 2, 64), 387),
    ],
)
def test_real_files(
    model: str, layout: KvLayout, operators: int, request: pytest.FixtureRequest
) -> None:
    program = _program(request.getfixturevalue(model))
    assert program.kv == layout
    assert len(program.operators) == operators
