"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopSearch:
    """Emits text up to the first stop string and nothing after it.

    The match that is complete first wins; of those complete at the same place, the longest. So
    the cut does not depend on how the text was divided. Text is held back only while it may still
    be the beginning of a stop string; work is linear in the new text and what is held.
    """

    def __init__(self, stop_strings: Sequence[str], *, include_stop: bool = False):
        self._stops = tuple(dict.fromkeys(stop for stop in stop_strings if stop))
        self._include_stop = include_stop
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that may be sent, the stop string found or None); after a match, nothing."""
        if self.matched is not None:
            return "", self.matched
        if not self._stops:
            return text, None
        window = self._held + text
        place, stop = self._find(window)
        if stop is not None:
            self.matched, self._held = stop, ""
            return window[: place + len(stop) if self._include_stop else place], stop
        kept = self._unfinished(window)
        self._held = window[len(window) - kept :]
        return window[: len(window) - kept], None

    def flush(self) -> str:
        """The text still held back, at the end of the sequence."""
        held, self._held = self._held, ""
        return held

    def _find(self, window: str) -> tuple[int, str | None]:
        found = [(at + len(s), at, s) for s in self._stops if (at := window.find(s)) >= 0]
        if not found:
            return -1, None
        _, place, stop = min(found)
        return place, stop

    def _unfinished(self, window: str) -> int:
        """Length of the longest end of `window` that begins a stop string."""
        tail = window[-(self._longest - 1) :] if self._longest > 1 else ""
        for length in range(len(tail), 0, -1):
            end = tail[len(tail) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
