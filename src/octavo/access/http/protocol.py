"""HTTP/1.1 connections: uvicorn's, with bounds on what a peer may take its time for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from octavo.access.http.errors import ApiError, unavailable

MAX_HEADER_BYTES = 65_536
"""Headers, trailers and the framing of chunks in one request."""
FRAMING_OF_A_BYTE = 8
"""What a chunk of one byte takes besides it, at most, if it is framed as usual."""
HEADER_SECONDS = 15.0
"""From the first byte of a request (or the opening of a connection) to the end of its headers."""
STALLED_SECONDS = 120.0
"""How long a peer may leave everything unread before its connection is cut."""
REST_SECONDS = 10.0
"""How long the rest of a body is taken (and dropped) after the answer."""

DIRECT_BODY = "octavo.direct_body"
"""ASGI extension that offers a `DirectBody` as `body`."""

_OTHER_PROTOCOLS = (b"upgrade", b"http2-settings", b"connection")


class Timer:
    """One call later, at most; starting it again starts it anew."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self._handle is not None

    def start(self, seconds: float, action: Callable[[], None]) -> None:
        self.stop()
        self._handle = self._loop.call_later(seconds, action)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class DirectBody:
    """The body of an answer, for whoever has pieces of it and no task to wait in."""

    def __init__(self, cycle: RequestResponseCycle):
        self._cycle = cycle

    def is_ready(self) -> bool:
        """Whether the body has begun, in chunks, and somebody reads it: `send` would not wait."""
        cycle = self._cycle
        return (
            cycle.chunked_encoding is True
            and not cycle.response_complete
            and not cycle.disconnected
            and not cycle.flow.write_paused
        )

    def write(self, data: bytes) -> None:
        """Write a piece, not empty, of a body that is ready."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Errors below the application have the shape of all others.

    A request that comes while another one is answered waits for its turn, and reading goes on, so
    that the peer's leaving is noticed; with two of them reading stops until the first is answered.

    `max_connections` is set by whoever makes the class its own (`bounded_protocol`).
    """

    max_connections = 0

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._in_headers = False
        self._in_message = False
        self._asks_for_upgrade = False
        self._framing_bytes = 0
        self._body_bytes = 0
        self._answered: RequestResponseCycle | None = None
        """The request whose turn it is; `cycle` is the one that came last."""
        self._header_timer = Timer(self.loop)
        self._stalled_timer = Timer(self.loop)
        self._rest_timer = Timer(self.loop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(unavailable("too many connections", code="too_many_connections"))
            return
        self._header_timer.start(HEADER_SECONDS, self._header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._header_timer, self._stalled_timer, self._rest_timer):
            timer.stop()
        # The base class tells the request that came last only.
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._framing_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if not self._in_message:
            self._framing_bytes = 0
        elif self._framing_bytes > MAX_HEADER_BYTES + FRAMING_OF_A_BYTE * self._body_bytes:
            self._refuse(
                ApiError(
                    431,
                    f"the headers have more than {MAX_HEADER_BYTES} bytes",
                    code="headers_too_large",
                )
            )

    def _parse(self, data: bytes) -> None:
        pieces = [data]
        while pieces and not self.transport.is_closing():
            piece = pieces.pop()
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                # The parser takes what follows for another protocol, a body included, but the
                # answer is in this one: the head is read again without the wish.
                rest = piece[upgrade.args[0] :]
                pieces += [rest, self._plain_head()] if rest else [self._plain_head()]
                self.parser = httptools.HttpRequestParser(self)
                with contextlib.suppress(AttributeError):  # before httptools 0.6.3
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            except httptools.HttpParserError:
                self._refuse(ApiError(400, "this is not HTTP/1.1", code="invalid_http"))

    def _plain_head(self) -> bytes:
        """Method, target and headers as they came, without those that ask for an upgrade."""
        headers = [each for each in self.headers if each[0] not in _OTHER_PROTOCOLS]
        if not self.parser.should_keep_alive():
            headers.append((b"connection", b"close"))
        version = self.parser.get_http_version().encode()
        first = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version)
        return first + b"".join(b"%b: %b\r\n" % each for each in headers) + b"\r\n"

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = self._in_message = True
        self._header_timer.start(HEADER_SECONDS, self._header_timeout)

    def on_headers_complete(self) -> None:
        # A tunnel has no target that could be asked for instead.
        self._asks_for_upgrade = (
            self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        )
        if self._asks_for_upgrade:
            return
        self._in_headers = False
        self._header_timer.stop()
        super().on_headers_complete()
        self.scope["extensions"] = {DIRECT_BODY: {"body": DirectBody(self.cycle)}}
        if not self.pipeline:
            self._answered = self.cycle
        elif len(self.pipeline) == 1:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._asks_for_upgrade:
            return
        self._in_message = False
        self._framing_bytes = self._body_bytes = 0
        self._rest_timer.stop()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        body_goes_on = self._in_message and not self._in_headers and self.cycle is self._answered
        if self.pipeline:
            self._answered = self.pipeline[-1][0]
        super().on_response_complete()
        if body_goes_on and not self.transport.is_closing():
            self._rest_timer.start(REST_SECONDS, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self._stalled_timer.runs:
            self._stalled_timer.start(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_timer.stop()

    def _refuse(self, error: ApiError) -> None:
        """Answer by hand, unless another answer has begun, and hang up."""
        self._in_headers = False
        cycle = self._answered
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = bytes(error.response().body)
            self.transport.write(
                b"%b"
                b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
                b"%b" % (STATUS_LINE[error.status], len(body), body)
            )
        self.transport.close()

    def _header_timeout(self) -> None:
        if self._in_headers:
            self._refuse(ApiError(408, "the headers did not end in time", code="header_timeout"))
        else:
            self.transport.close()


def bounded_protocol(max_connections: int) -> type[BoundedProtocol]:
    """The protocol of one server."""
    return type("BoundedProtocol", (BoundedProtocol,), {"max_connections": max_connections})
