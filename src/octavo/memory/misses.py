"""Why a prefix was not found: enough of the past is remembered to tell, within a bound."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

from octavo.memory.keys import child_key, root_key

_REMEMBERED = 1 << 15
_ANY_ROOT = root_key(b"", b"")


class MissReason(Enum):
    """Why the first page that was not found was not."""

    FIRST_TIME = "first_time"
    """Nobody computed it here, or so long ago that it is forgotten."""
    EVICTED = "evicted"
    """It was computed and given up since."""
    SALT = "salt"
    """The prompt begins like one of another tenant or salt, with whom nothing is shared."""


class MissHistory:
    """Under which roots prompts began, the newest of them."""

    def __init__(self, remembered: int = _REMEMBERED):
        self._remembered = remembered
        self._roots: OrderedDict[bytes, bytes] = OrderedDict()

    def explain(
        self, root: bytes, first_page: tuple[int, ...] | None, *, was_given_up: bool
    ) -> MissReason:
        """Why a key was not found; `first_page` are the prompt's first tokens if that is its page.

        A prompt that is asked about is remembered under its root.
        """
        other = None
        if first_page is not None:
            beginning = child_key(_ANY_ROOT, first_page)
            other = self._roots.get(beginning)
            self._roots[beginning] = root
            self._roots.move_to_end(beginning)
            if len(self._roots) > self._remembered:
                self._roots.popitem(last=False)
        if was_given_up:
            return MissReason.EVICTED
        return MissReason.FIRST_TIME if other in (None, root) else MissReason.SALT
