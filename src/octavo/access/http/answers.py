"""Hands checked requests to the engine and answers them, streamed or as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from octavo.access.http.ends import error_of_end, until_disconnect
from octavo.access.http.service import Service
from octavo.access.http.shapes import tokens_of
from octavo.access.http.stream import EventStream
from octavo.access.http.work import Work
from octavo.engine.client import RequestOutput

if TYPE_CHECKING:
    from octavo.engine.client import AsyncCall


async def answer(request: Request, service: Service, work: Work) -> Response:
    """Hand the calls to the engine and answer, streamed or as a whole.

    Raises:
        ApiError, OctavoError: there is no answer, and why.
        ClientDisconnect: the client left; its calls are cancelled.
    """
    service.check_ready()
    calls: list[AsyncCall] = []
    try:
        for prepared in work.prepared:
            call = service.client.submit(
                prepared,
                service_class=work.service_class,
                timeout_seconds=work.timeout_seconds,
                arrival_seconds=work.arrival_seconds,
            )
            calls.append(call)
    except BaseException:
        for call in calls:
            call.cancel()
        raise
    request.state.submitted = True
    if work.stream:
        return EventStream(calls, work, ping_seconds=service.ping_seconds, clock=service.clock)
    outputs = await _collected(request.receive, calls)
    _check(outputs, work.timeout_seconds)
    body = msgspec.json.encode(work.shape.whole(outputs))
    return Response(body, media_type="application/json", headers=work.headers)


async def _collected(receive: Receive, calls: Sequence[AsyncCall]) -> list[RequestOutput]:
    """All answers; whatever happens, no call goes on afterwards."""
    left = asyncio.ensure_future(until_disconnect(receive))
    results = asyncio.gather(*(call.result() for call in calls))
    try:
        waits: tuple[asyncio.Future[Any], ...] = (left, results)
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not results.done():
            raise ClientDisconnect
        return results.result()
    finally:
        for call in calls:
            call.cancel()
        left.cancel()
        await asyncio.gather(left, results, return_exceptions=True)


def _check(outputs: Sequence[RequestOutput], timeout_seconds: float | None) -> None:
    """An answer with an error in it is an error, and so is one that timed out without a token."""
    for output in outputs:
        for choice in output.outputs:
            error = error_of_end(
                choice.finish_reason, choice.error, tokens_of(outputs), timeout_seconds
            )
            if error is not None:
                raise error
