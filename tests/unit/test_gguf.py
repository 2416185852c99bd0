"""The GGUF reader on whole files and on every kind of damage it names."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.core.errors import ModelFileError, ModelNotFound
from octavo.core.gguf import GgufFile
from octavo.core.gguf_types import GgmlType
from tiny import FAMILIES, make_tiny_gguf


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _pair(key: str, kind: int, payload: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + payload


def _tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return _text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


def _file(
    path: Path,
    pairs: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    *,
    data: bytes = bytes(256),
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    pair_count: int | None = None,
) -> Path:
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if pair_count is None else pair_count,
    )
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def _refused(path: Path) -> ModelFileError:
    started = time.monotonic()
    with pytest.raises(ModelFileError) as caught:
        GgufFile.open(path)
    assert time.monotonic() - started < 10  # a hang, not a timing
    return caught.value


@pytest.mark.parametrize("family", FAMILIES)
def test_reads_what_the_gguf_package_wrote(tmp_path: Path, family: str) -> None:
    path = make_tiny_gguf(tmp_path / "model.gguf", family, quant="mixed")
    reader = gguf.GGUFReader(path)
    with GgufFile.open(path) as file:
        assert list(file.metadata) == [k for k in reader.fields if not k.startswith("GGUF.")]
        for key in file.metadata:
            assert file.metadata[key] == reader.fields[key].contents()
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            info = file.tensors[tensor.name]
            assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
            assert int(info.ggml_type) == int(tensor.tensor_type)
            assert bytes(file.raw(tensor.name)) == tensor.data.tobytes()


def test_every_kind_of_value(tmp_path: Path) -> None:
    pairs = (
        _pair("u8", 0, b"\xff"),
        _pair("i8", 1, b"\xff"),
        _pair("u16", 2, struct.pack("<H", 65535)),
        _pair("i16", 3, struct.pack("<h", -2)),
        _pair("u32", 4, struct.pack("<I", 2**32 - 1)),
        _pair("i32", 5, struct.pack("<i", -3)),
        _pair("f32", 6, struct.pack("<f", 1.5)),
        _pair("yes", 7, b"\x01"),
        _pair("text", 8, _text("grüße")),
        _pair("u64", 10, struct.pack("<Q", 2**64 - 1)),
        _pair("i64", 11, struct.pack("<q", -4)),
        _pair("f64", 12, struct.pack("<d", 0.1)),
        _pair("none", 9, struct.pack("<IQ", 8, 0)),
        _pair("texts", 9, struct.pack("<IQ", 8, 2) + _text("") + _text("é")),
        _pair("flags", 9, struct.pack("<IQ", 7, 3) + b"\x01\x00\x02"),
    )
    with GgufFile.open(_file(tmp_path / "a.gguf", pairs)) as file:
        assert dict(file.metadata) == {
            "u8": 255,
            "i8": -1,
            "u16": 65535,
            "i16": -2,
            "u32": 2**32 - 1,
            "i32": -3,
            "f32": 1.5,
            "yes": True,
            "text": "grüße",
            "u64": 2**64 - 1,
            "i64": -4,
            "f64": 0.1,
            "none": [],
            "texts": ["", "é"],
            "flags": [True, False, True],
        }


def test_views_outlive_the_file(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "model.gguf", quant="F32")
    with GgufFile.open(path) as file:
        values = np.frombuffer(file.raw("output_norm.weight"), dtype=np.float32)
        expected = values.copy()
    assert np.array_equal(values, expected)
    assert not values.flags.writeable


def _resident_bytes(path: Path) -> int:
    """How much of a mapped file counts as this process's memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_a_released_tensor_takes_no_memory_and_reads_the_same(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8).tobytes()
    tensors = (_tensor("a", (1 << 17,)), _tensor("b", (1 << 17,), offset=1 << 19))
    path = _file(tmp_path / "a.gguf", tensors=tensors, data=data)
    with GgufFile.open(path) as file:
        first, second = bytes(file.raw("a")), bytes(file.raw("b"))
        assert _resident_bytes(path) >= 1 << 20
        file.release("a")
        assert _resident_bytes(path) <= (1 << 19) + (1 << 16)
        assert bytes(file.raw("a")) == first == data[: 1 << 19]
        assert bytes(file.raw("b")) == second == data[1 << 19 :]


def test_typed_getters_name_key_and_finding(tmp_path: Path) -> None:
    pairs = (
        _pair("size", 4, struct.pack("<I", 7)),
        _pair("name", 8, _text("x")),
        _pair("on", 7, b"\x01"),
        _pair("bad", 6, struct.pack("<f", float("nan"))),
        _pair("ids", 9, struct.pack("<IQ", 4, 1) + struct.pack("<I", 5)),
    )
    with GgufFile.open(_file(tmp_path / "a.gguf", pairs)) as file:
        assert (file.integer("size"), file.text("name"), file.boolean("on")) == (7, "x", True)
        assert (file.number("size"), file.array("ids")) == (7.0, [5])
        for call, field in (
            (lambda: file.integer("gone"), "gone"),
            (lambda: file.integer("name"), "name"),
            (lambda: file.integer("on"), "on"),
            (lambda: file.integer("size", 8, 9), "size"),
            (lambda: file.number("bad"), "bad"),
            (lambda: file.text("size"), "size"),
            (lambda: file.boolean("size"), "size"),
            (lambda: file.array("size"), "size"),
            (lambda: file.strings("ids"), "ids"),
            (lambda: file.raw("tensor"), "tensor"),
        ):
            with pytest.raises(ModelFileError) as caught:
                call()
            assert caught.value.field == field


