"""`octavo serve` from its start to its end: table, drain, interrupts, a dead engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from http_harness import (
    LONG_SETTINGS,
    OCTAVO,
    PATIENCE_SECONDS,
    TINY_SETTINGS,
    Server,
    octavo_serve,
)
from octavo.access.http.listen import bind, url_of
from octavo.core.errors import SettingsError

COMPLETIONS = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "the cat", "max_tokens": 2000, "ignore_eos": True, "stream": True}


def in_threads(count: int, work: Callable[[int], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_the_table_tells_what_is_served(server: Server) -> None:
    table = {line.split()[0]: line for line in server.log if line.startswith("  ")}
    assert "tiny (llama" in table["model"]
    assert "512 tokens" in table["context"]
    assert "pages of 32 tokens" in table["KV"]
    assert "1 (" in table["threads"]
    assert {"weights", "workspace", "start-up", "address"} <= table.keys()


def test_sigterm_lets_ten_streams_finish(long_path: Path) -> None:
    with octavo_serve(long_path, settings=LONG_SETTINGS) as server:
        assert server.process is not None
        bodies: list[Any] = [None] * 10

        def stream(number: int) -> None:
            bodies[number] = server.post(COMPLETIONS, {**LONG, "seed": number}).events

        threads = in_threads(10, stream)
        server.wait_until(lambda: server.metric("octavo_open_calls") == 10)
        # An engine that stands still cannot end the drain before it has been looked at.
        engine = server.engine_process()
        os.kill(engine, signal.SIGSTOP)
        try:
            server.process.send_signal(signal.SIGTERM)
            server.wait_until(lambda: server.get("/health/ready").status == 503)
            refused = server.post(COMPLETIONS, LONG)
            assert refused.status == 503
            assert refused.error["code"] == "shutting_down"
            assert refused.headers["retry-after"] == "1"
            assert refused.headers["connection"] == "close"
            assert server.get("/health/live").status == 200
        finally:
            os.kill(engine, signal.SIGCONT)
        for thread in threads:
            thread.join()
        assert server.process.wait(PATIENCE_SECONDS) == 0
        assert all(body[-1]["choices"][0]["finish_reason"] == "length" for body in bodies)


def test_the_deadline_of_a_drain_ends_what_is_left(long_path: Path) -> None:
    with octavo_serve(long_path, settings=(*LONG_SETTINGS, "server.drain_seconds=0")) as server:
        assert server.process is not None
        ends: list[bytes] = []
        endless = {**LONG, "max_tokens": 8000}
        threads = in_threads(1, lambda _: ends.append(server.post(COMPLETIONS, endless).body))
        server.wait_until(lambda: server.metric("octavo_open_calls") == 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_SECONDS) == 0
        threads[0].join()
        error = json.loads(ends[0].split(b"data: ")[-1])["error"]
        assert "shutting down" in error["message"]


def test_the_deadline_of_a_drain_drops_whoever_does_not_read(long_path: Path) -> None:
    with octavo_serve(long_path, settings=(*LONG_SETTINGS, "server.drain_seconds=0")) as server:
        assert server.process is not None
        unread = {**LONG, "max_tokens": 1500, "n": 8, "logprobs": 20}
        with server.open(COMPLETIONS, unread):
            server.wait_until(lambda: server.metric("octavo_requests_total", outcome="length") == 8)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE_SECONDS) == 0
        assert "Traceback" not in "".join(server.log)


def test_a_second_interrupt_ends_at_once(long_path: Path) -> None:
    with octavo_serve(long_path, settings=(*LONG_SETTINGS, "server.drain_seconds=600")) as server:
        assert server.process is not None
        engine = server.engine_process()
        # Whoever never reads would hold the drain for as long as it may take.
        with server.open(COMPLETIONS, {**LONG, "max_tokens": 8000, "n": 8, "logprobs": 20}):
            server.wait_until(lambda: server.metric("octavo_open_calls") == 1)
            os.kill(engine, signal.SIGSTOP)
            server.process.send_signal(signal.SIGINT)
            server.wait_until(lambda: server.get("/health/ready").status == 503)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(PATIENCE_SECONDS) == 130
        assert "Traceback" not in "".join(server.log)
        server.wait_until(lambda: not Path(f"/proc/{engine}").exists())


def test_a_killed_engine_is_told_and_comes_back(long_path: Path) -> None:
    with octavo_serve(long_path, settings=LONG_SETTINGS) as server:
        bodies: list[bytes] = []
        statuses: list[int] = []

        def ask(number: int) -> None:
            reply = server.post(
                COMPLETIONS, {**LONG, "max_tokens": 8000, "stream": number % 2 == 0}
            )
            statuses.append(reply.status)
            bodies.append(reply.body)

        threads = in_threads(8, ask)
        # Streams that have not begun would be told with a status, as the others are.
        begun = "octavo_time_to_first_token_seconds_count"
        server.wait_until(lambda: server.metric(begun) == 8)
        killed = time.monotonic()
        os.kill(server.engine_process(), signal.SIGKILL)
        for thread in threads:
            thread.join()
        assert time.monotonic() - killed < PATIENCE_SECONDS
        assert sorted(statuses) == [200] * 4 + [503] * 4
        assert all(b'"code":"engine_error"' in body for body in bodies)
        assert not any(b"[DONE]" in body for body in bodies)
        server.wait_until(lambda: server.get("/health/ready").status == 200)
        assert server.complete(prompt="the cat", max_tokens=2)["usage"]["prompt_tokens"] > 0
        assert server.metric("octavo_engine_restarts_total") == 1


def test_a_silent_engine_is_not_ready_and_then_started_again(tiny_path: Path) -> None:
    settings = ("server.ready_seconds=1", "server.stuck_seconds=4")
    with octavo_serve(tiny_path, settings=settings) as server:
        os.kill(server.engine_process(), signal.SIGSTOP)
        server.wait_until(lambda: server.get("/health/ready").status == 503)
        assert "has not answered" in server.get("/health/ready").error["message"]
        server.wait_until(lambda: server.metric("octavo_engine_restarts_total") == 1)
        server.wait_until(lambda: server.get("/health/ready").status == 200)
        assert server.complete(prompt="the cat", max_tokens=2)["choices"]
    assert "did not answer for 4 s" in "".join(server.log)


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OCTAVO, "serve", *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        stdin=subprocess.DEVNULL,
    )


def test_a_port_that_is_taken_is_named(server: Server, tiny_path: Path) -> None:
    port = str(server.address[1])
    outcome = serve(str(tiny_path), "--port", port)
    assert outcome.returncode == 1
    assert f"port {port} of 127.0.0.1 is taken" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_only_loopback_is_served(host: str) -> None:
    with pytest.raises(SettingsError, match=r"server\.host"):
        bind(host, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2", "::1"])
def test_every_loopback_address_can_be_had(host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("no IPv6 here")
    with bind(host, 0) as listener:
        assert url_of(listener).startswith("http://")
        with pytest.raises(SettingsError, match="is taken"):
            bind(host, listener.getsockname()[1])


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_file_that_is_no_model_ends_with_its_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    outcome = serve(str(broken), "--port=0")
    assert outcome.returncode == 1
    assert "octavo: " in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_setting_the_engine_refuses_ends_with_its_reason(tiny_path: Path) -> None:
    flags = [f"--set={each}" for each in TINY_SETTINGS]
    outcome = serve(str(tiny_path), "--port=0", *flags, "--set=memory.kv_bytes=1KB")
    assert outcome.returncode == 1
    assert "octavo: " in outcome.stderr.splitlines()[-1]
    assert "Traceback" not in outcome.stderr


def test_explain_shows_where_the_port_came_from(tiny_path: Path) -> None:
    outcome = serve(str(tiny_path), "--port=1234", "--explain")
    assert outcome.returncode == 0
    (row,) = [line for line in outcome.stdout.splitlines() if line.startswith("server.http_port")]
    assert "1234" in row
    assert "the command line" in row
