"""Settings from a file, the environment and flags: precedence, units, and every kind of mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.errors import SettingsError
from octavo.core.settings import (
    PAGE_SIZES_TOKENS,
    SETTING_KINDS,
    BlockSize,
    HostNames,
    Settings,
    page_tokens,
)
from octavo.core.settings_load import LoadedSettings, explain, load_settings, show_value
from octavo.core.units import format_bytes, parse_bytes


def load(text: str | None = None, folder: Path | None = None, **sources: object) -> LoadedSettings:
    """Settings without this process's environment; `text` becomes a file in `folder`."""
    file = None
    if text is not None:
        assert folder is not None
        file = folder / "octavo.yaml"
        file.write_text(text, encoding="utf-8")
    return load_settings(file=file, **{"environment": {}, **sources})  # type: ignore[arg-type]


def test_defaults() -> None:
    loaded = load()
    assert loaded.settings == Settings()
    assert {loaded.origin(key) for key in SETTING_KINDS} == {"default"}


def test_later_sources_win(tmp_path: Path) -> None:
    text = "scheduler: {token_budget: 100, max_batch_size: 8}\nmodel: from-file\n"
    environment = {"OCTAVO_SCHEDULER__TOKEN_BUDGET": "200", "OCTAVO_MODEL": "from-environment"}
    loaded = load(
        text,
        tmp_path,
        environment=environment,
        flags=["scheduler.token_budget=300"],
        overrides={"model": "from-call"},
    )
    assert loaded.settings.scheduler.token_budget == 300
    assert loaded.settings.scheduler.max_batch_size == 8
    assert loaded.settings.model == "from-call"
    assert loaded.origin("scheduler.token_budget") == "flag --set"
    assert loaded.origin("scheduler.max_batch_size") == f"file {tmp_path / 'octavo.yaml'}"
    assert loaded.origin("model") == "the call"
    assert loaded.origin("compute.threads") == "default"


def test_environment_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("compute:\n  threads: 3\n")
    loaded = load(environment={"OCTAVO_CONFIG": str(tmp_path / "mine.yaml")})
    assert loaded.settings.compute.threads == 3


def test_every_setting_can_be_written_as_it_is_shown() -> None:
    """What --explain prints may be pasted into any source."""
    defaults = load()
    shown = {key: show_value(key, defaults.value(key)) for key in SETTING_KINDS}
    from_flags = load(flags=[f"{key}={value}" for key, value in shown.items()])
    assert from_flags.settings == Settings()
    environment = {
        "OCTAVO_" + key.upper().replace(".", "__"): value for key, value in shown.items()
    }
    assert load(environment=environment).settings == Settings()


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("memory.block_size", "auto", BlockSize()),
        ("memory.block_size", "16tok", BlockSize(tokens=16)),
        ("memory.block_size", "64KB", BlockSize(bytes_per_layer=65536)),
        ("memory.block_size", "65536", BlockSize(bytes_per_layer=65536)),
        ("memory.kv_bytes", "2GB", 2 << 30),
        ("memory.kv_bytes", "1.5 MiB", 3 << 19),
        ("memory.kv_bytes", "auto", None),
        ("compute.threads", "auto", None),
        ("compute.threads", " 4 ", 4),
        ("scheduler.max_chunk_tokens", "auto", None),
        ("compute.activations", "int8x2", "int8x2"),
        ("server.allowed_hosts", "none", HostNames()),
        ("server.allowed_hosts", "a.example, b", HostNames(("a.example", "b"))),
    ],
)
def test_values_with_units(key: str, text: str, value: object) -> None:
    assert load(flags=[f"{key}={text}"]).value(key) == value


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("memory.block_size", "17tok", "use 16tok, 32tok"),
        ("memory.block_size", "64XB", "unknown unit 'XB'"),
        ("memory.block_size", "-1", "is not an amount"),
        ("memory.kv_bytes", "0", "positive whole number"),
        ("memory.kv_bytes", "1.0000001KB", "is not an amount"),
        ("memory.kv_bytes", "0.5", "positive whole number"),
        ("memory.kv_format", "int4", "one of fp16, int8, fp32"),
        ("compute.threads", "0", "from 1 to 1024 or auto"),
        ("compute.threads", "two", "from 1 to 1024 or auto"),
        ("compute.threads", "", "from 1 to 1024 or auto"),
        ("scheduler.token_budget", "1e3", "whole number from 16 to 65536"),
        ("scheduler.token_budget", "9" * 30, "whole number from 16 to 65536"),
        ("memory.swap_threshold", "nan", "number from 0 to 1"),
        ("compute.backend", "gpu", "one of cpu, reference"),
        ("model", " ", "name or a path"),
        ("server.allowed_hosts", "a,,b", "names without scheme and port, not ''"),
        ("server.allowed_hosts", "http://a", "without scheme"),
        ("server.allowed_hosts", "a:80", "without scheme"),
    ],
)
def test_wrong_values_name_the_setting_and_the_source(key: str, text: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as caught:
        load(flags=[f"{key}={text}"])
    assert caught.value.field == key
    assert "--set" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("scheduler.tokn_budget", "scheduler.token_budget"),
        ("memory.token_budget", "scheduler.token_budget"),
        ("tokenbudget", "scheduler.token_budget"),
        ("compute.thread", "compute.threads"),
    ],
)
def test_unknown_keys_are_errors_with_a_suggestion(
    name: str, suggestion: str, tmp_path: Path
) -> None:
    section, _, last = name.rpartition(".")
    nested = f"{section}: {{{last}: 1}}" if section else f"{last}: 1"
    sources = [
        {"flags": [f"{name}=1"]},
        {"overrides": {name: 1}},
        {"text": nested, "folder": tmp_path},
    ]
    if section:
        sources.append({"environment": {"OCTAVO_" + name.upper().replace(".", "__"): "1"}})
    for source in sources:
        with pytest.raises(SettingsError, match=f"did you mean {suggestion}") as caught:
            load(**source)
        assert name in str(caught.value) or "OCTAVO_" in str(caught.value)


