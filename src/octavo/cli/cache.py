"""`octavo cache`: the pages that outlive their engines on disk."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from octavo.cli.options import load, settings_options
from octavo.core.errors import SettingsError
from octavo.core.units import format_bytes
from octavo.memory.tiers.check import FolderCheck, check_folder, page_count
from octavo.memory.tiers.folder import (
    FolderSummary,
    clear_folder,
    folders,
    is_in_use,
    summarise,
)


@click.group("cache")
def command() -> None:
    """List, verify or clear the pages that engines keep on disk.

    They lie in memory.swap_dir, one folder for each model and each way of computing it.
    """


@command.command("ls")
@settings_options(explain=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_folders(config: str | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Show every folder: its pages, its size, and what computed them."""
    root = _root(config, assignments)
    found = [summarise(path) for path in folders(root)]
    if as_json:
        click.echo(json.dumps([_described(each) for each in found], indent=2))
        return
    for each in found:
        click.echo(_line(each))
    click.echo(f"{len(found)} in {root}, {format_bytes(sum(each.bytes for each in found))} in all")


@command.command("verify")
@settings_options(explain=False)
def verify(config: str | None, assignments: tuple[str, ...]) -> None:
    """Read every page and compare it with its checksum; exit status 1 if any is damaged.

    Nothing has to be done about a damaged page: it is found missing when it is wanted.
    """
    root = _root(config, assignments)
    found = folders(root)
    damaged = 0
    for path in found:
        checked = check_folder(path)
        damaged += checked.damaged
        click.echo(f"{path.name[:16]}  {_verdict(checked)}")
    if not found:
        click.echo(f"no pages in {root}, nothing to verify")
    sys.exit(1 if damaged else 0)


@command.command("clear")
@settings_options(explain=False)
@click.argument("name", required=False)
def clear(config: str | None, assignments: tuple[str, ...], name: str | None) -> None:
    """Remove the folders whose names begin with NAME, or all; those in use stay."""
    root = _root(config, assignments)
    chosen = [path for path in folders(root) if path.name.startswith(name or "")]
    if name is not None and not chosen:
        raise click.ClickException(f"no folder in {root} begins with {name}")
    if not chosen:
        click.echo(f"no pages in {root}, nothing to remove")
    kept = 0
    for path in chosen:
        size = summarise(path).bytes
        cleared = clear_folder(path)
        kept += not cleared
        if cleared:
            state = f"removed, {format_bytes(size)}"
        else:
            state = "in use, stays" if is_in_use(path) else "could not be removed, stays"
        click.echo(f"{path.name[:16]}  {state}")
    sys.exit(1 if kept else 0)


def _root(config: str | None, assignments: tuple[str, ...]) -> Path:
    from octavo.engine.swapping import swap_folder

    root = swap_folder(load(config, assignments).settings.memory)
    if root.exists() and not root.is_dir():
        raise SettingsError(f"{root} is not a folder", field="memory.swap_dir")
    return root


def _line(summary: FolderSummary) -> str:
    about = summary.about
    names = ("backend", "tier", "activations", "kv_format")
    what = ", ".join(about[name] for name in names if name in about)
    tokens = about.get("page_tokens")
    pages = f"{page_count(summary.path)} pages" + (f" of {tokens} tokens" if tokens else "")
    written = datetime.fromtimestamp(summary.written_seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    state = "in use" if summary.in_use else f"written {written}"
    return (
        f"{summary.path.name[:16]}  {format_bytes(summary.bytes)}, {pages}, {state}"
        f"; {what or 'origin unknown'}"
    )


def _described(summary: FolderSummary) -> dict[str, object]:
    return {
        "path": str(summary.path),
        "bytes": summary.bytes,
        "pages": page_count(summary.path),
        "written_seconds": summary.written_seconds,
        "in_use": summary.in_use,
        "about": dict(summary.about),
    }


def _verdict(checked: FolderCheck) -> str:
    if checked.in_use:
        return "in use, not read"
    if checked.damaged:
        return f"{checked.sound} pages are sound, {checked.damaged} pages or entries are damaged"
    return f"all {checked.sound} pages are sound"
