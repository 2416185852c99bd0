"""Opens the model of a verb, showing what takes time, and says how fast an answer was."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from octavo.cli.console import download_progress, note
from octavo.core.catalog import resolve_model
from octavo.core.errors import SettingsError
from octavo.core.settings import Settings

if TYPE_CHECKING:
    from octavo.engine.llm import LLM
    from octavo.engine.outputs import RequestOutput


@contextmanager
def opened(settings: Settings, *, quiet: bool = False) -> Iterator[LLM]:
    """The model that the settings name; fetched first if it is a known name and not cached."""
    with download_progress(settings.model) as progress:
        path = resolve_model(settings.model, progress=progress)
    from octavo.engine.llm import LLM

    _show_logs(quiet)
    start = time.monotonic()
    with LLM(path, settings=settings) as llm:
        if not quiet:
            note(
                f"{path.name}: loaded in {time.monotonic() - start:.1f} s, "
                f"context {llm.context_tokens} tokens"
            )
        yield llm


@contextmanager
def profiled(llm: LLM) -> Iterator[None]:
    """Says afterwards, on standard error, where the time of the steps inside went.

    Raises:
        SettingsError: the back end keeps no profile.
    """
    from octavo.compute.kernels.cpu.profile import Profiled, profile_lines

    model, metrics = llm.assembly.model, llm.assembly.engine.metrics
    if not isinstance(model, Profiled):
        raise SettingsError("keeps no profile", field="compute.backend", remedy="use cpu")
    steps, native = metrics.steps.value, metrics.native_seconds.value
    step_seconds = metrics.step_seconds.total
    model.enable_profile()
    yield
    for line in profile_lines(
        model.profile(),
        steps=int(metrics.steps.value - steps),
        step_seconds=metrics.step_seconds.total - step_seconds,
        native_seconds=metrics.native_seconds.value - native,
    ):
        note(line)


def speed(output: RequestOutput) -> str:
    """Tokens, time to first token and tokens a second of one answer."""
    usage, timing = output.usage, output.timing
    parts = [f"prompt {usage.prompt_tokens} tokens"]
    if usage.cached_tokens:
        parts[0] += f" ({usage.cached_tokens} cached)"
    parts.append(f"answer {usage.completion_tokens} tokens")
    if timing.first_token_seconds is not None:
        parts.append(f"first token after {timing.first_token_seconds:.2f} s")
        seconds = timing.total_seconds - timing.first_token_seconds
        if usage.completion_tokens > 1 and seconds > 0:
            parts.append(f"then {(usage.completion_tokens - 1) / seconds:.1f} tokens/s")
    return ", ".join(parts)


def _show_logs(quiet: bool) -> None:
    """Warnings of the engine go to standard error, one line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger = logging.getLogger("octavo")
    logger.handlers = [handler]
    logger.setLevel(logging.ERROR if quiet else logging.WARNING)
    logger.propagate = False
