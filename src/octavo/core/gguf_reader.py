"""Bounds-checked reading of GGUF primitives and metadata from a buffer.

Nothing here trusts a length it reads: each is compared with the bytes that are left before it is
used, so a damaged file costs neither memory nor time.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from octavo.core.errors import ModelFileError

MAX_KEYS = 65_536
MAX_KEY_BYTES = 65_535
MAX_STRINGS = 4_194_304
"""Strings in all arrays of a file together; the largest vocabularies have about a million."""

REMEDY = "the file is damaged or incomplete: download it again"

_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_STRING = 8
_ARRAY = 9
_BOOL = 7
_SCALARS: dict[int, tuple[str, struct.Struct]] = {
    0: ("uint8", struct.Struct("<B")),
    1: ("int8", struct.Struct("<b")),
    2: ("uint16", struct.Struct("<H")),
    3: ("int16", struct.Struct("<h")),
    4: ("uint32", _UINT32),
    5: ("int32", struct.Struct("<i")),
    6: ("float32", struct.Struct("<f")),
    _BOOL: ("bool", struct.Struct("<B")),
    10: ("uint64", _UINT64),
    11: ("int64", struct.Struct("<q")),
    12: ("float64", struct.Struct("<d")),
}


class Cursor:
    """A position in the file that only moves forward and never past the end."""

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.position = 0

    @property
    def left_bytes(self) -> int:
        return len(self.buffer) - self.position

    def skip(self, size_bytes: int, field: str) -> int:
        """Step over `size_bytes` and return where they start."""
        if size_bytes > self.left_bytes:
            raise ModelFileError(
                "the file ends too early",
                field=field,
                expected=f"{size_bytes} bytes from offset {self.position}",
                found=f"{self.left_bytes}",
                remedy=REMEDY,
            )
        start = self.position
        self.position += size_bytes
        return start

    def uint32(self, field: str) -> int:
        value: int = _UINT32.unpack_from(self.buffer, self.skip(4, field))[0]
        return value

    def uint64(self, field: str) -> int:
        value: int = _UINT64.unpack_from(self.buffer, self.skip(8, field))[0]
        return value

    def name(self, field: str, limit_bytes: int) -> str:
        """A length-prefixed UTF-8 string that is not empty."""
        size_bytes = self.uint64(field)
        if not 1 <= size_bytes <= limit_bytes:
            raise ModelFileError(
                "bad length of a name",
                field=field,
                expected=f"1 to {limit_bytes} bytes",
                found=f"{size_bytes}",
                remedy=REMEDY,
            )
        start = self.skip(size_bytes, field)
        return decode_text(self.buffer[start : start + size_bytes], field)


def decode_text(data: memoryview, field: str) -> str:
    """UTF-8 to text, or an error that names the field."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(
            "text is not UTF-8",
            field=field,
            expected="UTF-8",
            found=f"byte 0x{error.object[error.start]:02x} at {error.start}",
            remedy=REMEDY,
        ) from None


@dataclass(frozen=True, slots=True)
class _Scalar:
    value: int | float | bool


@dataclass(frozen=True, slots=True)
class _Text:
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Numbers:
    element: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class _Texts:
    starts: array[int]
    """Offsets of the strings' first bytes, then one past the last string's length field."""


_Entry = _Scalar | _Text | _Numbers | _Texts


