"""What frontends and the engine process say to each other: typed values in MessagePack."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from octavo.core import errors
from octavo.core.errors import EngineError, OctavoError, Overloaded
from octavo.core.ids import RequestId
from octavo.core.output import EngineOutput
from octavo.core.request import Request
from octavo.observe.stats import EngineStats

PROTOCOL_VERSION = 3
MAX_MESSAGE_BYTES = 64 << 20
"""A longer message closes the connection it came from."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a frontend; the engine answers with `Ready`."""

    protocol: int = PROTOCOL_VERSION


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """The requests of one call. Ids need to be unique within their frontend only."""

    requests: tuple[Request, ...]


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """End requests that nobody waits for; ids that are not there are no error. No news of them."""

    request_ids: tuple[RequestId, ...]


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """End requests whose reader has enough: a stop string was found."""

    request_ids: tuple[RequestId, ...]


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Ask for `Stats`, which come between two steps."""

    number: int


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Take no new work, finish what is there, then end."""


ToEngine = Hello | Submit | Cancel | Finish | Ping | Drain


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one running engine is, fixed from its start on.

    `pages` hold `page_tokens` tokens of the layers of one of `cache_groups`.
    `memory_bytes` is the most that each part of it may hold, within the ceiling.
    `phase_seconds` are the parts of its start-up in order. `note` says why less than the model's
    context is served, if so. `bits_fingerprint` is hexadecimal: engines with the same one compute
    the same bits. `swap` says what lies below the KV cache, or why nothing does.
    """

    model_path: str
    model_name: str
    architecture: str
    context_tokens: int
    model_context_tokens: int
    vocabulary_size: int
    page_tokens: int
    cache_groups: int = 1
    pages: int
    max_rows: int
    token_budget: int
    memory_bytes: dict[str, int]
    memory_ceiling_bytes: int
    backend: str
    tier: str
    threads: int
    threads_reason: str
    activations: str
    kv_format: str
    bits_fingerprint: str
    process_id: int
    phase_seconds: dict[str, float]
    note: str | None = None
    swap: str | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Answer to `Hello`."""

    facts: EngineFacts


class Problem(msgspec.Struct, frozen=True):
    """An error of `core.errors` on its way to another process."""

    code: str
    message: str
    field: str | None = None
    remedy: str | None = None
    retry_after_seconds: float | None = None
    reason: str | None = None


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """A call was taken, in a lower class than it named if that one would have been late."""

    request_ids: tuple[RequestId, ...]
    service_class: str


class Started(msgspec.Struct, frozen=True, array_like=True):
    """A request got its first row, `queue_seconds` after its arrival."""

    request_id: RequestId
    queue_seconds: float


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    """Everything one step brought for one frontend."""

    outputs: tuple[EngineOutput, ...]
    started: tuple[Started, ...] = ()


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A call that was not taken; none of its requests runs."""

    request_ids: tuple[RequestId, ...]
    problem: Problem


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """The engine has forgotten this frontend and cancelled its requests; it may say `Hello`."""

    reason: str


class Closing(msgspec.Struct, frozen=True, tag="closing"):
    """The engine ends; `reason` is for people."""

    reason: str


FromEngine = Ready | EngineStats | Taken | Outputs | Refused | Dropped | Closing

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)

_UNREADABLE = (msgspec.MsgspecError, OctavoError, UnicodeDecodeError, RecursionError)


def encode(message: ToEngine | FromEngine) -> bytes:
    """MessagePack of one message."""
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Read what a frontend sent; sampling parameters are checked anew.

    Raises:
        EngineError: it is not such a message.
    """
    try:
        return _to_engine.decode(data)
    except _UNREADABLE as error:
        raise EngineError(f"not a message: {error}") from error


def decode_from_engine(data: bytes) -> FromEngine:
    """Read what an engine sent.

    Raises:
        EngineError: it is not such a message.
    """
    try:
        return _from_engine.decode(data)
    except _UNREADABLE as error:
        raise EngineError(f"not a message: {error}") from error


def problem_of(error: OctavoError) -> Problem:
    problem = Problem(error.code, error.message, error.field, error.remedy)
    if isinstance(error, Overloaded):
        return msgspec.structs.replace(
            problem, retry_after_seconds=error.retry_after_seconds, reason=error.reason
        )
    return problem


def error_of(problem: Problem) -> OctavoError:
    """The error again; one of a kind that this process does not know is an `EngineError`."""
    if problem.code == Overloaded.code:
        return Overloaded(
            problem.message,
            retry_after_seconds=problem.retry_after_seconds or 1.0,
            reason=problem.reason or "queue_requests",
            field=problem.field,
            remedy=problem.remedy,
        )
    kind = _ERRORS.get(problem.code, EngineError)
    return kind(problem.message, field=problem.field, remedy=problem.remedy)


_ERRORS: Mapping[str, type[OctavoError]] = {
    kind.code: kind
    for kind in (
        errors.InvalidRequest,
        errors.PromptTooLong,
        errors.SettingsError,
        errors.ModelFileError,
        errors.ModelNotFound,
        errors.CapacityError,
        errors.EngineError,
    )
}
