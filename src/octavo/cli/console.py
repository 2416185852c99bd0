"""What every verb shows: status lines and progress bars on standard error, answers on output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from octavo.core.download import Progress

if TYPE_CHECKING:
    from tqdm import tqdm


def note(text: str) -> None:
    """A line for people, apart from the answer."""
    click.echo(text, err=True)


def write(text: str) -> None:
    """A piece of an answer, shown at once; characters the terminal cannot show are replaced."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def quiet_broken_pipe() -> None:
    """The reader left (`| head`): keep the interpreter from complaining when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def download_progress(name: str) -> Iterator[Progress]:
    """Bars for each phase of fetching a model."""
    bar: tqdm[Any] | None = None
    shown = ""

    def report(phase: str, done: int, total: int) -> None:
        nonlocal bar, shown
        if phase in _PHASES_UNSHOWN:
            return
        if phase != shown:
            if bar is not None:
                bar.close()
                bar = None
            shown = phase
            if phase in _PHASES_WITH_BAR:
                bar = _byte_bar(f"{name}: {phase}", total, done)
            else:
                note(f"{name}: {phase}")
        if bar is not None:
            bar.update(done - bar.n)

    try:
        yield report
    finally:
        if bar is not None:
            bar.close()


_PHASES_WITH_BAR = frozenset({"downloading", "verifying"})
_PHASES_UNSHOWN = frozenset({"unpacking"})


def _byte_bar(label: str, total_bytes: int, done_bytes: int) -> tqdm[Any]:
    from tqdm import tqdm

    return tqdm(
        total=total_bytes,
        initial=done_bytes,
        desc=label,
        unit="B",
        unit_scale=True,
        mininterval=0.1 if sys.stderr.isatty() else 10.0,
        file=sys.stderr,
    )
