"""`octavo perplexity`: how well a model predicts a text."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from octavo.cli.generate import read_text
from octavo.cli.model import opened
from octavo.cli.options import explained, load, settings_options
from octavo.core.errors import InvalidRequest


@click.command("perplexity")
@click.argument("model")
@click.argument("textfile", type=click.Path())
@click.option("--tokens", type=click.IntRange(min=2), help="Use only the first so many tokens.")
@click.option(
    "--window",
    "window_tokens",
    type=click.IntRange(min=2),
    help="Tokens of a window (default: the served context, at most 2048).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No status lines, no progress bar.")
@settings_options()
def command(
    model: str,
    textfile: str,
    tokens: int | None,
    window_tokens: int | None,
    as_json: bool,
    quiet: bool,
    config: str | None,
    assignments: tuple[str, ...],
    show_settings: bool,
) -> None:
    """Measure the perplexity of MODEL on TEXTFILE (UTF-8).

    exp of the mean negative log-likelihood (natural logarithm) of the predicted tokens. The text
    is cut into windows that do not overlap; each starts afresh, with BOS where the model has one,
    and its first token is not predicted. Numbers are comparable at equal windows only.
    """
    loaded = load(config, assignments, model)
    if explained(loaded, show_settings):
        return
    text = read_text(textfile)
    if not text:
        raise InvalidRequest("is empty", field=textfile)
    with opened(loaded.settings, quiet=quiet) as llm:
        result = llm.perplexity(
            text, window_tokens=window_tokens, max_tokens=tokens, progress=not quiet
        )
    if as_json:
        click.echo(json.dumps({"model": loaded.settings.model, "file": textfile, **asdict(result)}))
        return
    click.echo(
        f"perplexity {result.value:.4f} "
        f"(mean negative log-likelihood {result.mean_negative_log_likelihood:.5f} nats over "
        f"{result.predicted_tokens} predicted tokens, {result.windows} windows of up to "
        f"{result.window_tokens} tokens)"
    )
