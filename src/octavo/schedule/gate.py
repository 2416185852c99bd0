"""Whether a request is taken at all: bounded queues, predicted waits, the next lower class."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from octavo.core.errors import Overloaded
from octavo.schedule.cost import CostModel
from octavo.schedule.lane import Lane

_MOST_RETRY_SECONDS = 600.0


def choose_lane(
    lanes: Ordered[Lane],
    wanted: Lane,
    prompt_tokens: int,
    *,
    now_seconds: float,
    arrival_seconds: float,
    cost: CostModel,
    on_miss: str | None = None,
) -> Lane:
    """The class that takes a request: `wanted`, or a lower one if its target would be missed.

    `on_miss` comes before what the class does with late requests.

    Raises:
        Overloaded: the queue of the class is full, or it refuses what it would be late for.
    """
    lane = wanted
    while True:
        service = lane.service
        guess = cost.token or 1e-3
        token_seconds = lane.seconds_per_token(guess)
        wait = lane.waiting_tokens * token_seconds
        own = prompt_tokens * token_seconds
        problem = _full(lane, prompt_tokens, wait)
        if problem is not None:
            raise _refusal(lane, *problem, _excess(lane, prompt_tokens, wait), own, now_seconds)
        target = service.first_token_seconds
        treatment = on_miss or service.on_miss
        if treatment == "run" or target is None:
            return lane
        late = wait + cost.chunk(prompt_tokens, 0) + now_seconds - arrival_seconds - target
        if late <= 0:
            return lane
        if treatment == "degrade" and lane.rank + 1 < len(lanes):
            lane = lanes[lane.rank + 1]
            continue
        if treatment == "refuse":
            text = f"the first token would come {late:.1f} s after its target"
            raise _refusal(lane, "first_token_seconds", text, late, own, now_seconds)
        return lane


def _full(lane: Lane, prompt_tokens: int, wait_seconds: float) -> tuple[str, str] | None:
    """The bound of the queue that is met, and that in words."""
    service = lane.service
    if service.queue_requests is not None and lane.waiting >= service.queue_requests:
        return "queue_requests", f"{lane.waiting} requests wait already"
    # An empty queue takes a request of any size.
    if not lane.waiting:
        return None
    if service.queue_tokens is not None:
        tokens = lane.waiting_tokens + prompt_tokens
        if tokens > service.queue_tokens:
            text = f"{tokens} prompt tokens would wait, {service.queue_tokens} may"
            return "queue_tokens", text
    if service.queue_seconds is not None and wait_seconds > service.queue_seconds:
        text = f"the queue is {wait_seconds:.1f} s long, {service.queue_seconds:g} s are allowed"
        return "queue_seconds", text
    return None


def _excess(lane: Lane, prompt_tokens: int, wait_seconds: float) -> float:
    """Seconds until the queue has shrunk below its bounds."""
    service, excess = lane.service, 0.0
    tokens = max(lane.waiting_tokens, 1)
    if service.queue_tokens is not None:
        over = lane.waiting_tokens + prompt_tokens - service.queue_tokens
        excess = max(excess, wait_seconds * min(over / tokens, 1.0))
    if service.queue_seconds is not None:
        excess = max(excess, wait_seconds - service.queue_seconds)
    return excess


def _refusal(
    lane: Lane,
    reason: str,
    problem: str,
    wait_seconds: float,
    own_seconds: float,
    now_seconds: float,
) -> Overloaded:
    seconds = lane.promise(now_seconds, wait_seconds, own_seconds)
    return Overloaded(
        f"class {lane.service.name} is overloaded: {problem}",
        retry_after_seconds=min(max(seconds, 1.0), _MOST_RETRY_SECONDS),
        reason=reason,
        service_class=lane.service.name,
    )
