"""How fast a class works prompts off, and who was told when to come back."""

from __future__ import annotations

import heapq
import math

_FORGETTING = 0.95
_MOST_TICKETS = 4096
_EARLY_SECONDS = 0.25
_GRACE_SECONDS = 2.0
_LEARNING = 0.1


class Pace:
    """Prompt tokens a second while there are any, measured over the last steps that had some."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._since_seconds: float | None = None

    def begin(self, now_seconds: float) -> None:
        """There is something to work off from now on, if there was not before."""
        if self._since_seconds is None:
            self._since_seconds = now_seconds

    def rest(self) -> None:
        """There is nothing to work off: whoever waited has left."""
        self._since_seconds = None

    def worked(self, tokens: int, now_seconds: float, *, goes_on: bool) -> None:
        """So many tokens are done; `goes_on` says whether more wait."""
        if self._since_seconds is not None:
            self._tokens = _FORGETTING * self._tokens + tokens
            self._seconds = _FORGETTING * self._seconds + now_seconds - self._since_seconds
        self._since_seconds = now_seconds if goes_on else None

    def seconds_per_token(self, guess: float) -> float:
        """`guess` where nothing was measured."""
        return self._seconds / self._tokens if self._tokens > 0 and self._seconds > 0 else guess


class Tickets:
    """Requests that were refused and told when to come back; they count as if they waited.

    A ticket is known again by what was asked. It is good from shortly before the time that was told
    until two seconds after it. `show_share` is the part that came back of late: where clients do
    not, room is not kept for them.
    """

    def __init__(self) -> None:
        self.show_share = 1.0
        self._tokens: dict[int, tuple[int, float]] = {}
        self._order: list[tuple[float, int]] = []
        self._sum_tokens = 0

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def requests(self) -> float:
        """Requests that are expected back."""
        return self.show_share * len(self._tokens)

    @property
    def tokens(self) -> float:
        """Prompt tokens that are expected back."""
        return self.show_share * self._sum_tokens

    def give(self, asked: int, tokens: int, wait_seconds: float, now_seconds: float) -> float:
        """Promise room after `wait_seconds`, told in whole seconds; the seconds to be told.

        Whoever has a ticket and comes too early is told the same time again.
        """
        held = self._tokens.get(asked)
        if held is not None:
            return max(held[1] - now_seconds, 1.0)
        told_seconds = float(max(math.ceil(wait_seconds), 1))
        if len(self._tokens) < _MOST_TICKETS:
            due_seconds = now_seconds + told_seconds
            self._tokens[asked] = (tokens, due_seconds)
            self._sum_tokens += tokens
            heapq.heappush(self._order, (due_seconds, asked))
        return told_seconds

    def redeem(self, asked: int, now_seconds: float) -> bool:
        """Whether somebody comes back who was told to come now."""
        held = self._tokens.get(asked)
        if held is None or now_seconds < held[1] - _EARLY_SECONDS:
            return False
        self._forget(asked)
        self.show_share += _LEARNING * (1.0 - self.show_share)
        return True

    def expire(self, now_seconds: float) -> None:
        """Forget those who did not come in time."""
        while self._order and self._order[0][0] + _GRACE_SECONDS < now_seconds:
            due_seconds, asked = heapq.heappop(self._order)
            held = self._tokens.get(asked)
            if held is not None and held[1] == due_seconds:
                self._forget(asked)
                self.show_share -= _LEARNING * self.show_share

    def _forget(self, asked: int) -> None:
        tokens, _ = self._tokens.pop(asked)
        self._sum_tokens -= tokens