class Metadata(Mapping[str, object]):
    """Keys and values of a file, in file order.

    Text and arrays are decoded anew at each access (arrays as lists), so ask once and keep the
    result; scalars are ready. Accessing text that is not UTF-8 raises ModelFileError.
    """

    def __init__(self, buffer: memoryview, entries: dict[str, _Entry]) -> None:
        self._buffer = buffer
        self._entries = entries

    def __getitem__(self, key: str) -> object:
        entry = self._entries[key]
        if isinstance(entry, _Scalar):
            return entry.value
        if isinstance(entry, _Text):
            return decode_text(self._buffer[entry.start : entry.end], key)
        if isinstance(entry, _Numbers):
            return self._numbers(entry)
        return self._texts(entry, key)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def array_length(self, key: str) -> int | None:
        """Elements of an array without decoding it; None where the value is no array."""
        entry = self._entries[key]
        if isinstance(entry, _Numbers):
            return entry.count
        if isinstance(entry, _Texts):
            return len(entry.starts) - 1
        return None

    def _numbers(self, entry: _Numbers) -> list[int | float | bool]:
        letter = _SCALARS[entry.element][1].format[-1]
        values = list(struct.unpack_from(f"<{entry.count}{letter}", self._buffer, entry.start))
        return [value != 0 for value in values] if entry.element == _BOOL else values

    def _texts(self, entry: _Texts, key: str) -> list[str]:
        starts = entry.starts
        first, last = starts[0], starts[-1] - 8
        data = bytes(self._buffer[first : max(first, last)])
        try:
            return [
                data[start - first : following - first - 8].decode()
                for start, following in pairwise(starts)
            ]
        except UnicodeDecodeError as error:
            raise ModelFileError(
                "an entry is not UTF-8", field=key, expected="UTF-8", found=repr(error.object[:32])
            ) from None


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """Read `count` key-value pairs at the cursor."""
    entries: dict[str, _Entry] = {}
    strings_left = MAX_STRINGS
    for number in range(count):
        key = cursor.name(f"metadata key {number}", MAX_KEY_BYTES)
        if key in entries:
            raise ModelFileError("the key appears twice", field=key, remedy=REMEDY)
        entry = _read_value(cursor, key, strings_left)
        if isinstance(entry, _Texts):
            strings_left -= len(entry.starts) - 1
        entries[key] = entry
    return Metadata(cursor.buffer, entries)


def _read_value(cursor: Cursor, key: str, strings_left: int) -> _Entry:
    kind = cursor.uint32(key)
    if kind == _STRING:
        size_bytes = cursor.uint64(key)
        start = cursor.skip(size_bytes, key)
        return _Text(start, start + size_bytes)
    if kind == _ARRAY:
        return _read_array(cursor, key, strings_left)
    form = _scalar_form(kind, key)
    value = form.unpack_from(cursor.buffer, cursor.skip(form.size, key))[0]
    return _Scalar(value != 0 if kind == _BOOL else value)


def _read_array(cursor: Cursor, key: str, strings_left: int) -> _Entry:
    element = cursor.uint32(key)
    count = cursor.uint64(key)
    if element == _ARRAY:
        raise ModelFileError(
            "arrays of arrays are not supported",
            field=key,
            expected="an array of numbers or strings",
            found="an array of arrays",
        )
    smallest_bytes = 8 if element == _STRING else _scalar_form(element, key).size
    if count > cursor.left_bytes // smallest_bytes:
        raise ModelFileError(
            "the array is longer than the file",
            field=key,
            expected=f"at most {cursor.left_bytes // smallest_bytes} elements",
            found=f"{count}",
            remedy=REMEDY,
        )
    if element != _STRING:
        return _Numbers(element, cursor.skip(count * smallest_bytes, key), count)
    if count > strings_left:
        raise ModelFileError(
            "too many strings",
            field=key,
            expected=f"at most {MAX_STRINGS} in all arrays",
            found=f"{MAX_STRINGS - strings_left + count}",
        )
    return _scan_texts(cursor, key, count)


def _scan_texts(cursor: Cursor, key: str, count: int) -> _Texts:
    """Find the strings of an array; written flat because vocabularies have 262,144 of them."""
    starts = array("Q", bytes(8 * (count + 1)))
    buffer, position = cursor.buffer, cursor.position
    unpack, last = _UINT64.unpack_from, len(cursor.buffer) - 8
    for index in range(count):
        if position > last:
            raise _text_beyond_end(key, index, count)
        size_bytes = unpack(buffer, position)[0]
        position += 8
        starts[index] = position
        if size_bytes > last + 8 - position:
            raise _text_beyond_end(key, index, count)
        position += size_bytes
    starts[count] = position + 8
    cursor.position = position
    return _Texts(starts)


def _text_beyond_end(key: str, index: int, count: int) -> ModelFileError:
    return ModelFileError(
        "a string reaches beyond the end of the file",
        field=key,
        expected=f"{count} strings",
        found=f"{index} whole ones",
        remedy=REMEDY,
    )


def _scalar_form(kind: int, key: str) -> struct.Struct:
    if kind not in _SCALARS:
        raise ModelFileError(
            "unknown type of value",
            field=key,
            expected="a type id from 0 to 12",
            found=f"{kind}",
            remedy=REMEDY,
        )
    return _SCALARS[kind][1]
