"""Answers that are streamed: what calls bring, written as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.access.http.ends import error_of_end, until_disconnect
from octavo.access.http.errors import ApiError
from octavo.access.http.events import event
from octavo.access.http.protocol import DIRECT_BODY, DirectBody
from octavo.access.http.work import Work
from octavo.core.clock import Clock
from octavo.core.errors import OctavoError
from octavo.engine.client import Delta

if TYPE_CHECKING:
    from octavo.engine.client import AsyncCall

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class EventStream(Response):
    """Writes what calls bring as it comes; the client's leaving cancels them.

    Headers and a first comment go out at once, and a comment whenever nothing was written for
    `ping_seconds`. Deltas of a single call are written as they are read from the engine, without
    waking a task. A reader that is slow makes the writer wait, and the calls merge what comes
    meanwhile. An error after the headers is an event with an `error` object and the end.
    """

    def __init__(
        self, calls: Sequence[AsyncCall], work: Work, *, ping_seconds: float, clock: Clock
    ):
        super().__init__(headers={**_HEADERS, **work.headers})
        # The length is not known; Starlette has written that of an empty body.
        del self.headers["content-length"]
        self._calls = calls
        self._work = work
        self._ping_seconds = ping_seconds
        self._clock = clock
        self._written_seconds = clock()
        self._tokens = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._write(send, PING)
            tasks.append(asyncio.create_task(self._cancel_when_left(receive)))
            tasks.append(asyncio.create_task(self._ping(send)))
            self._write_at_once(scope)
            await self._write_events(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError as error:
            raise ClientDisconnect from error
        finally:
            for call in self._calls:
                call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _write_at_once(self, scope: Scope) -> None:
        """Write what comes in the middle of an answer when it comes, if the server can.

        The deltas of several calls come in the order in which their readers' task takes them.
        """
        extension = (scope.get("extensions") or {}).get(DIRECT_BODY)
        if extension is None or len(self._calls) > 1:
            return
        body: DirectBody = extension["body"]

        def take(deltas: list[Delta]) -> bool:
            if not body.is_ready():
                return False
            for delta in deltas:
                if delta.finish_reason is not None:
                    return False
            data = b""
            for delta in deltas:
                data += self._events(0, delta)
            if data:
                self._written_seconds = self._clock()
                body.write(data)
            return True

        self._calls[0].on_deltas = take

    async def _write_events(self, send: Send) -> None:
        try:
            async with aclosing(deltas_of(self._calls)) as deltas:
                async for place, delta in deltas:
                    data = self._events(place, delta)
                    if data:
                        await self._write(send, data)
            last = b""
            if self._work.include_usage:
                outputs = [await call.result() for call in self._calls]
                last = event(self._work.shape.usage_chunk(outputs))
            await self._write(send, last + DONE)
        except OctavoError as error:
            await self._write(send, event(ApiError.of(error).body()))
        except ApiError as error:
            await self._write(send, event(error.body()))

    def _events(self, place: int, delta: Delta) -> bytes:
        self._tokens += len(delta.token_ids)
        call = self._calls[place]
        if delta.finish_reason is not None:
            error = error_of_end(delta.finish_reason, delta.error, self._tokens, call.expired)
            if error is not None:
                raise error
        return self._work.shape.events(place, call, delta)

    async def _write(self, send: Send, data: bytes) -> None:
        self._written_seconds = self._clock()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _ping(self, send: Send) -> None:
        while True:
            await asyncio.sleep(self._written_seconds + self._ping_seconds - self._clock())
            if self._clock() - self._written_seconds >= self._ping_seconds:
                await self._write(send, PING)

    async def _cancel_when_left(self, receive: Receive) -> None:
        await until_disconnect(receive)
        for call in self._calls:
            call.cancel()


async def deltas_of(calls: Sequence[AsyncCall]) -> AsyncGenerator[tuple[int, Delta], None]:
    """Deltas of several calls as they come, each with the number of its call.

    Raises:
        OctavoError: one of the calls ended with it.
    """
    if len(calls) == 1:
        async for delta in calls[0]:
            yield 0, delta
        return
    # No more than one a call waits here, so that a slow reader's deltas merge in the calls.
    waiting: asyncio.Queue[tuple[int, Delta | OctavoError | None]] = asyncio.Queue(1)

    async def feed(place: int, call: AsyncCall) -> None:
        try:
            async for delta in call:
                await waiting.put((place, delta))
            await waiting.put((place, None))
        except OctavoError as error:
            await waiting.put((place, error))

    feeders = [asyncio.create_task(feed(*each)) for each in enumerate(calls)]
    try:
        left = len(calls)
        while left:
            place, news = await waiting.get()
            if isinstance(news, OctavoError):
                raise news
            if news is None:
                left -= 1
            else:
                yield place, news
    finally:
        for feeder in feeders:
            feeder.cancel()
        await asyncio.gather(*feeders, return_exceptions=True)
