"""Pages on disk between two engines of a real kind of model: same bits, and only where they fit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine_harness import float_bits
from octavo import LLM, SamplingParams
from octavo.cli import main as cli
from octavo.core.errors import SettingsError
from octavo.engine.outputs import RequestOutput
from octavo.memory.tiers.folder import folders, lock_folder
from tiny import make_tiny_gguf

PROMPT = [5 + number * 7 % 300 for number in range(200)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=3)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in [name for name in os.environ if name.startswith("OCTAVO_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "m.gguf", "gemma3", context=512)


def ask(path: Path, **settings: object) -> RequestOutput:
    """Open the model with its cache on disk, ask once, close it."""
    values = {"kv_bytes": "8MB", "swap_space": "16MB", "block_size": "16tok", **settings}
    with LLM(path, **values) as llm:
        # A model as small as this computes as quickly as a disk reads.
        llm.assembly.engine.swapper._recompute_seconds = lambda past, tokens: 1e9  # type: ignore[union-attr]
        return llm.generate([PROMPT], PARAMS)[0]


def bits(output: RequestOutput) -> list[object]:
    return [
        (entry.token_id, float_bits(entry.logprob), [float_bits(top.logprob) for top in entry.top])
        for entry in output.outputs[0].logprobs or ()
    ]


@pytest.mark.parametrize("kv_format", ["fp16", "int8", "fp32"])
def test_restart_finds_the_prefix_and_the_same_bits(path: Path, kv_format: str) -> None:
    cold, warm = (ask(path, kv_format=kv_format, threads=1) for _ in range(2))
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 192)
    assert cold.token_ids == warm.token_ids
    assert bits(cold) == bits(warm)
    assert len(bits(cold)) == 6


CHANGES: list[dict[str, object]] = [
    {"activations": "fp32"},
    {"kv_format": "fp32"},
    {"block_size": "32tok"},
    {"cpu_tier": "scalar"},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_what_changes_the_cache_does_not_match(path: Path, change: dict[str, object]) -> None:
    ask(path)
    assert ask(path, **change).usage.cached_tokens == 0
    assert ask(path, threads=1).usage.cached_tokens == 192


def test_windows_come_back_from_disk_while_serving(path: Path) -> None:
    """More contexts than the pool holds, in turn: what a window needs is fetched with the rest."""
    prompts = [[3 + (number * step) % 300 for number in range(220)] for step in (7, 11, 13, 17)]
    with LLM(path, kv_bytes="8MB", block_size="16tok", threads=1) as llm:
        expected = [bits(llm.generate([prompt], PARAMS)[0]) for prompt in prompts]
    small: dict[str, object] = {
        "kv_bytes": "250KB",
        "swap_space": "16MB",
        "swap_timeout_ms": 60_000,
        "block_size": "16tok",
        "token_budget": 64,
    }
    with LLM(path, threads=1, **small) as llm:
        engine = llm.assembly.engine
        swapper = engine.swapper
        assert swapper is not None
        swapper._recompute_seconds = lambda past, tokens: 1e9
        pool = engine.scheduler.cache.pool
        assert engine.scheduler.layout.groups == 6
        assert pool.pages < 2 * 6 * 14
        cached = []
        for _ in range(3):
            for prompt, known in zip(prompts, expected, strict=True):
                output = llm.generate([prompt], PARAMS)[0]
                assert bits(output) == known
                cached.append(output.usage.cached_tokens)
                while engine.tend():
                    swapper.mover.drain(60.0)
                assert swapper.mover.drain(60.0)
        assert cached == [0] * 4 + [208] * 8
        # Each time no more than a page a block, and the window's two of the other groups.
        assert 0 < swapper.counters.loaded_pages <= 8 * (13 + 5 * 2)
        assert engine.scheduler.audit() == []


def test_another_model_does_not_match(path: Path, tmp_path: Path) -> None:
    ask(path)
    other = make_tiny_gguf(tmp_path / "other.gguf", "gemma3", seed=9, context=512)
    assert ask(other).usage.cached_tokens == 0


def test_damage_is_computed_again(path: Path) -> None:
    cold = ask(path)
    (folder,) = folders(Path(os.environ["OCTAVO_HOME"]) / "kv")
    (segment,) = folder.glob("segment-*")
    content = bytearray(segment.read_bytes())
    for place in range(0, len(content), 4096):
        content[place + 1000] ^= 4
    segment.write_bytes(content)
    again = ask(path)
    assert again.usage.cached_tokens == 0
    assert bits(again) == bits(cold)
    assert ask(path).usage.cached_tokens == 192


def test_second_process_runs_without_and_says_so(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask(path)
    (folder,) = folders(Path(os.environ["OCTAVO_HOME"]) / "kv")
    fd = lock_folder(folder)
    assert fd is not None
    with LLM(path, kv_bytes="8MB", swap_space="16MB", block_size="16tok") as llm:
        assert llm.generate([PROMPT], PARAMS)[0].usage.cached_tokens == 0
    os.close(fd)
    assert "another process uses" in caplog.text


@pytest.mark.parametrize(
    "change", [{"prefix_cache": False}, {"layout": "contiguous"}, {"reclaim": "eager"}]
)
def test_nothing_is_kept_on_disk_where_nobody_could_find_it(
    path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, object]
) -> None:
    with LLM(path, kv_bytes="8MB", swap_space="16MB", **change) as llm:
        assert llm.assembly.engine.memory_bytes["staging"] == 0
        for _ in range(2):
            assert llm.generate([PROMPT], PARAMS)[0].usage.cached_tokens == 0
    assert "no request finds pages of others" in caplog.text
    assert not folders(Path(os.environ["OCTAVO_HOME"]) / "kv")


def test_folder_without_space_for_it_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"memory\.swap_dir: a folder alone.*swap_space="):
        LLM(path, swap_dir=str(tmp_path))


def test_cache_verbs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(path)
    root = Path(os.environ["OCTAVO_HOME"]) / "kv"
    (folder,) = folders(root)

    def outcome(*arguments: str) -> tuple[int, str]:
        try:
            status = cli.run(["cache", *arguments])
        except SystemExit as leaving:
            status = int(leaving.code or 0)
        return status, capsys.readouterr().out

    status, out = outcome("ls")
    assert status == 0
    assert f"{folder.name[:16]}  " in out
    assert " 72 pages of 16 tokens" in out
    assert "int8, fp16" in out
    elsewhere = f"memory.swap_dir={root.with_name('elsewhere')}"
    status, out = outcome("ls", "--set", elsewhere)
    assert (status, out.startswith("0 in ")) == (0, True)
    assert outcome("ls", "--set", f"memory.swap_dir={root}") == outcome("ls")
    status, out = outcome("ls", "--json")
    (row,) = json.loads(out)
    assert (row["pages"], row["in_use"], row["path"]) == (72, False, str(folder))
    assert row["about"]["page_tokens"] == "16"
    assert outcome("verify") == (0, f"{folder.name[:16]}  all 72 pages are sound\n")

    (segment,) = folder.glob("segment-*")
    content = bytearray(segment.read_bytes())
    content[200] ^= 1
    segment.write_bytes(content)
    status, out = outcome("verify")
    assert status == 1
    assert "71 pages are sound, 1 pages or entries are damaged" in out

    fd = lock_folder(folder)
    assert fd is not None
    assert "in use" in outcome("ls")[1]
    assert outcome("verify") == (0, f"{folder.name[:16]}  in use, not read\n")
    status, out = outcome("clear")
    assert (status, "in use, stays" in out) == (1, True)
    os.close(fd)
    assert outcome("clear", "no-such-name")[0] == 1
    in_the_way = folder / "segment-000099.kv"
    in_the_way.mkdir()
    status, out = outcome("clear")
    assert (status, "could not be removed, stays" in out) == (1, True)
    in_the_way.rmdir()
    status, out = outcome("clear", folder.name[:8])
    assert status == 0
    assert folders(root) == []
    assert outcome("ls")[1] == f"0 in {root}, 0B in all\n"
    assert outcome("verify") == (0, f"no pages in {root}, nothing to verify\n")
    assert outcome("clear") == (0, f"no pages in {root}, nothing to remove\n")


@pytest.mark.parametrize("verb", ["ls", "verify", "clear"])
def test_cache_verbs_refuse_what_is_no_folder(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert cli.run(["cache", verb, "--set", f"memory.swap_dir={file}"]) != 0
    assert "is not a folder" in capsys.readouterr().err
