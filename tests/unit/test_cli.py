"""The command line without a model: help, usage, errors, exit statuses, settings, the catalogue."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from octavo import __version__
from octavo.cli import generate
from octavo.cli import main as cli
from octavo.core.catalog import KNOWN_MODELS
from octavo.core.settings import SETTING_KINDS

HEAVY_MODULES = ("numpy", "tokenizers", "yaml", "tqdm", "minijinja", "urllib", "octavo.engine")
MAIN = "from octavo.cli.main import main; main()"


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in [name for name in os.environ if name.startswith("OCTAVO_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of one command line."""
    status = cli.run(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def in_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = outcome(capsys, "--help")
    assert status == 0
    for verb in cli.VERBS:
        assert verb in out
        status, verb_help, _ = outcome(capsys, verb, "--help")
        assert status == 0
        assert f"Usage: octavo {verb}" in verb_help


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from octavo.cli.main import run; run(['--help']);"
        f"print([name for name in {HEAVY_MODULES!r} if name in sys.modules], file=sys.stderr)"
    )
    assert in_process(code).stderr.strip() == "[]"


def test_a_frontend_loads_neither_scheduler_nor_numpy() -> None:
    code = (
        "import sys, octavo.cli.serving, octavo.access.http.app, octavo.access.http.server;"
        "import octavo.text.templates, octavo.text.tokenizer, octavo.observe.prometheus;"
        "from octavo.engine.client import AsyncEngineClient;"
        "heavy = ('octavo.schedule', 'octavo.memory', 'octavo.compute', 'numpy');"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    assert in_process(code).stdout.strip() == "[]"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(capsys, "--version") == (0, f"octavo {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Usage"),
        (["nonsense"], "No such command 'nonsense'"),
        (["generate", "--nonsense"], "No such option"),
        (["generate", "--top-k", "many"], "not a valid integer"),
        (["generate", "-p", "a", "--file", "b"], "--prompt or --file"),
        (["generate", "-p", "a", "--logprobs", "1"], "--json"),
        (["generate", "-p", "a", "--n", "2", "--stream"], "--json"),
        (["pull"], "which model?"),
        (["pull", "--list", "smollm2-135m"], "not both"),
        (["pull", "--json", "smollm2-135m"], "--list"),
        (["perplexity", "smollm2-135m"], "TEXTFILE"),
    ],
)
def test_wrong_usage_is_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = outcome(capsys, *arguments)
    assert status == 2
    assert message in out + err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pull", "smollm"], "did you mean smollm2-135m?"),
        (["generate", "no-such-model", "-p", "a"], "known names: smollm2-135m"),
        (["generate", "-p", "a", "--temperature", "-1"], "temperature: must be from 0 to 100"),
        (["generate", "-p", "a", "--temperature", "nan"], "temperature: must be from 0 to 100"),
        (["generate", "-p", "a", "--logit-bias", "7"], "write for example 198=-100"),
        (["generate", "--file", "/no/such/file"], "/no/such/file: cannot be read"),
        (["chat", "--max-tokens", "0", "-m", "a"], "--max-tokens: must be at least 1"),
        (["chat", "-m", "a", "--set", "compute.thread=1"], "did you mean compute.threads?"),
        (["perplexity", "x", "/no/such/file"], "/no/such/file: cannot be read"),
        (["settings", "--config", "/no/such/file"], "file /no/such/file: cannot be read"),
    ],
)
def test_errors_are_one_line_and_status_1(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = outcome(capsys, *arguments)
    assert (status, out) == (1, "")
    assert message in err
    assert err.startswith("octavo: ")
    assert err.count("\n") == 1


def test_traceback_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_DEBUG", "1")
    _, _, err = outcome(capsys, "pull", "smollm")
    assert "Traceback" in err
    assert "ModelNotFound" in err


def test_text_that_is_not_utf8_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "prompt").write_bytes(b"caf\xe9")
    status, _, err = outcome(capsys, "generate", "--file", str(tmp_path / "prompt"))
    assert status == 1
    assert "byte 0xe9 at offset 3" in err


def test_damaged_model_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model at all")
    status, _, err = outcome(capsys, "generate", str(tmp_path), "-p", "a", "-q")
    assert status == 1
    assert err.startswith("octavo: ")
    assert err.count("\n") == 1


def test_endless_text_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "MAX_TEXT_BYTES", 1 << 20)
    for arguments in (("generate", "--file", "/dev/zero"), ("perplexity", "x", "/dev/zero")):
        status, _, err = outcome(capsys, *arguments)
        assert status == 1
        assert "/dev/zero: is longer than 1 MiB" in err
    with Path("/dev/zero").open() as zeros:
        monkeypatch.setattr(sys, "stdin", zeros)
        status, _, err = outcome(capsys, "generate")
    assert status == 1
    assert "standard input: is longer than 1 MiB" in err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_the_null_device(closed: str) -> None:
    program = shlex.join([sys.executable, "-c", MAIN, "pull", "--list"])
    script = f"{program} {closed}; echo status $?"
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout.endswith("status 0\n")
    assert ("smollm2-135m" in result.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert result.stderr == ""


def test_closed_input_is_empty(tmp_path: Path) -> None:
    script = shlex.join([sys.executable, "-c", MAIN, "generate", str(tmp_path)]) + " <&-"
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert result.stderr.startswith(f"octavo: model: no .gguf file in {tmp_path}")


def test_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", MAIN, "settings"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 1
    assert result.stderr == ("octavo: input or output failed: [Errno 28] No space left on device\n")


def test_pull_lists_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, table, _ = outcome(capsys, "pull", "--list")
    assert all(name in table for name in KNOWN_MODELS)
    assert str(tmp_path / "home" / "models") in table
    _, out, _ = outcome(capsys, "pull", "--list", "--json")
    listed = json.loads(out)
    assert [model["name"] for model in listed] == list(KNOWN_MODELS)
    assert {model["path"] for model in listed} == {None}


def test_settings_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, table, _ = outcome(capsys, "settings", "--set", "memory.block_size=64KB")
    assert all(key in table for key in SETTING_KINDS)
    _, out, _ = outcome(capsys, "settings", "--set", "memory.block_size=64KB", "--json")
    rows = {row["key"]: row for row in json.loads(out)}
    assert rows["memory.block_size"]["value"] == "64KB"
    assert rows["memory.block_size"]["source"] == "flag --set"
    assert rows["compute.threads"]["value"] == "auto"


def test_explain_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = outcome(capsys, "chat", "some-model", "--explain")
    assert status == 0
    row = next(line for line in out.splitlines() if line.startswith("model"))
    assert "some-model" in row
    assert "argument MODEL" in row


def test_interrupt_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(context: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.group, "invoke", interrupted)
    assert outcome(capsys, "settings") == (130, "", "")


def test_reader_that_leaves_is_no_error() -> None:
    code = "from octavo.cli.main import main; main(['settings'])"
    script = f'{shlex.quote(sys.executable)} -c "{code}" | true; echo status ${{PIPESTATUS[0]}}'
    for _ in range(3):
        result = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert result.stderr == ""
        assert result.stdout in ("status 0\n", "status 130\n")
