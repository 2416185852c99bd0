"""What every verb shows: status lines and progress bars on standard error, answers on output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from octavo.core.model_part import Progress

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


def quiet_output() -> None:
    """Output is lost (`| head`, a full disk): keep the interpreter from complaining at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def ensure_standard_streams() -> None:
    """Open the null device where the caller closed a standard stream (`<&-`, cron, some daemons).

    Otherwise Python has no stream there, and the next file opened takes its number, so that what
    others print ends in it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number, which is this one: those below are open by now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


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
