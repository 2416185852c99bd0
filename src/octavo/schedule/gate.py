"""Whether a request is taken at all: bounded queues, predicted waits, the next lower class."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from octavo.core.errors import Overloaded
from octavo.core.request import Request
from octavo.schedule.demand import LEAST_RETRY_SECONDS
from octavo.schedule.forecast import Forecast
from octavo.schedule.lane import Lane
from octavo.schedule.step_draft import Chunk

_SURE_SHARE = 0.95
_SURE_SHARE_BELOW = 0.7
"""Part of a first-token target in which a request is to be served, so that most are in time; less
for those before whom stricter ones may yet come."""
_SOON_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What a request would find in a class: prompt tokens before it, and how long they take.

    Those who were told to come back within the target of the class are among them; if it is shorter
    than anybody is told, they only take places in the queue. `queued_tokens` and `queued_requests`
    have no row yet.
    """

    queued_requests: float
    queued_tokens: float
    wait_seconds: float
    token_seconds: float
    coming_requests: float


def choose_lane(
    lanes: Ordered[Lane],
    wanted: Lane,
    request: Request,
    *,
    now_seconds: float,
    arrival_seconds: float,
    forecast: Forecast,
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
        target = service.first_token_seconds
        treatment = request.on_miss or service.on_miss
        may_miss = treatment == "run" or target is None
        if may_miss and _is_roomy(lane):
            return lane
        outlook = outlook_of(lane, forecast, now_seconds)
        full = _full(lane, tokens, outlook)
        if full is not None:
            reason, problem, excess_tokens = full
            wait = excess_tokens * outlook.token_seconds
            raise _refusal(lane, request, reason, problem, wait, now_seconds, forecast)
        if may_miss or target is None or not any(each.has_work for each in lanes):
            return lane
        own = tokens * outlook.token_seconds + forecast.step_seconds(lane)
        sure = (_SURE_SHARE_BELOW if lane.rank else _SURE_SHARE) * target
        late = outlook.wait_seconds + own + now_seconds - arrival_seconds - sure
        if len(lane.tickets):
            late = max(late, forecast.crowd_seconds(lane, request, outlook.coming_requests))
        if late <= 0:
            return lane
        if treatment == "degrade" and lane.rank + 1 < len(lanes):
            lane = lanes[lane.rank + 1]
            continue
        if treatment == "refuse":
            problem = f"the first token would come too close to, or after its target ({target:g} s)"
            reason = "first_token_seconds"
            raise _refusal(lane, request, reason, problem, late, now_seconds, forecast)
        return lane


def outlook_of(lane: Lane, forecast: Forecast, now_seconds: float) -> _Outlook:
    """What somebody who comes now would find."""
    soon = lane.service.first_token_seconds or _SOON_SECONDS
    coming, coming_tokens = 0.0, 0.0
    if len(lane.tickets):
        coming, coming_tokens = lane.tickets.expected(now_seconds + soon)
    queued_requests, queued_tokens = lane.waiting + coming, lane.waiting_tokens + coming_tokens
    if soon < LEAST_RETRY_SECONDS:
        # Who is told now to come back finds those served whom so short a target lets in. Were they
        # kept waiting for, a burst of a few would have everybody refused who comes after it.
        coming = coming_tokens = 0.0
    token_seconds = forecast.token_seconds(lane, coming)
    tokens = lane.waiting_tokens + coming_tokens + sum(each.pending for each in lane.prefilling)
    return _Outlook(
        queued_requests=queued_requests,
        queued_tokens=queued_tokens,
        wait_seconds=tokens * token_seconds,
        token_seconds=token_seconds,
        coming_requests=coming,
    )


def note_work(chunks: Iterable[Chunk], lanes: Ordered[Lane], now_seconds: float) -> None:
    """A step has computed parts of prompts: how fast each class may get on.

    What lower classes got counts for the stricter ones too, which could have taken it.
    """
    worked = [0] * len(lanes)
    for chunk in chunks:
        home = chunk.sequence.home
        reused = chunk.start if chunk.is_admission else 0
        home.pace.found(chunk.count, reused)
        worked[home.rank] += chunk.count + reused
    total = 0
    for lane in reversed(lanes):
        total += worked[lane.rank]
        goes_on = bool(lane.waiting or len(lane.prefilling))
        if not (worked[lane.rank] or goes_on):
            lane.pace.rest()
        elif total:
            lane.pace.worked(total, now_seconds, goes_on=goes_on)


def _is_roomy(lane: Lane) -> bool:
    """No bound of its queue can be met, as is seen without a forecast."""
    service = lane.service
    if service.queue_tokens is not None or service.queue_seconds is not None:
        return False
    most = service.queue_requests
    return most is None or lane.waiting + len(lane.tickets) < most


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
    forecast: Forecast,
) -> Overloaded:
    """A refusal that tells when to come back: after those who were told before."""
    told = lane.tickets.give(
        _asked(request),
        len(request.prompt),
        wait_seconds + lane.tickets.booked_seconds,
        now_seconds,
        forecast.service_seconds(lane, request),
    )
    return Overloaded(
        f"class {lane.service.name} is overloaded: {problem}",
        retry_after_seconds=told,
        reason=reason,
        service_class=lane.service.name,
    )


def _asked(request: Request) -> int:
    """By what a request is known when it comes back."""
    return hash((request.tenant, request.prompt, request.max_new_tokens))
