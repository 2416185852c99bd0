"""`octavo settings`: every setting, its value and where it came from."""

from __future__ import annotations

import json

import click

from octavo.cli.options import load, settings_options
from octavo.core.settings import SETTING_KINDS
from octavo.core.settings_load import explain, show_value


@click.command("settings")
@settings_options(explain=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(config: str | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Show every setting, its value, unit and source.

    Sources in rising order: defaults, the YAML file (--config or OCTAVO_CONFIG), environment
    variables (OCTAVO_SCHEDULER__TOKEN_BUDGET=512), --set scheduler.token_budget=512.
    """
    loaded = load(config, assignments)
    if not as_json:
        click.echo(explain(loaded))
        return
    rows = [
        {
            "key": key,
            "value": show_value(key, loaded.value(key)),
            "unit": kind.unit or None,
            "source": loaded.origin(key),
            "about": kind.about,
        }
        for key, kind in SETTING_KINDS.items()
    ]
    click.echo(json.dumps(rows, indent=2))
