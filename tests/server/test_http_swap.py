"""A server that is stopped and started again finds what it had computed on disk."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from http_harness import Server, octavo_serve

PROMPT = [5 + number * 7 % 300 for number in range(1500)]
# Rows of this request only; the model is so small that nothing but this makes computing slow.
SETTINGS = (
    "memory.kv_bytes=24MB",
    "memory.swap_timeout_ms=60000",
    "scheduler.token_budget=16",
)


def ask(server: Server) -> tuple[object, int]:
    answer = server.complete(prompt=PROMPT, max_tokens=4, logprobs=2, ignore_eos=True)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"], cached


def test_cache_outlives_the_server(long_path: Path, tmp_path: Path) -> None:
    swap = (*SETTINGS, "memory.swap_space=64MB", f"memory.swap_dir={tmp_path}")
    with octavo_serve(long_path, settings=swap) as server:
        assert "64MB in" in "".join(server.log)
        cold, cached = ask(server)
        assert cached == 0
        # Idle, the engine writes down what it has; killed, it loses nothing of that.
        server.wait_until(lambda: server.metric("octavo_swap_pages") >= len(PROMPT) // 32)
        server.wait_until(lambda: server.metric("octavo_swap_written_pages_total") > 0)
        os.kill(server.engine_process(), signal.SIGKILL)
        server.wait_until(lambda: server.metric("octavo_engine_restarts_total") == 1)
        server.wait_until(lambda: server.get("/health/ready").status == 200)
        after_kill, cached = ask(server)
        assert (after_kill, cached) == (cold, len(PROMPT) // 32 * 32)
        server.wait_until(
            lambda: server.metric("octavo_swap_loaded_pages_total") == len(PROMPT) // 32
        )
    with octavo_serve(long_path, settings=swap) as server:
        warm, cached = ask(server)
        assert (warm, cached) == (cold, len(PROMPT) // 32 * 32)
        assert server.metric("octavo_swap_damaged_pages_total") == 0


def test_what_an_idle_server_gave_back_comes_from_disk(long_path: Path, tmp_path: Path) -> None:
    swap = (*SETTINGS, "memory.swap_space=64MB", f"memory.swap_dir={tmp_path}")
    with octavo_serve(long_path, settings=(*swap, "memory.idle_release_seconds=1")) as server:
        cold, cached = ask(server)
        assert cached == 0
        server.wait_until(lambda: server.metric("octavo_engine_kv_released_bytes_total") > 0)
        server.wait_until(lambda: server.metric("octavo_kv_backed_bytes") == 0)
        assert server.metric("octavo_kv_pages", state="cached") == 0
        assert server.metric("octavo_swap_written_pages_total") >= len(PROMPT) // 32
        warm, cached = ask(server)
        assert (warm, cached) == (cold, len(PROMPT) // 32 * 32)
        server.wait_until(
            lambda: server.metric("octavo_swap_loaded_pages_total") == len(PROMPT) // 32
        )
