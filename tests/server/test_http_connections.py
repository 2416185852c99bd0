"""Peers that are slow, wordy, or do not speak HTTP bound nobody but themselves."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from pathlib import Path

import pytest

from http_harness import PATIENCE_SECONDS, Server, app_on_fake
from octavo.access.http import protocol

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def connect(server: Server) -> socket.socket:
    return socket.create_connection(server.address, timeout=PATIENCE_SECONDS)


def read_until(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        part = connection.recv(65536)
        assert part, data
        data += part
    return data


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
            request + b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
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
            connection.sendall(
                b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            )
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b'{"status":"live"}' in answer


def test_bodies_have_a_limit_together(tiny_path: Path) -> None:
    part = HEAD + b"content-length: 1000\r\n\r\n" + b" " * 999
    with app_on_fake(tiny_path, service_options={"max_body_bytes": 1000}) as server:
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(connect(server)) for _ in range(9)]
            for connection in connections:
                connection.sendall(part)
            (refused,), _, _ = select.select(connections, [], [], PATIENCE_SECONDS)
            answer = read_all(refused)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"code":"too_many_bodies"' in answer
        server.wait_until(lambda: server.complete(prompt="a" * 800, max_tokens=1)["usage"])


LONG = b'{"prompt": "the cat", "max_tokens": 8000, "ignore_eos": true, "stream": %b}'
LIVE = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize("stream", [b"true", b"false"])
@pytest.mark.parametrize("second", [LIVE, HEAD + b"content-length: 100\r\n\r\n{"])
def test_leaving_is_noticed_behind_a_second_request(
    long_server: Server, stream: bytes, second: bytes
) -> None:
    cancelled = long_server.metric("octavo_requests_total", outcome="cancelled")
    body = LONG % stream
    with connect(long_server) as connection:
        connection.sendall(HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body) + second)
        long_server.wait_until(lambda: long_server.metric("octavo_open_calls") == 1)
    long_server.wait_idle()
    assert long_server.metric("octavo_requests_total", outcome="cancelled") == cancelled + 1


def test_noise_behind_a_stream_does_not_get_into_it(long_server: Server) -> None:
    body = LONG % b"true"
    with connect(long_server) as connection:
        connection.sendall(HEAD + b"content-length: %d\r\n\r\n%b%b" % (len(body), body, LIVE))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"\x00\x01\r\n\r\n")
        rest = read_all(connection)
    assert b"HTTP/1.1" not in rest
    long_server.wait_idle()


@pytest.mark.parametrize(
    ("start", "filler"),
    [
        (b"1\r\n{\r\n0\r\n", b"x-filler: abcdef\r\n"),
        (b"1\r\n{\r\n0\r\nx-filler: ", b"a"),
        (b"1;extension=", b"a"),
    ],
    ids=["trailers", "a trailer", "chunk extension"],
)
def test_what_frames_a_body_has_a_limit(server: Server, start: bytes, filler: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + start)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(filler * (protocol.MAX_HEADER_BYTES // len(filler)))
        assert read_all(connection).startswith(b"HTTP/1.1 431 ")


def test_a_body_in_chunks_of_one_byte_is_read(server: Server) -> None:
    body = json.dumps({"prompt": "the cat", "max_tokens": 1, "user": "a" * 100_000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\nx-trailer: 1\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n")
        connection.sendall(chunks)
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")


def test_a_connection_outlives_a_body_that_was_refused(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "REST_SECONDS", 1.5)
    with app_on_fake(tiny_path) as server, connect(server) as connection:
        head = b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n"
        connection.sendall(head)
        assert read_until(connection, b"}}").startswith(b"HTTP/1.1 404 ")
        connection.sendall(b"rest")
        time.sleep(2)
        connection.sendall(LIVE)
        assert read_until(connection, b'{"status":"live"}').startswith(b"HTTP/1.1 200 ")
        connection.sendall(head)
        assert read_until(connection, b"}}").startswith(b"HTTP/1.1 404 ")
        assert read_all(connection) == b""  # the rest does not come


@pytest.mark.parametrize("protocol_name", [b"h2c", b"websocket"])
def test_a_wish_for_another_protocol_loses_nothing(server: Server, protocol_name: bytes) -> None:
    body = b'{"prompt": "the cat", "max_tokens": 3, "temperature": 0}'
    wish = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: %b\r\nhttp2-settings: AAMA\r\n"
    request = HEAD + wish % protocol_name + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    with connect(server) as connection:
        # Some clients of the JVM send every first request of a connection like this.
        connection.sendall(request[:-20])
        time.sleep(0.05)
        connection.sendall(request[-20:] + request)
        connection.sendall(LIVE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert answer.count(b'"text_completion"') == 2
    assert answer.endswith(b'{"status":"live"}')


@pytest.mark.parametrize("port", ["", ":8000"])
@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST", "localhost.", "a.localhost", "127.0.0.1", "127.8.8.8", "[::1]"],
)
def test_names_of_this_machine_may_be_asked(server: Server, host: str, port: str) -> None:
    assert server.ask("GET", "/v1/models", headers={"host": host + port}).status == 200


@pytest.mark.parametrize(
    "host",
    ["example.com", "localhost.example.com:8000", "10.0.0.1", "[::2]", "127.0.0.1.nip.io", ""],
)
def test_a_page_that_calls_this_machine_by_its_own_name_is_refused(
    server: Server, host: str
) -> None:
    reply = server.ask("GET", "/v1/models", headers={"host": host})
    assert reply.status == 403
    assert reply.error["code"] == "host_not_allowed"
    body = {"prompt": "a", "max_tokens": 1}
    assert server.post("/v1/completions", body, headers={"host": host}).status == 403


@pytest.mark.parametrize("allowed", [("Proxy.example.com",), ("*",)])
def test_a_proxy_may_pass_its_own_name_on(tiny_path: Path, allowed: tuple[str, ...]) -> None:
    with app_on_fake(tiny_path, allowed_hosts=allowed) as server:
        found = [
            server.ask("GET", "/health/live", headers={"host": host}).status
            for host in ("proxy.example.com:443", "other.example.com")
        ]
    assert found == [200, 200 if "*" in allowed else 403]


@pytest.mark.parametrize("hosts", [b"", b"host: localhost\r\nhost: localhost\r\n"])
def test_a_request_has_one_host(server: Server, hosts: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\n%bconnection: close\r\n\r\n" % hosts)
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")
    with connect(server) as connection:
        connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")
