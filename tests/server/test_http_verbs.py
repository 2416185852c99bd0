"""The verbs that talk with a server: chat --url, demo."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from http_harness import OCTAVO, PATIENCE_SECONDS, Server
from octavo.cli.demo import free_port
from octavo.cli.remote import RemoteModel
from octavo.core.errors import EngineError, InvalidRequest
from octavo.core.request import FinishReason
from octavo.core.sampling import SamplingParams

HELLO: list[dict[str, object]] = [{"role": "user", "content": "hello world"}]


def octavo(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OCTAVO, *arguments], input=text, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


def test_chat_talks_with_a_server(server: Server) -> None:
    options = ("--url", server.url, "--temperature", "0", "--max-tokens", "20")
    outcome = octavo("chat", *options, "-m", "hello world", "-m", "again")
    assert outcome.returncode == 0, outcome.stderr
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 20}
    first = server.post("/v1/chat/completions", body).json()
    said = first["choices"][0]["message"]["content"]
    turns = [*HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": "again"}]
    second = server.post("/v1/chat/completions", {**body, "messages": turns}).json()
    expected = f"{said}\n{second['choices'][0]['message']['content']}\n"
    assert outcome.stdout == expected
    assert f"prompt {first['usage']['prompt_tokens']} tokens" in outcome.stderr
    piped = octavo("chat", *options, "--quiet", text="hello world\nagain\n")
    assert piped.stdout == expected
    assert piped.stderr == ""


def test_chat_says_why_a_server_does_not_answer(server: Server) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        gone = octavo("chat", "--url", f"127.0.0.1:{port}", "-m", "hello")
    assert gone.returncode == 1
    assert "octavo serve" in gone.stderr
    other = octavo("chat", "nobody", "--url", server.url, "-m", "hello")
    assert other.returncode == 1
    assert "no model 'nobody' here" in other.stderr
    refused = octavo("chat", "--url", server.url, "--set", "compute.threads=1", "-m", "hello")
    assert refused.returncode == 2
    assert len(gone.stderr.splitlines()) == len(other.stderr.splitlines()) == 1


def test_a_remote_stream_gives_what_the_server_says(server: Server) -> None:
    params = SamplingParams(
        max_tokens=30, seed=5, stop=("zz",), logit_bias={5: 2.0}, top_k=50, min_p=0.001
    )
    with RemoteModel(f"{server.url}/v1/", "tiny").chat_stream(HELLO, params) as stream:
        text = "".join(delta.text for delta in stream)
    output = stream.result()
    body = {
        "messages": HELLO,
        "max_tokens": 30,
        "seed": 5,
        "stop": "zz",
        "logit_bias": {"5": 2},
        "top_k": 50,
        "min_p": 0.001,
    }
    whole = server.post("/v1/chat/completions", body).json()
    assert text == output.text == whole["choices"][0]["message"]["content"]
    assert output.finish_reason.value == whole["choices"][0]["finish_reason"]
    assert output.usage.completion_tokens == whole["usage"]["completion_tokens"]
    assert output.timing.first_token_seconds is not None


def test_leaving_a_remote_stream_cancels_the_answer(long_server: Server) -> None:
    params = SamplingParams(max_tokens=8000, ignore_eos=True)
    with RemoteModel(long_server.url).chat_stream(HELLO, params) as stream:
        while not next(stream).text:
            pass
    assert stream.result().finish_reason is FinishReason.CANCELLED
    long_server.wait_idle()


def test_errors_of_a_server_are_errors_here(server: Server) -> None:
    with pytest.raises(InvalidRequest, match="unknown role") as refused:
        RemoteModel(server.url).chat_stream([{"role": "x"}], SamplingParams())
    assert refused.value.field == "messages[0]"
    with pytest.raises(InvalidRequest, match="not the address"):
        RemoteModel("ftp://127.0.0.1")
    with pytest.raises(EngineError, match="no answer"):
        RemoteModel("http://127.0.0.1:1").chat_stream(HELLO, SamplingParams())


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:port", "http://127.0.0.1:99999", "http://[::1", "http://..", "http://"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="not the address"):
        RemoteModel(url)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/chat/completions"])
def test_an_address_may_be_that_of_a_route(server: Server, path: str) -> None:
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    with RemoteModel(f" {server.url}{path}\n").chat_stream(HELLO, params) as stream:
        list(stream)
    assert stream.result().finish_reason is FinishReason.LENGTH


def asked(answer: bytes, media_type: str = "text/event-stream") -> tuple[str, FinishReason]:
    """What a server that sends `answer`, whatever it is, has said; it must be left afterwards."""
    left: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reply() -> None:
            connection, _ = listener.accept()
            connection.settimeout(PATIENCE_SECONDS)
            with connection:
                connection.recv(65536)
                head = f"HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\nconnection: close\r\n\r\n"
                connection.sendall(head.encode() + answer)
                connection.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    while connection.recv(65536):
                        pass
                left.append(True)

        thread = threading.Thread(target=reply)
        thread.start()
        try:
            model = RemoteModel(f"127.0.0.1:{listener.getsockname()[1]}")
            with model.chat_stream(HELLO, SamplingParams()) as stream:
                text = "".join(delta.text for delta in stream)
            return text, stream.result().finish_reason
        finally:
            thread.join(10)
            assert left == [True]


@pytest.mark.parametrize(
    "answer",
    [
        b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
        b'data:{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata:[DONE]\n\n',
        b'event: x\r\nid: 1\r\ndata: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\n'
        b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}\r\n\r\n',
        b'data: {"choices":null,"error":null,"usage":{}}\n\n'
        b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n',
    ],
    ids=["usual", "no spaces", "other lines, no mark", "nulls"],
)
def test_streams_of_other_servers_are_understood(answer: bytes) -> None:
    assert asked(answer) == ("a", FinishReason.STOP)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', "broke off before its end"),
        (b"", "broke off before its end"),
        (b'data: {"error":"boom"}\n\n', "boom"),
        (b'data: {"error":{"message":"boom"}}\n\n', "boom"),
        (b"data: nonsense\n\n", "cannot be read"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "cannot be read"),
        (b'data: {"choices":[5]}\n\n', "cannot be read"),
        (b'data: {"choices":[{"delta":{"content":5}}]}\n\n', "cannot be read"),
        (b'data: {"choices":[{"delta":{},"finish_reason":[]}]}\n\n', "cannot be read"),
        (b'data: {"usage":{"prompt_tokens":"1"}}\n\n', "cannot be read"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_answer_is_an_error(answer: bytes, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        asked(answer)


def test_a_server_of_something_else_is_named() -> None:
    with pytest.raises(EngineError, match="answers with text/html"):
        asked(b"<html>", "text/html")


def test_a_port_in_use_is_passed_over() -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert free_port() != port


def test_the_demo_asks_over_http_and_stops_without_a_terminal(tiny_path: Path) -> None:
    outcome = octavo("demo", str(tiny_path), "--question", "what is it?", "--max-tokens", "12")
    assert outcome.returncode == 0, outcome.stderr
    url = re.search(r"^ready at (\S+)$", outcome.stderr, re.MULTILINE)
    assert url is not None
    assert f"curl -N {url[1]}/v1/chat/completions" in outcome.stdout
    assert f'OpenAI(base_url="{url[1]}/v1"' in outcome.stdout
    assert "first token after" in outcome.stderr
    with socket.socket() as probe:
        address, port = url[1].removeprefix("http://").split(":")
        assert probe.connect_ex((address, int(port))) != 0


def test_the_demo_serves_on_a_terminal_until_it_is_interrupted(tiny_path: Path) -> None:
    master, terminal = pty.openpty()
    demo = subprocess.Popen(
        [*OCTAVO, "demo", str(tiny_path), "--max-tokens", "4"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    shown = b""
    timer = threading.Timer(PATIENCE_SECONDS, lambda: os.killpg(demo.pid, signal.SIGKILL))
    timer.start()
    try:
        while b"until Ctrl-C" not in shown:
            shown += os.read(master, 4096)
        found = re.search(rb"ready at (\S+)", shown)
        assert found is not None
        running = Server(found[1].decode())
        assert running.get("/health/ready").status == 200
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(PATIENCE_SECONDS) == 0
    finally:
        timer.cancel()
        os.close(master)
