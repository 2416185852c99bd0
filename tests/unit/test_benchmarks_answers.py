"""What the load generator makes of answers: streams, their ends, and everything that fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

import pytest
from benchmarks.serving.answers import Answer, EventSplitter, ask
from benchmarks.serving.connection import Target
from hypothesis import given, settings
from hypothesis import strategies as st

DONE = b"data: [DONE]\n\n"


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_events_are_the_same_wherever_they_are_cut(data: st.DataObject) -> None:
    stream = (
        b': ping\n\ndata: {"a": 1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\ndata: [DONE]\n\n'
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    splitter = EventSplitter()
    events = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        events += splitter.feed(stream[start:end])
    assert events == [b'{"a": 1}', b"two\nlines", b"[DONE]"]


@contextlib.asynccontextmanager
async def answering(answer: bytes, *, then_wait: bool = False) -> AsyncIterator[Target]:
    """A server that says the same to everybody, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"content-length" in line
        )
        await reader.readexactly(length)
        writer.write(answer)
        await writer.drain()
        if then_wait:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Target.parse(f"http://127.0.0.1:{port}/v1")


def ask_once(answer: bytes, *, then_wait: bool = False, streamed: bool = True) -> Answer:
    async def asked() -> Answer:
        async with answering(answer, then_wait=then_wait) as target:
            return await ask(
                target,
                "completions",
                {"prompt": "x", "stream": streamed},
                clock=time.perf_counter,
                timeout_seconds=0.3 if then_wait else 30.0,
            )

    return asyncio.run(asked())


def chunked(*pieces: bytes, whole: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + (b"0\r\n\r\n" if whole else b"")


def event(tree: object) -> bytes:
    return b"data: " + json.dumps(tree).encode() + b"\n\n"


TEXT = event({"choices": [{"text": "a"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})


def test_a_stream_is_read_with_its_usage() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    word = event({"choices": [{"delta": {"content": "b"}, "finish_reason": "length"}]})
    answer = ask_once(chunked(b": ping\n\n", role, TEXT + word[:9], word[9:] + USAGE, DONE))
    assert answer.failure is None
    assert answer.text == "ab"
    assert len(answer.text_seconds) == 2
    assert answer.text_seconds[0] <= answer.text_seconds[1] <= answer.end_seconds
    assert (answer.prompt_tokens, answer.output_tokens) == (7, 3)
    assert answer.finish_reason == "length"


def test_a_stream_may_end_with_its_connection() -> None:
    answer = ask_once(b"HTTP/1.1 200 OK\r\n\r\n" + TEXT + DONE)
    assert answer.failure is None
    assert answer.text == "a"


REFUSAL = b'{"error": {"message": "too busy"}}'


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (b"", "closed", "before the end"),
        (b"SSH-2.0-nothing\r\n", "protocol", "no HTTP"),
        (b"HTTP/1.1 503 X\r\ncontent-length: 34\r\n\r\n" + REFUSAL, "HTTP 503", "too busy"),
        (b"HTTP/1.1 502 X\r\ncontent-length: 4\r\n\r\noops", "HTTP 502", "oops"),
        (chunked(TEXT, whole=False), "closed", "before the end"),
        (chunked(TEXT), "cut off", "without"),
        (chunked(TEXT, b"data: {\n\n", DONE), "protocol", "no chunk"),
        (chunked(TEXT, event({"error": {"message": "it died"}})), "error event", "it died"),
    ],
)
def test_what_goes_wrong_has_a_name(answer: bytes, kind: str, message: str) -> None:
    failure = ask_once(answer).failure
    assert failure is not None
    assert failure.kind == kind
    assert message in failure.message


def test_an_answer_that_never_comes_runs_out_of_time() -> None:
    failure = ask_once(chunked(TEXT, whole=False), then_wait=True).failure
    assert failure is not None
    assert failure.kind == "timeout"


def test_nobody_there_is_a_failure_too() -> None:
    async def asked() -> Answer:
        async with answering(b"") as target:
            pass
        return await ask(
            target, "completions", {"stream": True}, clock=time.perf_counter, timeout_seconds=30
        )

    failure = asyncio.run(asked()).failure
    assert failure is not None
    assert failure.kind == "connection"


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, ""),
        ("http://127.0.0.1:8000/v1/", "127.0.0.1", 8000, ""),
        ("https://models.example/proxy/v1", "models.example", 443, "/proxy"),
        ("http://[::1]:9", "::1", 9, ""),
    ],
)
def test_addresses_are_taken_as_clients_write_them(
    url: str, host: str, port: int, path: str
) -> None:
    target = Target.parse(url)
    assert (target.host, target.port, target.path) == (host, port, path)
    assert target.encrypted == url.startswith("https")
    assert Target.parse(target.url) == target
