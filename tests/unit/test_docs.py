"""Documentation says what is there: links, modules, settings, verbs and options."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import click
import pytest

from octavo.cli.main import VERBS, group
from octavo.core.catalog import KNOWN_MODELS
from octavo.core.settings import SETTING_KINDS
from octavo.core.settings_load import show_value

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").glob("*.md"),
        *(REPOSITORY / "src").rglob("README.md"),
    ]
)
ROOMS = sorted(path.parent for path in (REPOSITORY / "src" / "octavo").glob("*/__init__.py"))


def commands(text: str) -> list[list[str]]:
    """Command lines of the fenced consoles, comments cut off."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line.split("  #")[0] for block in blocks for line in block.splitlines()]
    return [line.removeprefix("$ ").split() for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_commands_exist(page: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    context = click.Context(group)
    for words in commands(page.read_text(encoding="utf-8")):
        if words[0] == "make":
            verbs = [word for word in words[1:] if "=" not in word]
            assert all(re.search(rf"^{verb}:", makefile, re.MULTILINE) for verb in verbs), words
        programs = [word for word in words if word.endswith("octavo")]
        if not programs:
            continue
        verb = words[words.index(programs[0]) + 1]
        assert verb in VERBS, words
        command = group.get_command(context, verb)
        assert command is not None
        if isinstance(command, click.Group):
            command = command.get_command(context, words[words.index(verb) + 1])
            assert command is not None, words
        known = {name for option in command.params for name in (*option.opts, "--help")}
        used = {word.split("=")[0] for word in words[words.index(verb) :] if word.startswith("-")}
        assert used <= known, words


def test_every_module_is_in_the_architecture() -> None:
    path = REPOSITORY / "docs" / "list_modules.py"
    spec = importlib.util.spec_from_file_location("list_modules", path)
    assert spec is not None
    assert spec.loader is not None
    lister = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lister)
    assert lister.PAGE.read_text(encoding="utf-8") == lister.page(), "run: make docs"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_room_has_a_readme(room: Path) -> None:
    assert (room / "README.md").read_text(encoding="utf-8").strip()


def test_settings_page_lists_every_setting_with_its_default() -> None:
    text = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8").split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| `?([^|`]+?)`? \|", text, re.MULTILINE))
    defaults = {
        key: str(kind.default) if key.endswith("_bytes") else show_value(key, kind.default)
        for key, kind in SETTING_KINDS.items()
    }
    defaults |= {"memory.kv_bytes": "auto", "memory.total_bytes": "auto"}
    assert rows == defaults


def test_models_page_lists_every_known_model() -> None:
    text = (REPOSITORY / "docs" / "models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (\d+) MB \| ([^|]+?) \|", text, re.MULTILINE)
    assert rows == [
        (model.name, str(round(model.size_bytes / 1e6)), model.licence)
        for model in KNOWN_MODELS.values()
    ]


def test_chinese_readme_is_in_step() -> None:
    pages = [(REPOSITORY / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md")]
    english, chinese = (commands(text) for text in pages)
    assert english == chinese
    assert pages[0].count("\n## ") == pages[1].count("\n## ")
    targets = [set(re.findall(r"\]\(([^)\s]+)\)", text)) for text in pages]
    assert targets[0] - {"README.zh-CN.md"} == targets[1] - {"README.md"}
