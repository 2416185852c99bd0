"""A request as the engine sees it, its states and the only function that changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from octavo.core.ids import RequestId
from octavo.core.sampling import SamplingParams

ANONYMOUS = "anonymous"
"""The tenant of all who do not say who they are."""


class RequestState(Enum):
    """Where a request stands; legal moves are in `LEGAL_MOVES`."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    # By identity, as members are compared; that of Enum hashes the name in Python.
    __hash__ = object.__hash__

    @property
    def is_final(self) -> bool:
        return self in (RequestState.FINISHED, RequestState.CANCELLED, RequestState.FAILED)


LEGAL_MOVES: dict[RequestState, frozenset[RequestState]] = {
    RequestState.WAITING: frozenset(
        {RequestState.RUNNING, RequestState.CANCELLED, RequestState.FAILED, RequestState.FINISHED}
    ),
    RequestState.RUNNING: frozenset(
        {
            RequestState.PREEMPTED,
            RequestState.FINISHED,
            RequestState.CANCELLED,
            RequestState.FAILED,
        }
    ),
    RequestState.PREEMPTED: frozenset(
        {RequestState.RUNNING, RequestState.CANCELLED, RequestState.FAILED, RequestState.FINISHED}
    ),
    RequestState.FINISHED: frozenset(),
    RequestState.CANCELLED: frozenset(),
    RequestState.FAILED: frozenset(),
}


class FinishReason(Enum):
    """Why an answer ended, by the names of the OpenAI API where it has one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to complete (a call with `n` > 1 becomes n of these).

    `prompt` holds token ids. `seed` is set (drawn by the engine if the caller gave none).
    `max_new_tokens` is already capped to the served context. `stop_ids` ends the answer with
    reason "stop" (end-of-turn ids unless `ignore_eos`, and the caller's own). `arrival_seconds` is
    on the machine's monotonic clock, 0 if unknown. `tenant` is who shares fairly with others.
    `on_miss` replaces what its class does with a request that will miss its first-token target.
    """

    id: RequestId
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()
    arrival_seconds: float = 0.0
    service_class: str = "standard"
    cache_salt: bytes = b""
    tenant: str = ANONYMOUS
    on_miss: str | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """The event of one legal move."""

    request_id: RequestId
    before: RequestState
    after: RequestState
    at_seconds: float
    reason: str


EventSink = Callable[[object], None]


def move(
    request_id: RequestId,
    before: RequestState,
    after: RequestState,
    *,
    at_seconds: float,
    reason: str,
    emit: EventSink | None,
) -> RequestState:
    """Make one move and emit its event, if anybody listens.

    Raises:
        ValueError: the move is not in `LEGAL_MOVES` (a defect of Octavo, never of a caller).
    """
    if after not in LEGAL_MOVES[before]:
        raise ValueError(f"request {request_id}: illegal move {before.value} -> {after.value}")
    if emit is not None:
        emit(Transition(request_id, before, after, at_seconds, reason))
    return after
