"""The verbs that talk with a server: chat --url, demo."""

from __future__ import annotations

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
