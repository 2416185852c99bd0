"""Whether a request is taken at all: bounded queues, predicted waits, the next lower class."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from octavo.core.errors import Overloaded
from octavo.core.request import Request
from octavo.schedule.cost import CostModel
from octavo.schedule.lane import Lane
from octavo.schedule.step_draft import Chunk

_MOST_RETRY_SECONDS = 600.0
_GUESSED_TOKEN_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What a request would find in a class: prompt tokens before it, and how long they take.

    Those who were told to come back are among them. `queued_tokens` and `queued_requests` have no
    row yet.
    """

    queued_requests: float
    queued_tokens: float
    wait_seconds: float
    token_seconds: float


def choose_lane(
    lanes: Ordered[Lane],
    wanted: Lane,
    request: Request,
    *,
    now_seconds: float,
    arrival_seconds: float,
    cost: CostModel,
) -> Lane:
    """The class that takes a request: `wanted`, or a lower one if its target would be missed.

    Who was refused and comes back at the told time is taken. So is whoever finds nobody else: it
    cannot come sooner at any other time, and only work shows whether predictions are right.

    Raises:
        Overloaded: the queue of the class is full, or it refuses what it would be late for.
    """
    lane = wanted
    tokens = len(request.prompt)
    while True:
        service = lane.service
        lane.tickets.expire(now_seconds)
        if len(lane.tickets) and lane.tickets.redeem(_asked(request), now_seconds):
            return lane
        outlook = outlook_of(lane, cost)
        full = _full(lane, tokens, outlook)
        if full is not None:
            reason, problem, excess_tokens = full
            wait = excess_tokens * outlook.token_seconds
            raise _refusal(lane, request, reason, problem, wait, now_seconds)
        target = service.first_token_seconds
        treatment = request.on_miss or service.on_miss
        if treatment == "run" or target is None or not any(each.has_work for each in lanes):
            return lane
        own = max(cost.chunk(tokens, 0), tokens * outlook.token_seconds)
        late = outlook.wait_seconds + own + now_seconds - arrival_seconds - target
        if late <= 0:
            return lane
        if treatment == "degrade" and lane.rank + 1 < len(lanes):
            lane = lanes[lane.rank + 1]
            continue
        if treatment == "refuse":
            problem = f"the first token would come {late:.1f} s after its target"
            raise _refusal(lane, request, "first_token_seconds", problem, late, now_seconds)
        return lane


def outlook_of(lane: Lane, cost: CostModel) -> _Outlook:
    """What somebody who comes now would find."""
    token_seconds = lane.pace.seconds_per_token(cost.token or _GUESSED_TOKEN_SECONDS)
    queued_tokens = lane.waiting_tokens + lane.tickets.tokens
    tokens = queued_tokens + sum(each.pending for each in lane.prefilling)
    return _Outlook(
        queued_requests=lane.waiting + lane.tickets.requests,
        queued_tokens=queued_tokens,
        wait_seconds=tokens * token_seconds,
        token_seconds=token_seconds,
    )


def note_prefills(chunks: Iterable[Chunk], lanes: Ordered[Lane], now_seconds: float) -> None:
    """A step has computed parts of prompts: how fast each class may get on.

    What lower classes got counts for the stricter ones too, which could have taken it.
    """
    worked = [0] * len(lanes)
    for chunk in chunks:
        worked[chunk.sequence.home.rank] += chunk.count
        if chunk.is_admission:
            worked[chunk.sequence.home.rank] += chunk.start
    total = 0
    for lane in reversed(lanes):
        total += worked[lane.rank]
        goes_on = bool(lane.waiting or len(lane.prefilling))
        if not (worked[lane.rank] or goes_on):
            lane.pace.rest()
        elif total:
            lane.pace.worked(total, now_seconds, goes_on=goes_on)


def _full(lane: Lane, tokens: int, outlook: _Outlook) -> tuple[str, str, float] | None:
    """The bound of the queue that is met, in words too, and the prompt tokens beyond it."""
    service = lane.service
    waiting = outlook.queued_requests
    if service.queue_requests is not None and waiting >= service.queue_requests:
        each = outlook.queued_tokens / max(waiting, 1)
        excess = (waiting - service.queue_requests + 1) * each
        text = f"{lane.waiting} requests wait already"
        if len(lane.tickets):
            text += f", {len(lane.tickets)} are to come back"
        return "queue_requests", text, excess
    # An empty queue takes a request of any size.
    if not waiting:
        return None
    queued = outlook.queued_tokens + tokens
    if service.queue_tokens is not None and queued > service.queue_tokens:
        text = f"{queued:.0f} prompt tokens would wait, {service.queue_tokens} may"
        return "queue_tokens", text, queued - service.queue_tokens
    wait = outlook.wait_seconds
    if service.queue_seconds is not None and wait > service.queue_seconds:
        text = f"the queue is {wait:.1f} s long, {service.queue_seconds:g} s are allowed"
        return "queue_seconds", text, (wait - service.queue_seconds) / outlook.token_seconds
    return None


def _refusal(
    lane: Lane,
    request: Request,
    reason: str,
    problem: str,
    wait_seconds: float,
    now_seconds: float,
) -> Overloaded:
    wait_seconds = min(wait_seconds, _MOST_RETRY_SECONDS)
    tokens = len(request.prompt)
    told = lane.tickets.give(_asked(request), tokens, wait_seconds, now_seconds)
    return Overloaded(
        f"class {lane.service.name} is overloaded: {problem}",
        retry_after_seconds=told,
        reason=reason,
        service_class=lane.service.name,
    )


def _asked(request: Request) -> int:
    """By what a request is known when it comes back."""
    return hash((request.tenant, request.prompt, request.max_new_tokens))
