"""How answers end that do not end well."""

from __future__ import annotations

from starlette.types import Receive

from octavo.access.http.errors import ApiError, failed, timed_out, unavailable
from octavo.core.request import FinishReason


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has gone; to be called once the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def error_of_end(
    reason: FinishReason | None, error: str | None, tokens: int, expired: tuple[str, float] | None
) -> ApiError | None:
    """The error that an end amounts to when `tokens` tokens have come in all, if it is one.

    `expired` is the limit of time that was over, and its seconds.
    """
    if reason is FinishReason.ERROR:
        return failed(error)
    if reason is FinishReason.CANCELLED:
        return unavailable("the request was cancelled: the server is shutting down")
    if reason is FinishReason.TIMEOUT and tokens == 0:
        return timed_out(*(expired or ("timeout_seconds", 0.0)))
    return None
