"""A wrong value as messages show it."""

from __future__ import annotations

import reprlib

_BOUNDED = reprlib.Repr()
_BOUNDED.maxlevel = 3
_BOUNDED.maxstring = _BOUNDED.maxother = 200


def shown(value: object, most_characters: int = 60) -> str:
    """`repr`, cut. Its cost is bounded: a few lines of YAML can share lists into billions."""
    try:
        text = _BOUNDED.repr(value)
    except ValueError:  # integers beyond the digits limit of the interpreter
        return "a huge number"
    return text if len(text) <= most_characters else text[: most_characters - 3] + "..."
