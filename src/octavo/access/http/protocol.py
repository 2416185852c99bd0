"""HTTP/1.1 connections: uvicorn's, with bounds on what a peer may take its time for."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from octavo.access.http.errors import ApiError, unavailable

MAX_HEADER_BYTES = 65_536
HEADER_SECONDS = 15.0
"""From the first byte of a request (or the opening of a connection) to the end of its headers."""
STALLED_SECONDS = 120.0
"""How long a peer may leave everything unread before its connection is cut."""
REST_SECONDS = 10.0
"""How long the rest of a body is taken (and dropped) after the answer."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Errors below the application have the shape of all others.

    `max_connections` is set by whoever makes the class its own (`bounded_protocol`).
    """

    max_connections = 0

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._in_headers = False
        self._in_message = False
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._stalled_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(unavailable("too many connections", code="too_many_connections"))
            return
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_stalled_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        idle = not self._in_message
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if idle and self._in_headers:
            self._header_bytes = len(data)
        if self._in_headers and self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(
                ApiError(
                    431,
                    f"the headers have more than {MAX_HEADER_BYTES} bytes",
                    code="headers_too_large",
                )
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = self._in_message = True
        self._header_bytes = 0
        self._start_header_timer()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._stop_header_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_message and not self.transport.is_closing():
            self.loop.call_later(REST_SECONDS, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "this is not HTTP/1.1", code="invalid_http"))

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled_timer is None:
            self._stalled_timer = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stalled_timer()

    def _refuse(self, error: ApiError) -> None:
        """Answer by hand, unless another answer has begun, and hang up."""
        self._in_headers = False
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = bytes(error.response().body)
            self.transport.write(
                b"%b"
                b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
                b"%b" % (STATUS_LINE[error.status], len(body), body)
            )
        self.transport.close()

    def _start_header_timer(self) -> None:
        self._stop_header_timer()
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._header_timeout)

    def _header_timeout(self) -> None:
        if self._in_headers:
            self._refuse(ApiError(408, "the headers did not end in time", code="header_timeout"))
        else:
            self.transport.close()

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_stalled_timer(self) -> None:
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
            self._stalled_timer = None


def bounded_protocol(max_connections: int) -> type[BoundedProtocol]:
    """The protocol of one server."""
    return type("BoundedProtocol", (BoundedProtocol,), {"max_connections": max_connections})
