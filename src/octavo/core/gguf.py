"""GGUF model files: an own memory-mapped reader that refuses a damaged file before any work.

Format: the GGUF specification of the ggml project, versions 2 and 3, little endian. Tensor data
is never touched at opening; the pages of the file are read when somebody uses them.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TypeVar

from octavo.core.errors import ModelFileError, ModelNotFound
from octavo.core.gguf_reader import MAX_KEYS, REMEDY, Cursor, Metadata, read_metadata
from octavo.core.gguf_types import BLOCK_SIZES, OTHER_TYPE_NAMES, GgmlType, row_bytes

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TENSORS = 65_536
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 1024
DEFAULT_ALIGNMENT_BYTES = 32
_SMALLEST_KEY_BYTES = 8 + 4 + 1
_SMALLEST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: `shape` has rows first, `offset_bytes` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GgmlType
    offset_bytes: int
    size_bytes: int


class GgufFile:
    """An open model file: metadata, tensor places and raw tensor bytes.

    Views from `raw` stay valid after `close` for as long as somebody holds them.
    """

    def __init__(self, path: Path, buffer: memoryview, mapping: mmap.mmap) -> None:
        self.path = path
        self._buffer = buffer
        self._mapping = mapping
        cursor = Cursor(buffer)
        tensor_count, key_count = _read_header(cursor)
        self.metadata: Metadata = read_metadata(cursor, key_count)
        self.alignment_bytes = _alignment(self.metadata)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            _read_tensors(cursor, tensor_count, self.alignment_bytes)
        )

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Map and check a file.

        Raises:
            ModelNotFound: nothing is at `path`.
            ModelFileError: it cannot be read, is damaged, or is not supported.
        """
        location = Path(path)
        mapping = _map(location)
        buffer = memoryview(mapping)
        try:
            return cls(location, buffer, mapping)
        except BaseException:
            _unmap(buffer, mapping)
            raise

    def raw(self, name: str) -> memoryview:
        """Bytes of a tensor as they are in the file, without a copy."""
        if name not in self.tensors:
            raise ModelFileError("the tensor is missing", field=name, remedy=REMEDY)
        info = self.tensors[name]
        return self._buffer[info.offset_bytes : info.offset_bytes + info.size_bytes]

    def release(self, name: str) -> None:
        """Give back the memory that reading a tensor took; its bytes can still be read anew.

        Mapped pages count as this process's memory although the system could drop them, so
        whoever made a copy of the weights says so.
        """
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        info = self.tensors[name]
        # Whole pages: the edges hold parts of the neighbours, which may be in use.
        begin = -(-info.offset_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (info.offset_bytes + info.size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < end:
            self._mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def array(self, key: str) -> list[object]:
        """An array of the metadata; decoded anew at each call."""
        value = self._value(key)
        if not isinstance(value, list):
            raise _wrong_type(key, "an array", value)
        return value

    def strings(self, key: str) -> list[str]:
        """An array of strings; decoded anew at each call."""
        return self._elements(key, str, "an array of strings")

    def text(self, key: str) -> str:
        """A string of the metadata."""
        value = self._value(key)
        if not isinstance(value, str):
            raise _wrong_type(key, "a string", value)
        return value

    def boolean(self, key: str) -> bool:
        """A truth value of the metadata."""
        value = self._value(key)
        if not isinstance(value, bool):
            raise _wrong_type(key, "true or false", value)
        return value

    def integer(self, key: str, low: int = 0, high: int = 2**31 - 1) -> int:
        """An integer of the metadata in [low, high]."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(key, "an integer", value)
        if not low <= value <= high:
            raise _out_of_range(key, low, high, value)
        return value

    def number(self, key: str, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite number of the metadata in [low, high]."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _wrong_type(key, "a number", value)
        if not math.isfinite(value) or not low <= value <= high:
            raise _out_of_range(key, low, high, value)
        return float(value)

    def close(self) -> None:
        """Let go of the file; it is unmapped when the last view of it goes."""
        _unmap(self._buffer, self._mapping)

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _value(self, key: str) -> object:
        if key not in self.metadata:
            raise ModelFileError(
                "the metadata key is missing",
                field=key,
                remedy="the file is damaged or was converted by a faulty tool",
            )
        return self.metadata[key]

    def _elements(self, key: str, kind: type[_T], expected: str) -> list[_T]:
        values = self.array(key)
        checked = [value for value in values if isinstance(value, kind)]
        if len(checked) != len(values):
            raise _wrong_type(key, expected, values)
        return checked


def _map(path: Path) -> mmap.mmap:
    try:
        # O_NONBLOCK: opening a pipe without a writer would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise ModelNotFound("no such file", field=str(path)) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(
                "cannot be read as a model",
                field=str(path),
                expected="a regular file",
                found="a folder" if stat.S_ISDIR(status.st_mode) else "a device, pipe or socket",
            )
        if status.st_size < len(MAGIC):
            raise ModelFileError(
                "the file is too short",
                field=str(path),
                expected="a GGUF file",
                found=f"{status.st_size} bytes",
                remedy=REMEDY,
            )
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    finally:
        os.close(descriptor)


def _unreadable(path: Path, error: Exception) -> ModelFileError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ModelFileError(f"cannot be opened: {reason}", field=str(path))


def _unmap(buffer: memoryview, mapping: mmap.mmap) -> None:
    try:
        buffer.release()
        mapping.close()
    except BufferError:
        # Somebody holds a view (a numpy array, say); the mapping goes with the last of them.
        return


def _read_header(cursor: Cursor) -> tuple[int, int]:
    start = cursor.skip(4, "magic")
    magic = bytes(cursor.buffer[start : start + 4])
    if magic != MAGIC:
        raise ModelFileError(
            "not a GGUF file",
            field="magic",
            expected="'GGUF'",
            found=repr(magic.decode("latin-1")),
            remedy="give the path of a .gguf file",
        )
    version = cursor.uint32("version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        big_endian = swapped in (1, *VERSIONS)
        raise ModelFileError(
            "the file is big endian" if big_endian else "unsupported version of GGUF",
            field="version",
            expected="2 or 3, little endian",
            found=f"{swapped}, big endian" if big_endian else f"{version}",
            remedy="convert the model again with a current, little-endian converter",
        )
    tensor_count = _count(cursor, "tensor count", MAX_TENSORS, _SMALLEST_TENSOR_BYTES)
    key_count = _count(cursor, "metadata count", MAX_KEYS, _SMALLEST_KEY_BYTES)
    return tensor_count, key_count


def _count(cursor: Cursor, field: str, limit: int, smallest_bytes: int) -> int:
    count = cursor.uint64(field)
    most = min(limit, cursor.left_bytes // smallest_bytes)
    if count > most:
        raise ModelFileError(
            "absurd count", field=field, expected=f"at most {most}", found=f"{count}", remedy=REMEDY
        )
    return count


def _alignment(metadata: Metadata) -> int:
    key = "general.alignment"
    value = metadata.get(key, DEFAULT_ALIGNMENT_BYTES)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(key, "an integer", value)
    if value <= 0 or value & (value - 1) or value > 2**20:
        raise ModelFileError(
            "bad alignment",
            field=key,
            expected="a power of two up to 1048576",
            found=f"{value}",
            remedy=REMEDY,
        )
    return value


def _read_tensors(cursor: Cursor, count: int, alignment_bytes: int) -> dict[str, TensorInfo]:
    places = [_read_tensor(cursor, number) for number in range(count)]
    data_start = -(-cursor.position // alignment_bytes) * alignment_bytes
    file_bytes = len(cursor.buffer)
    tensors: dict[str, TensorInfo] = {}
    for name, shape, ggml_type, offset_bytes in places:
        if name in tensors:
            raise ModelFileError("the tensor appears twice", field=name, remedy=REMEDY)
        if offset_bytes % alignment_bytes:
            raise ModelFileError(
                "the tensor is misaligned",
                field=name,
                expected=f"an offset that is a multiple of {alignment_bytes}",
                found=f"{offset_bytes}",
                remedy=REMEDY,
            )
        size_bytes = _size_bytes(name, shape, ggml_type)
        start = data_start + offset_bytes
        if start + size_bytes > file_bytes:
            raise ModelFileError(
                "the file is truncated: the tensor reaches beyond its end",
                field=name,
                expected=f"at least {start + size_bytes} bytes",
                found=f"{file_bytes}",
                remedy=REMEDY,
            )
        tensors[name] = TensorInfo(name, shape, ggml_type, start, size_bytes)
    return tensors


def _read_tensor(cursor: Cursor, number: int) -> tuple[str, tuple[int, ...], GgmlType, int]:
    name = cursor.name(f"tensor {number}", MAX_NAME_BYTES)
    dimensions = cursor.uint32(name)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ModelFileError(
            "bad number of dimensions",
            field=name,
            expected=f"1 to {MAX_DIMENSIONS}",
            found=f"{dimensions}",
            remedy=REMEDY,
        )
    shape = tuple(reversed([cursor.uint64(name) for _ in range(dimensions)]))
    if any(size == 0 or size >= 2**40 for size in shape) or math.prod(shape) >= 2**48:
        raise ModelFileError(
            "absurd shape",
            field=name,
            expected="sizes from 1 that fit a file",
            found=f"{shape}",
            remedy=REMEDY,
        )
    type_id = cursor.uint32(name)
    offset_bytes = cursor.uint64(name)
    if type_id not in GgmlType.__members__.values():
        known = OTHER_TYPE_NAMES.get(type_id)
        raise ModelFileError(
            "the tensor's format is not supported" if known else "unknown tensor format",
            field=name,
            expected="one of " + ", ".join(item.name for item in GgmlType),
            found=known or f"type id {type_id}",
            remedy="use a file in another quantisation, such as Q4_K_M or Q8_0",
        )
    return name, shape, GgmlType(type_id), offset_bytes


def _size_bytes(name: str, shape: tuple[int, ...], ggml_type: GgmlType) -> int:
    try:
        return math.prod(shape[:-1]) * row_bytes(ggml_type, shape[-1])
    except ValueError:
        raise ModelFileError(
            f"the row width does not fit {ggml_type.name}",
            field=name,
            expected=f"a multiple of {BLOCK_SIZES[ggml_type].block_elements}",
            found=f"{shape[-1]}",
            remedy=REMEDY,
        ) from None


def _wrong_type(key: str, expected: str, value: object) -> ModelFileError:
    shown = "an array" if isinstance(value, list) else repr(value)[:60]
    return ModelFileError(
        "wrong type of value", field=key, expected=expected, found=shown, remedy=REMEDY
    )


def _out_of_range(key: str, low: float, high: float, value: float) -> ModelFileError:
    return ModelFileError(
        "value out of range",
        field=key,
        expected=f"{low} to {high}",
        found=f"{value}",
        remedy=REMEDY,
    )
