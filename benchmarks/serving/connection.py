"""HTTP/1.1 requests at little cost: the client shares the machine's cores with the server.

One connection a request. The parser is httptools, nothing is copied twice, and the time of a piece
is taken once for each read of the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import httptools
import msgspec

Clock = Callable[[], float]


class ExchangeError(Exception):
    """No whole answer came. `kind` is one or two words to count by."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class Receiver(Protocol):
    """Takes an answer as it comes; neither method may raise."""

    def on_status(self, status: int, retry_after_seconds: float | None) -> None: ...

    def on_body(self, seconds: float, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server listens. `path` is what stands before `/v1`, without a slash at its end."""

    host: str
    port: int
    path: str = ""
    encrypted: bool = False
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Target:
        """A base URL, with or without the `/v1` that clients of the API write.

        Raises:
            ValueError: it is no http or https URL.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address like http://127.0.0.1:8000")
        encrypted = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        port = parts.port or (443 if encrypted else 80)
        return cls(parts.hostname, port, path, encrypted, api_key)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.encrypted}://{host}:{self.port}{self.path}"

    def head(self, method: str, path: str, body_bytes: int | None) -> bytes:
        """Request line and headers."""
        lines = [
            f"{method} {self.path}{path} HTTP/1.1",
            f"host: {self.host}:{self.port}",
            "connection: close",
        ]
        if self.api_key:
            lines.append(f"authorization: Bearer {self.api_key}")
        if body_bytes is not None:
            lines += ["content-type: application/json", f"content-length: {body_bytes}"]
        return "\r\n".join([*lines, "", ""]).encode()


class WholeBody:
    """Keeps the answer in one piece."""

    def __init__(self) -> None:
        self.status = 0
        self.retry_after_seconds: float | None = None
        self._parts: list[bytes] = []

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    def on_status(self, status: int, retry_after_seconds: float | None) -> None:
        self.status = status
        self.retry_after_seconds = retry_after_seconds

    def on_body(self, seconds: float, data: bytes) -> None:
        self._parts.append(data)


async def exchange(
    target: Target,
    method: str,
    path: str,
    body: object,
    receiver: Receiver,
    *,
    clock: Clock,
    timeout_seconds: float,
) -> None:
    """Send a request (`body` as JSON, none if None) and hand its answer to `receiver`.

    Whoever cancels this hangs up.

    Raises:
        ExchangeError: no connection, no HTTP, an answer cut off, or `timeout_seconds` were over.
    """
    data = None if body is None else msgspec.json.encode(body)
    head = target.head(method, path, None if data is None else len(data))
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_seconds):
            transport, connection = await loop.create_connection(
                lambda: _Connection(head + (data or b""), receiver, clock, loop.create_future()),
                target.host,
                target.port,
                ssl=True if target.encrypted else None,
            )
            try:
                await connection.done
            finally:
                transport.abort()
    except TimeoutError:
        raise ExchangeError("timeout", f"no whole answer in {timeout_seconds:g} s") from None
    except OSError as error:
        raise ExchangeError("connection", str(error) or type(error).__name__) from error


async def ask_json(
    target: Target,
    method: str,
    path: str,
    body: object = None,
    *,
    clock: Clock,
    timeout_seconds: float = 600.0,
) -> tuple[int, object]:
    """Status and JSON value of an answer; the value is None if it is no JSON."""
    whole = WholeBody()
    await exchange(target, method, path, body, whole, clock=clock, timeout_seconds=timeout_seconds)
    try:
        return whole.status, msgspec.json.decode(whole.body)
    except msgspec.DecodeError:
        return whole.status, None


class _Connection(asyncio.Protocol):
    """`done` has a result once the answer is whole."""

    def __init__(
        self, request: bytes, receiver: Receiver, clock: Clock, done: asyncio.Future[None]
    ):
        self.done = done
        self._request = request
        self._receiver = receiver
        self._clock = clock
        self._parser = httptools.HttpResponseParser(self)
        self._read_seconds = 0.0
        self._ends_with_connection = True
        self._began = False
        self._retry_after_seconds: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._read_seconds = self._clock()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ExchangeError("protocol", f"no HTTP answer: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._began and self._ends_with_connection and error is None:
            self.on_message_complete()
        reason = str(error) if error else "before the end of the answer"
        self._fail(ExchangeError("closed", f"the server closed the connection: {reason}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False
        elif name.lower() == b"retry-after" and value.isdigit():
            self._retry_after_seconds = float(value)

    def on_headers_complete(self) -> None:
        self._began = True
        self._receiver.on_status(self._parser.get_status_code(), self._retry_after_seconds)

    def on_body(self, data: bytes) -> None:
        self._receiver.on_body(self._read_seconds, data)

    def on_message_complete(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _fail(self, error: ExchangeError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
