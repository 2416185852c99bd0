"""A page as it lies in a file: a header that says whose page it is, and the page."""

from __future__ import annotations

import struct
from hashlib import blake2b

_HEADER = struct.Struct("<8s32sQ32s")
_MAGIC = b"OCTKVPG1"
_BLOCK_BYTES = 4096
HEADER_BYTES = _HEADER.size


def slot_bytes(page_bytes: int) -> int:
    """Room of a record, in whole blocks so that records share no block of the system's."""
    return -(-(HEADER_BYTES + page_bytes) // _BLOCK_BYTES) * _BLOCK_BYTES


def make_header(key: bytes, page: memoryview) -> bytes:
    """The header of a page: its key, its length, and a checksum over both and the page."""
    return _HEADER.pack(_MAGIC, key, len(page), _digest(key, page))


def is_whole(header: bytes | bytearray, key: bytes, page: memoryview) -> bool:
    """Whether header and page are those that were written for `key`."""
    return bytes(header) == make_header(key, page)


def key_of(header: bytes | bytearray) -> bytes | None:
    """The key that a header names, None if it is no header."""
    magic, key, _, _ = _HEADER.unpack(header)
    return key if magic == _MAGIC else None


def _digest(key: bytes, page: memoryview) -> bytes:
    """256-bit BLAKE2b (RFC 7693)."""
    digest = blake2b(key, digest_size=32, person=b"octavo record")
    digest.update(len(page).to_bytes(8, "little"))
    digest.update(page)
    return digest.digest()
