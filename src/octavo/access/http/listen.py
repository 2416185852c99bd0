"""Where a server listens: a loopback address that is free, and descriptors for its connections."""

from __future__ import annotations

import errno
import ipaddress
import resource
import socket

from octavo.core.errors import SettingsError

DESCRIPTORS_APART = 64
"""Descriptors that are not connections: listening sockets, ZeroMQ's, files."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that will listen; port 0 takes a free one.

    Raises:
        SettingsError: the address reaches beyond this machine, or cannot be had.
    """
    name = "127.0.0.1" if host == "localhost" else host
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        raise SettingsError(
            f"{host!r} is not an IP address of this machine",
            field="server.host",
            remedy="use 127.0.0.1 or ::1",
        ) from None
    if not address.is_loopback:
        raise SettingsError(
            f"{host} can be reached from other machines, and this server has no API keys yet",
            field="server.host",
            remedy="use 127.0.0.1, and an SSH tunnel or a proxy that checks who asks",
        )
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((name, port))
        # Taken from now on: two servers may otherwise bind it both and only one can listen.
        listener.listen(1024)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        raise SettingsError(
            f"port {port} of {host} is taken"
            if taken
            else f"cannot listen at {host}:{port}: {error.strerror}",
            field="server.http_port",
            remedy="stop what listens there, or choose another port (0: any free one)",
        ) from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_descriptor_limit(connections: int) -> int:
    """Let this process have that many connections; how many it may have then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + DESCRIPTORS_APART
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(min(connections, wanted - DESCRIPTORS_APART), 1)
