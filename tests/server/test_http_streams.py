"""Streams say what whole answers say, in time, whoever reads them and however."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from http_harness import Server, app_on_fake
from remote_harness import SlowModel

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello world"}]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 24},
    {"seed": 11, "max_tokens": 40, "n": 3, "logit_bias": {"130": 8, "231": 8, "160": 8}},
    {"seed": 12, "max_tokens": 30, "stop": ["e", "the"], "n": 2},
    {"seed": 13, "max_tokens": 1},
    {"seed": 14, "max_tokens": 60, "min_tokens": 5, "top_k": 20, "min_p": 0.01},
]


def joined_completion(events: list[Any]) -> list[Any]:
    """The choices that the pieces of a stream amount to."""
    choices: dict[int, Any] = {}
    for chunk in events:
        for piece in chunk["choices"]:
            choice = choices.setdefault(piece["index"], {**piece, "text": "", "logprobs": None})
            assert choice["finish_reason"] is None or choice["text"] == ""
            choice["text"] += piece["text"]
            choice["finish_reason"] = piece["finish_reason"]
            if piece["logprobs"] is not None:
                so_far = choice["logprobs"] or {key: [] for key in piece["logprobs"]}
                choice["logprobs"] = {
                    name: None if values is None else so_far[name] + values
                    for name, values in piece["logprobs"].items()
                }
    return [choices[index] for index in sorted(choices)]


def joined_chat(events: list[Any]) -> list[Any]:
    choices: dict[int, Any] = {}
    for chunk in events:
        for piece in chunk["choices"]:
            index = piece["index"]
            if index not in choices:
                assert piece["delta"] == {"role": "assistant", "content": ""}
                message = {"role": "assistant", "content": "", "refusal": None}
                choices[index] = {"index": index, "message": message, "logprobs": None}
                choices[index]["finish_reason"] = None
            choice = choices[index]
            assert choice["finish_reason"] is None, "news after the end"
            choice["message"]["content"] += piece["delta"].get("content", "")
            choice["finish_reason"] = piece["finish_reason"]
            if piece["finish_reason"] is not None:
                assert piece["delta"] == {}
            if piece["logprobs"] is not None:
                so_far = choice["logprobs"] or {"content": [], "refusal": None}
                so_far["content"] += piece["logprobs"]["content"]
                choice["logprobs"] = so_far
    return [choices[index] for index in sorted(choices)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
@pytest.mark.parametrize("extra", [{}, {"logprobs": 2}, {"logprobs": 0, "echo": True}], ids=str)
def test_a_streamed_completion_is_the_whole_one(
    server: Server, sampling: dict[str, Any], extra: dict[str, Any]
) -> None:
    body = {"prompt": ["the old man", "and the sea"], **sampling, **extra}
    whole = server.post(COMPLETIONS, body).json()["choices"]
    streamed = server.post(COMPLETIONS, {**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers["x-accel-buffering"] == "no"
    assert json.dumps(joined_completion(streamed.events)) == json.dumps(whole)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "top_logprobs": 2}], ids=str)
def test_a_streamed_chat_is_the_whole_one(
    server: Server, sampling: dict[str, Any], extra: dict[str, Any]
) -> None:
    body = {"messages": HELLO, **sampling, **extra}
    whole = server.post(CHAT, body).json()["choices"]
    streamed = server.post(CHAT, {**body, "stream": True})
    assert json.dumps(joined_chat(streamed.events)) == json.dumps(whole)


def test_scoring_streams_too(server: Server) -> None:
    body = {"prompt": "the cat sat", "max_tokens": 0, "echo": True, "logprobs": 1}
    whole = server.post(COMPLETIONS, body).json()["choices"]
    assert joined_completion(server.post(COMPLETIONS, {**body, "stream": True}).events) == whole


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_usage_comes_when_asked_for_and_only_then(server: Server, path: str) -> None:
    body = {"prompt": "the cat", "messages": HELLO, "max_tokens": 5, "seed": 1, "stream": True}
    whole = server.post(path, {**body, "stream": False}).json()["usage"]
    without = server.post(path, body).events
    with_usage = server.post(path, {**body, "stream_options": {"include_usage": True}}).events
    assert not any("usage" in chunk for chunk in without)
    assert all(chunk["usage"] is None for chunk in with_usage[:-1])
    assert with_usage[-1]["choices"] == []
    last = with_usage[-1]["usage"]
    assert last["total_tokens"] == whole["total_tokens"]
    assert len({chunk["id"] for chunk in with_usage}) == 1


def test_headers_and_a_comment_come_while_the_request_is_queued(tiny_path: Path) -> None:
    model = SlowModel(512, 1024, answers=range(300, 500))
    model.step_seconds = 0.05
    options = {"service_options": {"ping_seconds": 0.1}, "max_rows": 1}
    with app_on_fake(tiny_path, model, **options) as slow:
        body = {"prompt": "the cat", "max_tokens": 40, "ignore_eos": True, "stream": True}
        with slow.open(COMPLETIONS, body) as first, slow.open(COMPLETIONS, body) as second:
            slow.wait_until(lambda: slow.metric("octavo_waiting") == 1)
            heard = b""
            while heard.count(b": ping\n\n") < 4:
                heard += second.recv(4096)
            assert heard.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"data:" not in heard
            assert first.recv(4096)
        slow.wait_idle()


def test_a_slow_reader_holds_nobody_and_loses_nothing(server: Server) -> None:
    body = {
        "prompt": "the cat",
        "max_tokens": 400,
        "ignore_eos": True,
        "seed": 3,
        "logprobs": 20,
        "n": 8,
    }
    whole = server.post(COMPLETIONS, body).json()["choices"]
    with server.open(COMPLETIONS, {**body, "stream": True}) as slow:
        assert server.complete(prompt="a neighbour", max_tokens=8, ignore_eos=True)
        server.wait_until(lambda: server.metric("octavo_running") == 0)
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += slow.recv(1 << 16)
    body_bytes = unchunked(data.partition(b"\r\n\r\n")[2])
    events = [
        json.loads(line.removeprefix("data: "))
        for line in body_bytes.decode().split("\n\n")
        if line.startswith("data: {")
    ]
    assert json.dumps(joined_completion(events)) == json.dumps(whole)
    # What waited was merged, so there were far fewer events than tokens.
    assert len(events) < 8 * 400
    server.wait_idle()


def unchunked(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        data = rest[length + 2 :]
        if length == 0:
            break
    return body


def test_a_request_that_runs_out_of_time_says_so(tiny_path: Path) -> None:
    model = SlowModel(512, 1024, answers=range(300, 500))
    model.step_seconds = 0.02
    with app_on_fake(tiny_path, model, max_rows=1) as slow:
        body = {"prompt": "the cat", "max_tokens": 900, "ignore_eos": True}
        ended = slow.post(COMPLETIONS, {**body, "timeout_seconds": 1.5}).json()
        assert ended["choices"][0]["finish_reason"] == "timeout"
        assert 0 < ended["usage"]["completion_tokens"] < 100
        chunks = slow.post(COMPLETIONS, {**body, "timeout_seconds": 1.5, "stream": True}).events
        assert chunks[-1]["choices"][0]["finish_reason"] == "timeout"
        with slow.open(COMPLETIONS, body):  # keeps the only row
            slow.wait_until(lambda: slow.metric("octavo_running") == 1)
            queued = slow.post(COMPLETIONS, {**body, "timeout_seconds": 0.2})
            assert queued.status == 408
            assert queued.error["code"] == "timeout"
            assert queued.headers["x-should-retry"] == "false"
            stream = slow.post(COMPLETIONS, {**body, "timeout_seconds": 0.2, "stream": True})
            assert stream.status == 200
            error = json.loads(stream.body.split(b"data: ")[1])["error"]
            assert error["code"] == "timeout"
            assert b"[DONE]" not in stream.body
        slow.wait_idle()


def test_a_request_the_model_fails_on_ends_alone(tiny_path: Path) -> None:
    model = SlowModel(512, 1024, answers=range(300, 500), nan=[77])
    with app_on_fake(tiny_path, model) as server:
        good = {"prompt": [5, 6, 7], "seed": 1, "max_tokens": 60, "ignore_eos": True}
        alone = server.post(COMPLETIONS, good).json()["choices"]
        with server.open(COMPLETIONS, {**good, "stream": True}):
            failed = server.post(COMPLETIONS, {"prompt": [77], "max_tokens": 5})
            streamed = server.post(COMPLETIONS, {"prompt": [77], "max_tokens": 5, "stream": True})
            assert server.post(COMPLETIONS, good).json()["choices"] == alone
        assert failed.status == 500
        assert failed.error["type"] == "server_error"
        assert b'"error":{' in streamed.body
        assert b"[DONE]" not in streamed.body
