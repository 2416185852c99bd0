"""An engine in its user's process gives memory back by itself, and leaves with its owner."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from tiny import make_tiny_gguf

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
PROMPT = list(range(3, 40))
_PATIENCE_SECONDS = 120.0


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
    return make_tiny_gguf(tmp_path / "m.gguf", context=256)


def wait_until(is_so: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not is_so():
        assert time.monotonic() - started < _PATIENCE_SECONDS, "it never came to that"
        time.sleep(0.01)


def idle_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "octavo idle"}


def test_an_engine_left_alone_gives_its_memory_back_and_answers_as_before(path: Path) -> None:
    with LLM(path, idle_release_seconds=1, kv_bytes="4MB") as llm:
        (before,) = llm.generate([PROMPT], GREEDY)
        elastic = llm.assembly.engine.elastic
        assert elastic is not None
        wait_until(lambda: elastic.backed_bytes == 0)
        assert elastic.released_bytes > 0
        (after,) = llm.generate([PROMPT], GREEDY)
        assert (after.token_ids, after.usage.cached_tokens) == (before.token_ids, 0)
        wait_until(lambda: elastic.backed_bytes == 0)


def test_pages_are_on_disk_before_their_memory_goes(path: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "pages")
    with LLM(
        path, idle_release_seconds=1, swap_space="64MB", swap_dir=folder, kv_bytes="4MB"
    ) as llm:
        (before,) = llm.generate([PROMPT], GREEDY)
        engine = llm.assembly.engine
        assert engine.elastic is not None
        assert engine.swapper is not None
        wait_until(lambda: engine.elastic is not None and engine.elastic.backed_bytes == 0)
        assert engine.swapper.counters.written_pages > 0
        (after,) = llm.generate([PROMPT], GREEDY)
        assert after.token_ids == before.token_ids


def test_nothing_runs_where_nothing_would_be_given_back(path: Path) -> None:
    others = idle_threads()
    with LLM(path, idle_release_seconds="off", kv_bytes="4MB") as llm:
        llm.generate([PROMPT], GREEDY)
        assert not idle_threads() - others


@pytest.mark.parametrize("closes", [True, False])
def test_the_thread_ends_with_its_engine(
    path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    monkeypatch.setattr("octavo.engine.idle._LONGEST_WAIT_SECONDS", 0.05)
    others = idle_threads()
    llm = LLM(path, kv_bytes="4MB")
    llm.generate([PROMPT], GREEDY)
    assert len(idle_threads() - others) == 1
    if closes:
        llm.close()
        llm.close()
        assert not idle_threads() - others
    else:
        del llm
        wait_until(lambda: gc.collect() >= 0 and not idle_threads() - others)