def test_single_underscore_in_the_environment_is_an_error() -> None:
    with pytest.raises(SettingsError, match="OCTAVO_SCHEDULER__TOKEN_BUDGET"):
        load(environment={"OCTAVO_SCHEDULER_TOKEN_BUDGET": "512"})


def test_other_variables_are_left_alone() -> None:
    environment = {"OCTAVO_HOME": "/x", "OCTAVO_DEBUG": "1", "OCTAVO_DATA": "y", "PATH": "/bin"}
    assert load(environment=environment).settings == Settings()


def test_overrides_may_be_nested_or_last_names() -> None:
    loaded = load(overrides={"token_budget": 512, "memory": {"kv_bytes": "1GB"}, "threads": 2})
    assert loaded.settings.scheduler.token_budget == 512
    assert loaded.settings.memory.kv_bytes == 1 << 30
    assert loaded.settings.compute.threads == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("scheduler: [1, 2]", "must be a section"),
        ("- scheduler", "must hold sections"),
        ("scheduler: {token_budget: 64, token_budget: 128}", "given twice"),
        ("scheduler: {1: 2}", "not a text key"),
        ("scheduler: {token_budget: true}", "whole number"),
        ("scheduler: {token_budget: [1]}", "whole number"),
        ("a: b: c", "is not YAML"),
        ("x: !!python/object:os.system {}", "is not YAML"),
        ("[" * 1000, "is not YAML"),
        ("#" * (1 << 16) + "\n", "more than"),
    ],
)
def test_damaged_files_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=problem):
        load(text, tmp_path)


def test_lists_shared_into_billions_are_refused_at_once(tmp_path: Path) -> None:
    levels = ["&a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    for key in ("memory: {kv_bytes", "scheduler: {token_budget", "memory: {block_size"):
        with pytest.raises(SettingsError, match=r"\[\["):
            load(f"{key}: [{', '.join(levels)}]}}", tmp_path)


def test_missing_file_and_wrong_encoding(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(file=tmp_path / "absent.yaml", environment={})
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(file=tmp_path, environment={})
    (tmp_path / "latin.yaml").write_bytes(b"model: \xe9\xe8\n")
    with pytest.raises(SettingsError, match="is not YAML"):
        load_settings(file=tmp_path / "latin.yaml", environment={})


@pytest.mark.parametrize("text", ["", "# nothing\n", "scheduler:\n"])
def test_empty_files_and_sections_change_nothing(text: str, tmp_path: Path) -> None:
    assert load(text, tmp_path).settings == Settings()


def test_contradiction_between_settings_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"scheduler\.token_budget"):
        load(flags=["token_budget=32", "max_batch_size=64"])


def test_flag_without_value_is_refused() -> None:
    with pytest.raises(SettingsError, match="not key=value"):
        load(flags=["scheduler.token_budget"])


def test_explain_shows_each_value_unit_and_source() -> None:
    table = explain(load(flags=["memory.block_size=64KB"])).splitlines()
    assert len(table) == 1 + len(SETTING_KINDS)
    row = next(line for line in table if line.startswith("memory.block_size"))
    assert row.split()[1] == "64KB"
    assert "bytes a layer" in row
    assert "flag --set" in row


def test_page_tokens_of_sizes_in_bytes() -> None:
    # 64 KB a layer of a model with 3 KV heads of 64 in fp16: 768 bytes a token.
    assert page_tokens(BlockSize(bytes_per_layer=65536), 768) == 64
    assert page_tokens(BlockSize(bytes_per_layer=768 * 128), 768) == 128
    assert page_tokens(BlockSize(bytes_per_layer=768 * 128 - 1), 768) == 64
    assert page_tokens(BlockSize(tokens=256), 768) == 256
    assert page_tokens(BlockSize(), 768) in PAGE_SIZES_TOKENS
    with pytest.raises(SettingsError, match="use at least 12KB"):
        page_tokens(BlockSize(bytes_per_layer=768 * 16 - 1), 768)


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 30))
def test_page_never_exceeds_the_bytes_asked_for(token_bytes: int, size_bytes: int) -> None:
    try:
        tokens = page_tokens(BlockSize(bytes_per_layer=size_bytes), token_bytes)
    except SettingsError:
        assert size_bytes < PAGE_SIZES_TOKENS[0] * token_bytes
    else:
        assert tokens in PAGE_SIZES_TOKENS
        assert tokens * token_bytes <= size_bytes


@given(st.integers(1, 1 << 50))
def test_formatted_bytes_parse_to_the_same_number(amount: int) -> None:
    assert parse_bytes(format_bytes(amount), "x") == amount


@given(st.text("0123456789.- kKMGTiBx_\u0663", max_size=12))
def test_any_text_is_a_number_of_bytes_or_a_settings_error(text: str) -> None:
    try:
        amount = parse_bytes(text, "x")
    except SettingsError:
        return
    assert amount >= 1
    assert text.strip()[0].isdecimal()


def test_a_number_beyond_all_floats_is_out_of_range() -> None:
    with pytest.raises(SettingsError, match="must be a number from 0 to 1, not"):
        load(overrides={"memory.swap_threshold": 10**400})


def test_padding_without_static_batches_is_refused() -> None:
    padding = "scheduler.static_padding=on"
    with pytest.raises(SettingsError, match=r"static_padding: pads no batch .*batching=static"):
        load(flags=[padding])
    assert load(flags=[padding, "scheduler.batching=static"]).settings.scheduler.static_padding
