"""How long steps may be, and how fast a class gets on in them; nothing here changes anything."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Ordered

from octavo.core.request import Request
from octavo.core.service_classes import ServiceClass
from octavo.schedule.cost import CostModel
from octavo.schedule.lane import Lane

LEAST_ERROR = 0.03
"""Steps that fill the time from token to token together are allowed to take so much longer."""
_LEAST_SHARE = 0.02
_PROMISED_SHARE = 0.6
"""Part of a class's time that is promised to those who are to come back. More would never let it
catch up with what came in between; whoever comes at the right moment gets the rest."""
_GUESSED_TOKEN_SECONDS = 1e-3
_GUESSED_ANSWER_TOKENS = 256


def step_time(
    decoding: Iterable[ServiceClass], cost: CostModel, most_seconds: float, between_seconds: float
) -> tuple[float, bool]:
    """The longest step that keeps the inter-token targets of the classes that decode.

    Its predicted seconds, and whether a target allows no more than one step from token to token.

    Where a class has time for several steps from token to token, its rows sit out all but one of
    them, and what one takes longer another may make up for. Where it has not, only 1 step in 100
    may take longer than its target.
    """
    seconds, is_tight = most_seconds, False
    for service in decoding:
        target = service.inter_token_seconds
        if target is None:
            continue
        steps = math.ceil(target / most_seconds - 1e-9)
        late = cost.overrun if steps == 1 else max(cost.error / 2, LEAST_ERROR)
        is_tight |= steps == 1
        each = target / steps
        seconds = min(seconds, max(each / (1.0 + late) - between_seconds, each / 2))
    return seconds, is_tight


class Forecast:
    """What a request that comes now may expect, from who is there and what steps cost.

    Without `most_seconds` steps are as long as they come, and only the measured pace counts.
    """

    def __init__(
        self,
        lanes: Ordered[Lane],
        cost: CostModel,
        *,
        page_tokens: int,
        most_seconds: float | None,
        between_seconds: float,
    ):
        self._lanes = lanes
        self._cost = cost
        self._page_tokens = page_tokens
        self._most_seconds = most_seconds
        self._between_seconds = between_seconds

    def step_seconds(self, lane: Lane) -> float:
        """How long a step takes at most once this class decodes too; 0 if that has no limit."""
        if self._most_seconds is None:
            return 0.0
        services = [each.service for each in self._lanes if each is lane or len(each.running)]
        return step_time(services, self._cost, self._most_seconds, self._between_seconds)[0]

    def token_seconds(self, lane: Lane, coming_rows: float = 0.0) -> float:
        """Seconds for each prompt token of a class, beside what comes before its prompts.

        `coming_rows` are expected beside those who wait and run.
        """
        token = self._cost.token or _GUESSED_TOKEN_SECONDS
        if self._most_seconds is None:
            return lane.pace.seconds_per_token(token)
        due = self._due_share(lane, lane.waiting + len(lane.running) + coming_rows)
        share = self._own_share(lane) - due
        return token * lane.pace.fresh_share / max(share, _LEAST_SHARE)

    def service_seconds(self, lane: Lane, request: Request) -> float:
        """The time after which another request like this one can be served, if these go on."""
        if self._most_seconds is None:
            return len(request.prompt) * self.token_seconds(lane)
        work = sum(self._work(lane, request))
        return work / max(self._own_share(lane), _LEAST_SHARE) / _PROMISED_SHARE

    def crowd_seconds(self, lane: Lane, request: Request, coming_rows: float) -> float:
        """How long until there are so few of a class that it can take one more.

        If more rows want tokens in time than this, less time is left for prompts than requests that
        end make room for, and those who come next are late.
        """
        if self._most_seconds is None:
            return 0.0
        # The others' answers are as long as usual, however short this one is.
        prompt, answer = self._work(lane, request, least_answer_tokens=lane.answer_tokens)
        room = self._own_share(lane) * answer / (prompt + answer)
        rows = lane.waiting + len(lane.running) + coming_rows + 1
        excess = self._due_share(lane, rows) - room
        if excess <= 0:
            return 0.0
        rows_beyond = rows * excess / (excess + room)
        return rows_beyond * self.service_seconds(lane, request)

    def _work(
        self, lane: Lane, request: Request, *, least_answer_tokens: float = 0.0
    ) -> tuple[float, float]:
        """Seconds that prompt and answer of a request take by themselves."""
        cost, prompt = self._cost, len(request.prompt)
        answer = min(request.max_new_tokens, lane.answer_tokens or _GUESSED_ANSWER_TOKENS)
        answer = max(answer, least_answer_tokens)
        decode = cost.decodes(1, prompt + int(answer) // 2)
        return cost.chunk(prompt, 0) * lane.pace.fresh_share, answer * decode

    def _own_share(self, lane: Lane) -> float:
        """Part of the time that is left by the constant cost of steps and by stricter classes."""
        step, between = self.step_seconds(lane), self._between_seconds
        share = 1.0 - (self._cost.constant + between) / (step + between)
        for other in self._lanes[: lane.rank]:
            running = len(other.running)
            share -= max(other.use.share, self._due_share(other, running)) if running else 0.0
        return share

    def _due_share(self, lane: Lane, rows: float) -> float:
        """Part of the time that so many rows of a class need for tokens in time."""
        target = lane.service.inter_token_seconds
        if target is None or not rows:
            return 0.0
        past = lane.pages * self._page_tokens // max(len(lane.running), 1)
        return rows * self._cost.decodes(1, past) / max(target, self.step_seconds(lane))
