"""Hands checked requests to the engine and answers them, streamed or as a whole."""

from __future__ import annotations

import asyncio
import contextlib
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
    service_class = work.treatment.service_class(service, work.prepared)
    calls: list[AsyncCall] = []
    try:
        for prepared in work.prepared:
            call = service.client.submit(
                prepared,
                service_class=service_class.name,
                timeout_seconds=work.treatment.timeout_seconds or service_class.timeout_seconds,
                queue_timeout_seconds=(
                    work.treatment.queue_timeout_seconds or service_class.queue_timeout_seconds
                ),
                arrival_seconds=work.arrival_seconds,
                tenant=work.treatment.tenant,
                on_miss=work.treatment.on_miss,
            )
            calls.append(call)
        request.state.submitted = True
        work.note_class(await _taken(calls, service.ping_seconds))
    except BaseException:
        for call in calls:
            call.cancel()
        raise
    if work.stream:
        return EventStream(calls, work, ping_seconds=service.ping_seconds, clock=service.clock)
    outputs = await _collected(request.receive, calls)
    _check(outputs, calls)
    work.note_class(calls[-1].service_class)
    body = msgspec.json.encode(work.shape.whole(outputs))
    return Response(body, media_type="application/json", headers=work.headers)


async def _taken(calls: Sequence[AsyncCall], patience_seconds: float) -> str:
    """The class that the engine has taken the calls in, which it says between two steps.

    A busy engine must not keep a stream's reader without headers: after `patience_seconds` the
    class is the one that was asked for, and a refusal that comes later is told inside the stream.

    Raises:
        OctavoError: it does not take one of them.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_seconds):
            for call in calls:
                await call.taken()
    return calls[-1].service_class


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


def _check(outputs: Sequence[RequestOutput], calls: Sequence[AsyncCall]) -> None:
    """An answer with an error in it is an error, and so is one that timed out without a token."""
    for output, call in zip(outputs, calls, strict=True):
        for choice in output.outputs:
            error = error_of_end(
                choice.finish_reason, choice.error, tokens_of(outputs), call.expired
            )
            if error is not None:
                raise error
