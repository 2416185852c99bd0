"""Why a prefix was not found: enough of the past is remembered to tell, within a bound."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import TypeVar

from octavo.memory.keys import child_key, root_key

_REMEMBERED = 1 << 15
_ANY_ROOT = root_key(b"", b"")
_Value = TypeVar("_Value")


class MissReason(Enum):
    """Why the first page that was not found was not."""

    FIRST_TIME = "first_time"
    """Nobody computed it here, or so long ago that it is forgotten."""
    EVICTED = "evicted"
    """It was computed and given up since."""
    SALT = "salt"
    """The prompt begins like one of another tenant or salt, with whom nothing is shared."""


class MissHistory:
    """Keys that were given up, and under which salts prompts began, the newest of each."""

    def __init__(self, remembered: int = _REMEMBERED):
        self._remembered = remembered
        self._given_up: OrderedDict[bytes, None] = OrderedDict()
        self._roots: OrderedDict[bytes, bytes] = OrderedDict()

    def give_up(self, key: bytes) -> None:
        """The page of `key` was evicted."""
        self._put(self._given_up, key, None)

    def explain(self, key: bytes, root: bytes, first_page: tuple[int, ...] | None) -> MissReason:
        """Why `key` was not found; `first_page` are the prompt's first tokens if that is its page.

        A prompt that is asked about is remembered under its root.
        """
        other = None
        if first_page is not None:
            beginning = child_key(_ANY_ROOT, first_page)
            other = self._roots.get(beginning)
            self._put(self._roots, beginning, root)
        if key in self._given_up:
            return MissReason.EVICTED
        return MissReason.FIRST_TIME if other in (None, root) else MissReason.SALT

    def _put(self, entries: OrderedDict[bytes, _Value], key: bytes, value: _Value) -> None:
        entries[key] = value
        entries.move_to_end(key)
        if len(entries) > self._remembered:
            entries.popitem(last=False)
