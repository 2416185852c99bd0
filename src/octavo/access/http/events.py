"""Server-sent events (WHATWG HTML, section 9.2) with JSON values as their data."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

_HOLE = msgspec.Raw(b"\0")
"""No JSON: that has no control characters."""
_encode = msgspec.json.Encoder().encode


def event(chunk: object) -> bytes:
    """One event."""
    return b"data: %b\n\n" % _encode(chunk)


class TextEvents:
    """Events that differ in one text only; all the rest is written once."""

    def __init__(self, chunk_of: Callable[[msgspec.Raw], object]):
        """`chunk_of` gives the value that holds a text; it is called with a stand-in for one."""
        self._head, self._tail = event(chunk_of(_HOLE)).split(b"\0")

    def event(self, text: str) -> bytes:
        return b"%b%b%b" % (self._head, _encode(text), self._tail)
