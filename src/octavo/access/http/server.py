"""Serves the application on a socket until it is told to end."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

import uvicorn
from starlette.types import ASGIApp

from octavo.access.http.hosts import HostCheck
from octavo.access.http.listen import raise_descriptor_limit
from octavo.access.http.protocol import bounded_protocol

KEEP_ALIVE_SECONDS = 30


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
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        """Stop listening, end what is still open after a second, and return from `serve`."""
        self.should_exit = True
