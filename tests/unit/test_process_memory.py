"""Memory figures come from the kernel's files, and are 0 where there are none."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.observe.process_memory import proportional_bytes, resident_bytes


def test_figures_are_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "statm").write_text("5000 321 100 1 0 200 0\n")
    (tmp_path / "smaps_rollup").write_text(
        "00400000-7ffd [rollup]\nRss:   900 kB\nPss_Anon:  5 kB\nPss:   512 kB\n"
    )
    assert resident_bytes(tmp_path) == 321 * os.sysconf("SC_PAGE_SIZE")
    assert proportional_bytes(tmp_path) == 512 * 1024


def test_figures_that_are_not_told_are_zero(tmp_path: Path) -> None:
    (tmp_path / "statm").write_text("\n")
    assert resident_bytes(tmp_path) == 0
    assert resident_bytes(tmp_path / "missing") == 0
    assert proportional_bytes(tmp_path) == 0


def test_this_process_has_memory() -> None:
    assert 1 << 20 < proportional_bytes() <= resident_bytes() + (1 << 20)
