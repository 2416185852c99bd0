"""Serves the application on a socket until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection, Iterator

import uvicorn
from starlette.types import ASGIApp

from octavo.access.http.hosts import HostCheck
from octavo.access.http.listen import raise_descriptor_limit
from octavo.access.http.protocol import bounded_protocol

KEEP_ALIVE_SECONDS = 30
_DATE_SECONDS = 1.0
_DROPPED_SECONDS = 5
"""How long answers may take to notice that their connections were dropped."""


class HttpServer(uvicorn.Server):
    """uvicorn's server that leaves signals to its owner, who calls `end`."""

    def __init__(self, app: ASGIApp, *, max_connections: int, allowed_hosts: Collection[str] = ()):
        config = uvicorn.Config(
            HostCheck(app, allowed_hosts),
            http=bounded_protocol(raise_descriptor_limit(max_connections)),
            ws="none",
            loop="asyncio",
            lifespan="off",  # what lasts as long as the server belongs to its owner
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        super().__init__(config)
        self._grace_seconds = 1.0
        self._ending = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self, grace_seconds: float = 1.0) -> None:
        """Stop listening, drop what is still open after `grace_seconds`, return from `serve`."""
        self._grace_seconds = grace_seconds
        self.should_exit = True
        self._ending.set()

    def drop(self) -> None:
        """End at once: to the answers that are left, their clients have gone."""
        self.end(0)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def main_loop(self) -> None:
        """Sleep until the end, but for the date of answers; uvicorn looks 10 times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), _DATE_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """What uvicorn does, but without cancelling tasks, which it would report as defects."""
        self.config.timeout_graceful_shutdown = int(self._grace_seconds) + _DROPPED_SECONDS
        timer = asyncio.get_running_loop().call_later(self._grace_seconds, self.drop)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
