"""Peers that are slow, wordy, or do not speak HTTP bound nobody but themselves."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from http_harness import PATIENCE_SECONDS, Server, app_on_fake
from octavo.access.http import protocol

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def connect(server: Server) -> socket.socket:
    return socket.create_connection(server.address, timeout=PATIENCE_SECONDS)


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            data += part
    return data


@pytest.mark.parametrize(
    "noise",
    [b"\x00\x01\x02\r\n\r\n", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" * 40],
    ids=["binary", "words", "version", "tls"],
)
def test_what_is_not_http_gets_an_error_object(server: Server, noise: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(noise)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_http"' in answer


def test_headers_have_a_limit(server: Server) -> None:
    with connect(server) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(HEAD + b"x-filler: ")
            for _ in range(64):
                connection.sendall(b"a" * 16384)
        answer = read_all(connection)
    # A peer that goes on sending may lose the answer, never the others.
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    filler = b"x-filler: abcdef\r\n"
    with connect(server) as connection:
        connection.sendall(HEAD + filler * (protocol.MAX_HEADER_BYTES // len(filler)))
        assert read_all(connection).startswith(b"HTTP/1.1 431 ")
    assert server.get("/health/live").status == 200


def test_slow_headers_and_silence_end(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.3)
    with app_on_fake(tiny_path) as server:
        with connect(server) as silent:
            assert read_all(silent) == b""
        with connect(server) as slow:
            slow.sendall(HEAD)
            answer = read_all(slow)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"header_timeout"' in answer


def test_a_body_that_stops_ends(tiny_path: Path) -> None:
    with app_on_fake(tiny_path, service_options={"body_seconds": 0.2}) as server:
        with connect(server) as slow:
            slow.sendall(HEAD + b"content-length: 100\r\n\r\n{")
            answer = read_all(slow)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"body_timeout"' in answer


def test_connections_have_a_limit(tiny_path: Path) -> None:
    with app_on_fake(tiny_path, max_connections=2) as server:
        with connect(server), connect(server), connect(server) as third:
            answer = read_all(third)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"too_many_connections"' in answer
        server.wait_until(lambda: _alive(server))


def _alive(server: Server) -> bool:
    try:
        return server.get("/health/live").status == 200
    except OSError:
        return False


def test_requests_in_one_go_are_answered_in_order(server: Server) -> None:
    body = b'{"prompt": "the cat", "max_tokens": 3, "temperature": 0}'
    request = HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    with connect(server) as connection:
        connection.sendall(
            request + b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.index(b"text_completion") < answer.index(b'"live"')


def test_a_refused_body_that_goes_on_does_not_break_the_answer(tiny_path: Path) -> None:
    with app_on_fake(tiny_path, service_options={"max_body_bytes": 1000}) as server:
        with connect(server) as connection:
            connection.sendall(HEAD + b"content-length: 400000\r\n\r\n")
            for _ in range(40):
                connection.sendall(b"x" * 10_000)
            connection.sendall(b"GET /health/live HTTP/1.1\r\nconnection: close\r\n\r\n")
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b'{"status":"live"}' in answer
