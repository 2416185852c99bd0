"""Modules that the build compiles: whichever is imported first brings those it needs."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import octavo
import octavo.memory.layout
import octavo.schedule.scheduler


def test_every_module_can_be_the_first() -> None:
    package = Path(octavo.__file__).parent
    names = sorted(
        f"octavo.{room}.{file.stem}"
        for room in ("memory", "schedule")
        for file in (package / room).glob("*.py")
        if file.stem != "__init__"
    )
    assert len(names) > 20
    # A new process for each, as what is imported stays imported.
    for name in names:
        ran = subprocess.run(
            [sys.executable, "-c", f"import {name}"], capture_output=True, text=True
        )
        assert ran.returncode == 0, f"{name}: {ran.returncode} {ran.stderr}"


def test_an_installed_package_runs_what_was_compiled() -> None:
    if not list(Path(octavo.__file__).parents[1].glob("octavo-*.dist-info")):
        pytest.skip("runs from its sources")
    for module in (octavo.memory.layout, octavo.schedule.scheduler):
        assert module.__file__ is not None
        assert module.__file__.endswith(tuple(EXTENSION_SUFFIXES)), module.__file__
