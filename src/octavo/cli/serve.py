"""`octavo serve`: a model behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from octavo.cli.console import download_progress, note
from octavo.cli.options import explained, settings_options
from octavo.core.catalog import find_known, resolve_model
from octavo.core.settings_load import load_settings

if TYPE_CHECKING:
    from octavo.engine.client import EngineFacts


@click.command("serve")
@click.argument("model", required=False)
@click.option("--host", help="Address to listen at (default: 127.0.0.1).")
@click.option("--port", type=int, help="Port to listen at (default: 8000; 0: any free one).")
@click.option("-q", "--quiet", is_flag=True, help="No start-up table.")
@settings_options()
def command(
    model: str | None,
    host: str | None,
    port: int | None,
    quiet: bool,
    config: str | None,
    assignments: tuple[str, ...],
    show_settings: bool,
) -> None:
    """Serve MODEL (default: smollm2-135m) over HTTP until SIGTERM or Ctrl-C.

    The signal drains: running answers finish, new requests get 503. A second Ctrl-C ends at once.
    """
    given = {"model": model, "server.host": host, "server.http_port": port}
    loaded = load_settings(
        file=config,
        flags=assignments,
        overrides={key: value for key, value in given.items() if value is not None},
        overrides_origin="the command line",
    )
    if explained(loaded, show_settings):
        return
    settings = loaded.settings
    from octavo.access.http.listen import bind, url_of

    with bind(settings.server.host, settings.server.http_port) as listener:
        with download_progress(settings.model) as progress:
            path = resolve_model(settings.model, progress=progress)
        _log_to_standard_error()
        from octavo.cli.serving import Serving

        url = url_of(listener)

        def announce(facts: EngineFacts) -> None:
            if not quiet:
                note(startup_table(facts, url))
            note(f"ready at {url}")

        names = model_names(settings.model, path)
        status = Serving(path, names, settings, listener, announce).run()
    sys.exit(status)


def model_names(setting: str, path: Path) -> tuple[str, ...]:
    """The names that requests may use; the first is the one answers give."""
    known = find_known(setting)
    first = known.name if known is not None else path.stem
    return tuple(dict.fromkeys((first, setting, path.stem, path.name)))


def startup_table(facts: EngineFacts, url: str) -> str:
    """What the engine holds and how it computes, for people."""
    context = f"{facts.context_tokens} tokens"
    if facts.context_tokens < facts.model_context_tokens:
        context += f" of the model's {facts.model_context_tokens}"
    seconds = ", ".join(f"{name} {value:.2f}" for name, value in facts.phase_seconds.items())
    rows = [
        ("model", f"{facts.model_name} ({facts.architecture}, {facts.model_path})"),
        ("context", context),
        *_memory_rows(facts),
        *([("disk", facts.swap)] if facts.swap else []),
        ("kernels", f"{facts.backend}, {facts.tier}, activations {facts.activations}"),
        ("threads", f"{facts.threads} ({facts.threads_reason})"),
        ("a step", f"at most {facts.max_rows} requests, {facts.token_budget} tokens"),
        ("start-up", f"{seconds} s"),
        ("address", f"{url}/v1"),
    ]
    lines = [f"  {name:<10} {value}" for name, value in rows]
    if facts.note:
        lines.append(f"  {'note':<10} {facts.note}")
    return "\n".join(lines)


def _memory_rows(facts: EngineFacts) -> list[tuple[str, str]]:
    """The most that each part may hold, and the sum under its ceiling."""
    rows = []
    for part, size_bytes in facts.memory_bytes.items():
        name, text = part.replace("_", " "), _megabytes(size_bytes)
        if part == "kv_cache":
            name = "KV cache"
            text += f": {facts.pages} pages of {facts.page_tokens} tokens, {facts.kv_format}"
            if facts.cache_groups > 1:
                text += f", {facts.cache_groups} groups of layers"
        rows.append((name, text))
    whole = _megabytes(sum(facts.memory_bytes.values()))
    return [*rows, ("in all", f"{whole} of at most {_megabytes(facts.memory_ceiling_bytes)}")]


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MB"


def _log_to_standard_error() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    # uvicorn warns of every peer that does not speak HTTP; that is the peer's affair.
    for name, level in (("octavo", logging.WARNING), ("uvicorn.error", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
