"""Modules that the build compiles: whichever is imported first brings those it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import octavo


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
