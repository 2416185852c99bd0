"""The verbs that open a model, on tiny random ones: whole command lines, pipes and a terminal."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.cli import main as cli
from octavo.cli.chat import Conversation, Interrupts, interrupts_noticed
from octavo.core.request import FinishReason
from octavo.core.sampling import SamplingParams
from octavo.engine.llm import LLM
from tiny import make_tiny_gguf

GREEDY = ("--temperature", "0", "--ignore-eos")
MAIN = "from octavo.cli.main import main; main()"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture(scope="session")
def model_without_template(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tiny") / "plain.gguf"
    return str(make_tiny_gguf(path, drop=frozenset({"tokenizer.chat_template"})))


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in [name for name in os.environ if name.startswith("OCTAVO_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Standard output of a command line that must succeed."""
    status = cli.run(list(arguments))
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Standard error of a command line that must fail with status 1."""
    status = cli.run(list(arguments))
    captured = capsys.readouterr()
    assert status == 1
    return captured.err


def give_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_streamed_text_is_the_unstreamed_text(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("generate", model, "-p", "the cat", "--max-tokens", "24", "--seed", "3")
    streamed = output(capsys, *line)
    assert streamed == output(capsys, *line, "--no-stream")
    assert len(streamed) > 1


def test_threads_that_the_system_refuses_are_one_line(model: str) -> None:
    """1024 stacks of 8 MiB do not fit an address space of 3 GB."""
    program = shlex.join([sys.executable, "-c", MAIN, "generate", model, "-p", "a"])
    script = f"ulimit -s 8192; ulimit -v 3000000; {program} --set compute.threads=1024"
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert result.stderr.startswith("octavo: compute.threads: 1024 threads cannot be started")
    assert result.stderr.count("\n") == 1


def test_prompt_sources_are_the_same(
    model: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    prompt = "the cat sat\n"
    line = ("generate", model, *GREEDY, "--max-tokens", "8", "--json")
    (tmp_path / "prompt.txt").write_text(prompt)
    by_option = json.loads(output(capsys, *line, "-p", prompt))
    by_file = json.loads(output(capsys, *line, "--file", str(tmp_path / "prompt.txt")))
    give_input(monkeypatch, prompt.encode())
    by_pipe = json.loads(output(capsys, *line))
    assert by_option["prompt"] == by_file["prompt"] == by_pipe["prompt"] == prompt
    assert by_option["outputs"] == by_file["outputs"] == by_pipe["outputs"]


def test_a_profile_is_shown_apart_from_the_answer(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["generate", model, "-p", "the cat", *GREEDY, "--max-tokens", "6"]
    plain = output(capsys, *line)
    assert cli.run([*line, "--profile"]) == 0
    captured = capsys.readouterr()
    assert captured.out == plain
    rows = {row[:24].strip(): row[24:].split() for row in captured.err.splitlines()}
    assert float(rows["logits"][0]) == 1.0
    assert float(rows["linear"][1]) > 0
    assert rows["outside the native call"][2].endswith("%")
    error = failure(capsys, *line, "--profile", "--set", "compute.backend=reference")
    assert "compute.backend" in error


def test_json_holds_everything(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("generate", model, "-p", "the cat", *GREEDY, "--max-tokens", "5", "--json")
    result = json.loads(output(capsys, *line, "--logprobs", "2", "--prompt-logprobs", "0"))
    choice = result["outputs"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["token_ids"]) == len(choice["logprobs"]) == 5
    for entry in choice["logprobs"]:
        assert len(entry["top"]) == 2
        assert entry["top"][0]["token_id"] == entry["token_id"]
        assert entry["logprob"] <= 0
    assert result["usage"]["completion_tokens"] == 5
    assert len(result["prompt_logprobs"]) == result["usage"]["prompt_tokens"]
    assert result["prompt_logprobs"][0] is None
    assert result["timing"]["total_seconds"] > 0


def test_json_stream_is_one_object_a_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("generate", model, "-p", "the", "--max-tokens", "12", "--seed", "1", "--n", "2")
    lines = output(capsys, *line, "--json", "--stream").splitlines()
    *deltas, result = [json.loads(text) for text in lines]
    assert {delta["type"] for delta in deltas} == {"delta"}
    assert result["type"] == "result"
    for choice in result["outputs"]:
        pieces = [delta for delta in deltas if delta["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert [token for piece in pieces for token in piece["token_ids"]] == choice["token_ids"]
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]


def test_several_answers_are_told_apart(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "generate", model, "-p", "the", "--n", "3", "--max-tokens", "4")
    assert [f"--- answer {number} of 3" in text for number in (1, 2, 3)] == [True] * 3


def test_sampling_options_reach_the_engine(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("generate", model, "-p", "the", *GREEDY, "--max-tokens", "4", "--json")
    plain = json.loads(output(capsys, *line))["outputs"][0]
    first = plain["token_ids"][0]
    biased = json.loads(output(capsys, *line, "--logit-bias", f"{first}=-100"))["outputs"][0]
    assert first not in biased["token_ids"]
    stopped = json.loads(output(capsys, *line, "--stop-token-id", str(first)))["outputs"][0]
    assert stopped["finish_reason"] == "stop"
    assert stopped["token_ids"] == [first]
    nothing = json.loads(output(capsys, *line, "--max-tokens", "0"))["outputs"][0]
    assert nothing["token_ids"] == []


def test_settings_reach_the_engine(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("generate", model, "-p", "the cat sat on the mat", *GREEDY, "--max-tokens", "8")
    plain = output(capsys, *line, "--set", "compute.activations=fp32")
    options = (
        "--set=memory.block_size=16tok",
        "--set=scheduler.max_chunk_tokens=1",
        "--set=compute.activations=fp32",
    )
    assert output(capsys, *line, *options) == plain
    message = failure(capsys, *line, "--set", "memory.kv_bytes=1KB")
    assert "memory.kv_bytes" in message
    assert "Traceback" not in message


def test_prompt_that_is_too_long_names_both_numbers(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = failure(capsys, "generate", model, "-p", "the cat " * 400, "-q")
    assert "512" in message
    assert message.count("\n") == 1


def test_status_goes_to_standard_error(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("generate", model, "-p", "the", *GREEDY, "--max-tokens", "4")
    cli.run(list(line))
    loud = capsys.readouterr()
    cli.run([*line, "-q"])
    quiet = capsys.readouterr()
    assert loud.out == quiet.out
    assert "tiny.gguf: loaded in" in loud.err
    assert "tokens/s" in loud.err
    assert quiet.err == ""


def test_chat_continues_the_conversation(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("chat", model, *GREEDY, "--max-tokens", "6")
    cli.run([*line, "-m", "hello", "-m", "again", "--system", "be short"])
    two = capsys.readouterr()
    prompts = [int(text.split()[1]) for text in two.err.splitlines() if text.startswith("[prompt")]
    assert len(prompts) == 2
    assert prompts[1] > prompts[0]
    one = output(capsys, *line, "-m", "hello", "--system", "be short")
    assert two.out.startswith(one)


def test_chat_reads_one_message_a_line(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("chat", model, *GREEDY, "--max-tokens", "6")
    by_option = output(capsys, *line, "-m", "hello", "-m", "again")
    give_input(monkeypatch, b"hello\r\n\nagain")
    assert output(capsys, *line) == by_option


def test_chat_without_template_names_the_way_out(
    model_without_template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = failure(capsys, "chat", model_without_template, "-m", "hello", "-q")
    assert "generate" in message
    assert message.count("\n") == 1


def test_perplexity(model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and then the other cat came in " * 20)
    line = ("perplexity", model, str(text), "-q")
    result = json.loads(output(capsys, *line, "--json", "--tokens", "100", "--window", "32"))
    assert result["window_tokens"] == 32
    assert result["windows"] == math.ceil(100 / 32)
    assert result["predicted_tokens"] == 100 - result["windows"]
    assert result["value"] == pytest.approx(math.exp(result["mean_negative_log_likelihood"]))
    shown = output(capsys, *line, "--tokens", "100", "--window", "32")
    assert shown.startswith(f"perplexity {result['value']:.4f} ")
    (tmp_path / "empty.txt").write_text("")
    assert "is empty" in failure(capsys, "perplexity", model, str(tmp_path / "empty.txt"))
    assert "window_tokens" in failure(capsys, *line, "--window", "100000")


def test_first_interrupt_is_noticed_the_second_raises() -> None:
    with interrupts_noticed() as interrupts:
        assert not interrupts.seen
        signal.raise_signal(signal.SIGINT)
        assert interrupts.seen
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupt_ends_waiting_for_a_line() -> None:
    def wait() -> str:
        signal.raise_signal(signal.SIGINT)
        return "a line"

    with interrupts_noticed() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            interrupts.raised_by(wait)
        assert interrupts.raised_by(lambda: "a line") == "a line"
        assert not interrupts.seen


def test_interrupt_stops_the_answer_and_the_conversation_goes_on(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class PressedAtOnce(Interrupts):
        def forget(self) -> None:
            self.seen = True

    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=60)
    with LLM(model) as llm:
        conversation = Conversation(llm, params, system=None, quiet=True)
        assert conversation.say("hello", PressedAtOnce()) is FinishReason.CANCELLED
        assert not llm.client.has_work
        stopped = capsys.readouterr().out
        assert conversation.say("again", Interrupts()) is FinishReason.LENGTH
        assert len(capsys.readouterr().out) > len(stopped)


class Terminal:
    """`octavo` on a pseudo-terminal."""

    def __init__(self, *arguments: str):
        self._side, other = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)
        self._text = ""

    def expect(self, wanted: str, timeout_seconds: float = 60.0) -> str:
        """Read until `wanted` has been shown; returns what came before it."""
        end = time.monotonic() + timeout_seconds
        while wanted not in self._text:
            self._read(end, wanted)
        before, _, self._text = self._text.partition(wanted)
        return before

    def expect_anything(self, timeout_seconds: float = 60.0) -> None:
        """Wait until something has been shown that `expect` has not passed."""
        end = time.monotonic() + timeout_seconds
        while not self._text:
            self._read(end, "anything")

    def _read(self, end: float, wanted: str) -> None:
        left = end - time.monotonic()
        if left <= 0 or not select.select([self._side], [], [], left)[0]:
            raise AssertionError(f"{wanted!r} did not come after: {self._text!r}")
        try:
            data = os.read(self._side, 65536)
        except OSError:  # the other side has been closed
            data = b""
        if not data:
            raise AssertionError(f"the program ended after: {self._text!r}")
        self._text += data.decode("utf-8", "replace")

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def interrupt_until(self, wanted: str, timeout_seconds: float = 60.0) -> None:
        """Press Ctrl-C, and again as people do: Python misses one that comes just before it waits.

        It looks for signals before the wait for a line and after it, not in between.
        """
        end = time.monotonic() + timeout_seconds
        while wanted not in self._text:
            self.interrupt()
            again = min(time.monotonic() + 1, end)
            while (
                wanted not in self._text
                and select.select([self._side], [], [], max(again - time.monotonic(), 0))[0]
            ):
                self._read(end, wanted)
            assert time.monotonic() < end, f"{wanted!r} did not come after: {self._text!r}"
        self.expect(wanted)

    def close(self) -> int:
        """Exit status; kills what does not end by itself."""
        try:
            return self._process.wait(timeout=30)
        finally:
            self._process.kill()
            os.close(self._side)


def test_conversation_on_a_terminal(model: str) -> None:
    terminal = Terminal("chat", model, *GREEDY, "--max-tokens", "400")
    try:
        terminal.expect("you> ")
        terminal.type("hello\n")
        terminal.expect("hello\r\n")
        # The terminal itself echoes the line; only an answer shows that it was read.
        terminal.expect_anything()
        terminal.interrupt()
        terminal.expect("[prompt")
        terminal.expect("you> ")
        terminal.interrupt_until("/exit or Ctrl-D leaves")
        terminal.expect("you> ")
        terminal.type("/reset\n")
        terminal.expect("the conversation is forgotten")
        terminal.expect("you> ")
        terminal.type("/exit\n")
    finally:
        status = terminal.close()
    assert status == 0
