"""A client that leaves takes its own work with it, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from http_harness import Server, app_on_fake
from remote_harness import SlowModel

COMPLETIONS = "/v1/completions"
LONG: dict[str, Any] = {"max_tokens": 450, "ignore_eos": True, "seed": 1}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_leaving_frees_rows_and_pages(long_server: Server, stream: bool) -> None:
    cancelled = long_server.metric("octavo_requests_total", outcome="cancelled")
    body = {"prompt": ["the cat", "and"], "n": 2, "stream": stream, **LONG, "max_tokens": 8000}
    with long_server.open(COMPLETIONS, body):
        long_server.wait_until(lambda: long_server.metric("octavo_running") == 4)
    long_server.wait_idle()
    assert long_server.metric("octavo_requests_total", outcome="cancelled") == cancelled + 4


def test_leaving_the_queue_leaves_the_running_alone(tiny_path: Path) -> None:
    model = SlowModel(512, 1024, answers=range(300, 500))
    with app_on_fake(tiny_path, model, max_rows=1) as slow:
        body = {"prompt": [5, 6], "max_tokens": 60, "ignore_eos": True, "seed": 1}
        alone = slow.complete(**body)["choices"][0]["text"]
        model.step_seconds = 0.5  # so that it runs for longer than the rest takes
        with slow.open(COMPLETIONS, {**body, "stream": True}) as running:
            slow.wait_until(lambda: slow.metric("octavo_running") == 1)
            for stream in (True, False):
                with slow.open(COMPLETIONS, {**body, "stream": stream}):
                    slow.wait_until(lambda: slow.metric("octavo_waiting") == 1)
                slow.wait_until(lambda: slow.metric("octavo_waiting") == 0)
                assert slow.metric("octavo_running") == 1
            model.step_seconds = 0
            data = b""
            while b"[DONE]" not in data:
                data += running.recv(65536)
        assert slow.metric("octavo_requests_total", outcome="cancelled") == 2
        assert slow.metric("octavo_requests_total", outcome="length") == 2
        assert alone == slow.complete(**body)["choices"][0]["text"]
        slow.wait_idle()


def test_leaving_in_the_middle_of_a_prompt(tiny_path: Path) -> None:
    model = SlowModel(512, 1024, answers=range(300, 500))
    model.step_seconds = 1.5  # 256 tokens of a prompt a step
    with app_on_fake(tiny_path, model) as slow:
        computed = slow.metric("octavo_engine_computed_tokens_total")
        with slow.open(COMPLETIONS, {"prompt": [7] * 1000, "max_tokens": 5}):
            slow.wait_until(lambda: slow.metric("octavo_kv_pages", state="held") > 0)
        slow.wait_idle()
        assert slow.metric("octavo_engine_computed_tokens_total") - computed < 1000


def test_a_thousand_streams_that_leave_after_one_event(server: Server) -> None:
    """Some leave the queue, some a prompt, some an answer; nothing stays behind."""
    neighbour = {"prompt": "an old man and the sea", **LONG}
    alone = server.complete(**neighbour)["choices"]
    frontend = server.process.pid if server.process else 0
    storm(server, 100)  # caches and pools have grown to their size
    server.wait_idle()
    before = descriptors(frontend)
    resident = resident_bytes(frontend)
    server_texts = []
    for _ in range(3):
        storm(server, 300)
        server_texts.append(server.complete(**neighbour)["choices"])
    server.wait_idle()
    assert server_texts == [alone] * 3
    server.wait_until(lambda: descriptors(frontend) <= before + 1)
    assert resident_bytes(frontend) - resident < 32 << 20


def storm(server: Server, count: int) -> None:
    waiting = []
    for number in range(count):
        prompt = [5 + number % 400] * (3 if number % 3 else 200)
        body = {"prompt": prompt, "stream": True, **LONG}
        waiting.append(server.open(COMPLETIONS, body))
        if len(waiting) == 20:
            leave = waiting.pop(number % 20)
            leave.recv(1)
            leave.close()
    for connection in waiting:
        connection.recv(1)
        connection.close()


def descriptors(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def resident_bytes(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_the_engine_works_on_when_every_client_has_left(server: Server) -> None:
    for connection in [server.open(COMPLETIONS, {"prompt": "a", **LONG}) for _ in range(20)]:
        connection.close()
    server.wait_idle()
    assert server.complete(prompt="the cat", max_tokens=3)["usage"]["prompt_tokens"] > 0
