"""Bodies and texts that broke other servers: each gets an answer, and a neighbour keeps its own."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from http_harness import Reply, Server

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
NEIGHBOUR = {"prompt": "an old man and the sea", "max_tokens": 200, "ignore_eos": True, "seed": 9}


@contextmanager
def neighbour(server: Server) -> Iterator[None]:
    """Somebody asks the same question again and again; the answer must stay the same."""
    alone = server.complete(**NEIGHBOUR)["choices"]
    over = threading.Event()
    answers: list[Any] = []

    def ask() -> None:
        while not over.is_set():
            answers.append(server.complete(**NEIGHBOUR)["choices"])

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert answers
    assert all(answer == alone for answer in answers)


def check_refused(reply: Reply) -> None:
    assert 400 <= reply.status < 500, reply.body
    assert reply.error["type"] == "invalid_request_error"


def test_every_parsing_test_as_a_body(server: Server, data_dir: Path) -> None:
    lines = (data_dir / "json-parsing" / "test_parsing.jsonl").read_text().splitlines()
    cases = [json.loads(line) for line in lines]
    assert len(cases) == 318
    with neighbour(server):
        for case in cases:
            raw = base64.b64decode(case["bytes_b64"])
            reply = server.post(COMPLETIONS, raw=raw)
            # None of them is a completion request; most are not even objects.
            check_refused(reply)
            if case["expect"] == "reject":
                assert reply.error["code"] in ("invalid_json", "invalid_request"), case["name"]


def test_every_parsing_test_inside_a_field(server: Server, data_dir: Path) -> None:
    lines = (data_dir / "json-parsing" / "test_parsing.jsonl").read_text().splitlines()
    for case in map(json.loads, lines):
        raw = base64.b64decode(case["bytes_b64"])
        reply = server.post(COMPLETIONS, raw=b'{"prompt": "a", "max_tokens": 1, "seed": %b}' % raw)
        assert reply.status < 500, case["name"]
        assert reply.json()


@pytest.fixture(scope="module")
def naughty(data_dir: Path) -> list[str]:
    texts = json.loads((data_dir / "naughty-strings" / "blns.json").read_text())
    assert len(texts) == 515
    return texts


def test_every_naughty_string_as_a_prompt(server: Server, naughty: list[str]) -> None:
    with neighbour(server):
        for text in naughty:
            reply = server.post(COMPLETIONS, {"prompt": text, "max_tokens": 1, "echo": True})
            if reply.status == 200:
                assert reply.json()["choices"][0]["text"].startswith(text)
            else:
                check_refused(reply)
                assert reply.error["code"] == "context_length_exceeded"


def test_every_naughty_string_as_stop_and_user(server: Server, naughty: list[str]) -> None:
    with neighbour(server):
        for text in naughty:
            body = {
                "messages": [{"role": "user", "content": text}],
                "stop": text,
                "user": text,
                "max_tokens": 2,
            }
            reply = server.post(CHAT, body)
            if reply.status == 200:
                choice = reply.json()["choices"][0]
                assert text not in choice["message"]["content"]
            else:
                check_refused(reply)
                empty = reply.error["param"] == "stop" and not text
                assert empty or reply.error["code"] == "context_length_exceeded", text


def test_naughty_strings_survive_the_tokenizer(server: Server, naughty: list[str]) -> None:
    for text in naughty:
        tokens = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()
        back = server.post("/detokenize", {"tokens": tokens["tokens"]}).json()
        assert back["prompt"] == text
