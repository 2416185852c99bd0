"""What a class uses, how fast it works prompts off, and who was told when to come back."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import dataclass

LEAST_RETRY_SECONDS = 1.0
"""Nobody is told to come back sooner."""
MOST_RETRY_SECONDS = 60.0
"""Nobody is told to wait longer, and no room is kept beyond: clients who never come back would make
an idle class refuse others for as long."""
_FORGETTING = 0.95
_MOST_TICKETS = 4096
_EARLY_SECONDS = 0.25
_GRACE_SECONDS = 2.0
_LEARNING = 0.25
_USE_SECONDS = 3.0
_FRESH_TOKENS = 4096


class Use:
    """Part of the time that a class was given, averaged over the last seconds."""

    def __init__(self) -> None:
        self.share = 0.0

    def note(self, spent_seconds: float, passed_seconds: float) -> None:
        """So much of the time that passed since the last note was its own."""
        if passed_seconds > 0:
            weight = 1.0 - math.exp(-passed_seconds / _USE_SECONDS)
            share = min(spent_seconds / passed_seconds, 1.0)
            self.share += weight * (share - self.share)


class Pace:
    """Prompt tokens a second while there are any, measured over the last steps that had some.

    `fresh_share` is the part of them that was computed and not found in the cache.
    """

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._since_seconds: float | None = None
        self.fresh_share = 1.0

    def found(self, computed: int, reused: int) -> None:
        """So many tokens of prompts were computed and found."""
        if computed + reused:
            weight = (computed + reused) / (computed + reused + _FRESH_TOKENS)
            self.fresh_share += weight * (computed / (computed + reused) - self.fresh_share)

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


@dataclass(frozen=True, slots=True)
class _Ticket:
    tokens: int
    service_seconds: float
    due_seconds: float


class Tickets:
    """Requests that were refused and told when to come back.

    A ticket is known again by what was asked. It is good from shortly before the time that was told
    until two seconds after it. Each takes the time that its request will be served in, so that the
    next one is told to come after it. `show_share` is the part that came back of late: where
    clients do not, room is not kept for them.
    """

    def __init__(self) -> None:
        self.show_share = 1.0
        self._tickets: dict[int, _Ticket] = {}
        self._order: list[tuple[float, int]] = []
        self._booked_seconds = 0.0
        self._counts: Counter[int] = Counter()
        self._tokens: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def booked_seconds(self) -> float:
        """How long it takes to serve all who are expected back."""
        return self.show_share * self._booked_seconds

    def expected(self, until_seconds: float) -> tuple[float, float]:
        """Requests, and tokens of their prompts, that are expected back until then.

        Tickets are counted by whole seconds, of which there are as many as anybody is told to wait.
        """
        last = math.floor(until_seconds)
        seconds = [second for second in self._counts if second <= last]
        requests = sum(map(self._counts.__getitem__, seconds))
        tokens = sum(map(self._tokens.__getitem__, seconds))
        return self.show_share * requests, self.show_share * tokens

    def give(
        self,
        asked: int,
        tokens: int,
        wait_seconds: float,
        now_seconds: float,
        service_seconds: float = 0.0,
    ) -> float:
        """Promise room after `wait_seconds`, told in whole seconds; the seconds to be told.

        Whoever has a ticket and comes too early is told the same time again. Nothing is promised
        for later than a minute from now.
        """
        held = self._tickets.get(asked)
        if held is not None:
            return max(held.due_seconds - now_seconds, LEAST_RETRY_SECONDS)
        if wait_seconds > MOST_RETRY_SECONDS:
            return MOST_RETRY_SECONDS
        told_seconds = max(float(math.ceil(wait_seconds)), LEAST_RETRY_SECONDS)
        if len(self._tickets) < _MOST_TICKETS:
            due_seconds = now_seconds + told_seconds
            self._tickets[asked] = _Ticket(tokens, service_seconds, due_seconds)
            self._booked_seconds += service_seconds
            self._counts[math.floor(due_seconds)] += 1
            self._tokens[math.floor(due_seconds)] += tokens
            heapq.heappush(self._order, (due_seconds, asked))
        return told_seconds

    def redeem(self, asked: int, now_seconds: float) -> bool:
        """Whether somebody comes back who was told to come now."""
        held = self._tickets.get(asked)
        if held is None or now_seconds < held.due_seconds - _EARLY_SECONDS:
            return False
        self._forget(asked)
        self.show_share += _LEARNING * (1.0 - self.show_share)
        return True

    def expire(self, now_seconds: float) -> None:
        """Forget those who did not come in time."""
        while self._order and self._order[0][0] + _GRACE_SECONDS < now_seconds:
            due_seconds, asked = heapq.heappop(self._order)
            held = self._tickets.get(asked)
            if held is not None and held.due_seconds == due_seconds:
                self._forget(asked)
                self.show_share -= _LEARNING * self.show_share

    def _forget(self, asked: int) -> None:
        ticket = self._tickets.pop(asked)
        second = math.floor(ticket.due_seconds)
        self._counts[second] -= 1
        self._tokens[second] -= ticket.tokens
        if not self._counts[second]:
            del self._counts[second], self._tokens[second]
        # Without tickets, what rounding has left over goes too.
        left = self._booked_seconds - ticket.service_seconds
        self._booked_seconds = left if self._tickets else 0.0