BAD_HEADERS = {
    "magic": ({"magic": b"GGML"}, "magic"),
    "version 1": ({"version": 1}, "version"),
    "big endian": ({"version": 3 << 24}, "big endian"),
    "tensors": ({"tensor_count": 2**63}, "tensor count"),
    "keys": ({"pair_count": 2**40}, "metadata count"),
    "more keys than there are": ({"pair_count": 3}, "metadata key"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_bad_headers(tmp_path: Path, name: str) -> None:
    changes, told = BAD_HEADERS[name]
    assert told in str(_refused(_file(tmp_path / "a.gguf", **changes)))  # type: ignore[arg-type]


BAD_PAIRS = {
    "key length": (struct.pack("<Q", 2**60), "metadata key 0"),
    "key text": (struct.pack("<Q", 2) + b"\xff\xfe" + bytes(8), "metadata key 0"),
    "value kind": (_pair("k", 13, bytes(8)), "k"),
    "string length": (_pair("k", 8, struct.pack("<Q", 2**62)), "k"),
    "string just beyond": (_pair("k", 8, struct.pack("<Q", 10_000)), "k"),
    "array length": (_pair("k", 9, struct.pack("<IQ", 4, 2**61)), "k"),
    "array kind": (_pair("k", 9, struct.pack("<IQ", 99, 1)), "k"),
    "array of arrays": (_pair("k", 9, struct.pack("<IQ", 9, 1)), "k"),
    "strings count": (_pair("k", 9, struct.pack("<IQ", 8, 2**40)), "k"),
    "string in an array": (_pair("k", 9, struct.pack("<IQQ", 8, 1, 2**50)), "k"),
    "alignment 0": (_pair("general.alignment", 4, bytes(4)), "general.alignment"),
    "alignment 24": (_pair("general.alignment", 4, b"\x18\0\0\0"), "general.alignment"),
    "alignment text": (_pair("general.alignment", 8, _text("32")), "general.alignment"),
}


@pytest.mark.parametrize("name", BAD_PAIRS)
def test_bad_metadata_names_the_key(tmp_path: Path, name: str) -> None:
    pair, field = BAD_PAIRS[name]
    error = _refused(_file(tmp_path / "a.gguf", (pair,)))
    assert error.field == field
    assert error.expected
    assert error.found


def test_a_key_twice(tmp_path: Path) -> None:
    pair = _pair("same", 0, b"\x01")
    assert _refused(_file(tmp_path / "a.gguf", (pair, pair))).field == "same"


def test_text_that_is_not_utf8_is_told_when_asked_for(tmp_path: Path) -> None:
    pairs = (
        _pair("note", 8, struct.pack("<Q", 1) + b"\xff"),
        _pair("list", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xff"),
    )
    with GgufFile.open(_file(tmp_path / "a.gguf", pairs)) as file:
        for key in ("note", "list"):
            with pytest.raises(ModelFileError) as caught:
                file.metadata[key]
            assert caught.value.field == key


BAD_TENSORS = {
    "no dimensions": _tensor("t", ()),
    "five dimensions": _tensor("t", (1, 1, 1, 1, 1)),
    "size 0": _tensor("t", (4, 0)),
    "size overflow": _tensor("t", (2**39, 2**39)),
    "size 2^63": _tensor("t", (2**63,)),
    "unknown kind": _tensor("t", (4,), kind=77),
    "unsupported kind": _tensor("t", (256,), kind=16),
    "half a block": _tensor("t", (33,), kind=int(GgmlType.Q4_0)),
    "offset beyond": _tensor("t", (4,), offset=2**40),
    "offset misaligned": _tensor("t", (4,), offset=4),
    "truncated": _tensor("t", (65,)),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_bad_tensors_are_named(tmp_path: Path, name: str) -> None:
    error = _refused(_file(tmp_path / "a.gguf", (), (BAD_TENSORS[name],)))
    assert error.field == "t"
    assert error.expected
    assert error.found


def test_truncation_tells_both_sizes(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "model.gguf")
    size_bytes = path.stat().st_size
    with path.open("r+b") as stream:
        stream.truncate(size_bytes // 2)
    error = _refused(path)
    assert "truncated" in error.message
    assert error.found == str(size_bytes // 2)


def test_unsupported_format_is_called_by_name(tmp_path: Path) -> None:
    error = _refused(_file(tmp_path / "a.gguf", (), (_tensor("t", (256,), kind=16),)))
    assert error.found == "IQ2_XXS"


def test_a_tensor_twice(tmp_path: Path) -> None:
    assert _refused(_file(tmp_path / "a.gguf", (), (_tensor("t", (4,)),) * 2)).field == "t"


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        GgufFile.open(tmp_path / "nothing.gguf")
    assert "a folder" in str(_refused(tmp_path))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "pipe" in str(_refused(pipe))
    empty = tmp_path / "empty.gguf"
    empty.touch()
    assert _refused(empty).found == "0 bytes"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "model.gguf")
    path.chmod(0)
    assert "denied" in str(_refused(path))
