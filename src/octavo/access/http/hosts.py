"""Whom requests may be addressed to: a web page must not reach the server by a name of its own."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.access.http.errors import ApiError

ANY_HOST = "*"
_MAX_SHOWN = 100


class HostCheck:
    """Lets through what is addressed to this machine by a loopback name or to an allowed host.

    A page whose name is made to resolve to 127.0.0.1 (DNS rebinding) is of the same origin as the
    server for a browser, which then lets it read answers; but the browser still sends that name.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str] = ()):
        self._app = app
        self._allowed = frozenset(name.lower().removesuffix(".") for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._error(scope)) is not None:
            await error.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _error(self, scope: Scope) -> ApiError | None:
        hosts = _hosts(scope["headers"])
        if len(hosts) > 1 or (not hosts and scope["http_version"] == "1.1"):
            # RFC 9112, section 3.2.
            return ApiError(400, "a request has exactly one Host header", code="invalid_http")
        if not hosts or ANY_HOST in self._allowed or self._may_be_asked(hosts[0]):
            return None
        return ApiError(
            403,
            f"this server is not {hosts[0][:_MAX_SHOWN]!r}"
            " (ask 127.0.0.1 or localhost, or add the name to server.allowed_hosts)",
            code="host_not_allowed",
        )

    def _may_be_asked(self, host: str) -> bool:
        name = _name(host)
        if name in self._allowed or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def _hosts(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    return [value.decode("latin-1") for name, value in headers if name == b"host"]


def _name(host: str) -> str:
    """A Host header without its port, brackets and final dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().removesuffix(".")
