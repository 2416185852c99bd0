"""Limits of control groups, and when they ask for memory back."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.engine.memory_group import GroupPressure, Room, group_rooms

MB = 1 << 20


def version_2(folder: Path, **files: str) -> GroupPressure:
    """A process in group /pod/engine of version 2, with these files in it."""
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "self" / "cgroup").write_text("0::/pod/engine\n")
    group = folder / "cgroup" / "pod" / "engine"
    group.mkdir(parents=True)
    for name, text in {"current": "0", "stat": "", "max": "max", **files}.items():
        (group / f"memory.{name}").write_text(text)
    return GroupPressure(proc=folder / "proc", root=folder / "cgroup")


@pytest.mark.parametrize("limit", ["max", "high"])
def test_a_limit_that_comes_near_asks_for_a_tenth(tmp_path: Path, limit: str) -> None:
    pressure = version_2(tmp_path, **{limit: str(1000 * MB), "current": str(960 * MB)})
    assert pressure.wanted_bytes() == 60 * MB
    current = tmp_path / "cgroup" / "pod" / "engine" / "memory.current"
    current.write_text(str(949 * MB))
    assert pressure.wanted_bytes() == 0
    current.write_text(str(1010 * MB))
    assert pressure.wanted_bytes() == 100 * MB


def test_file_cache_counts_as_free(tmp_path: Path) -> None:
    files = {"max": str(1000 * MB), "current": str(999 * MB)}
    pressure = version_2(tmp_path, stat=f"anon 5\ninactive_file {500 * MB}\n", **files)
    assert pressure.wanted_bytes() == 0


def test_a_group_that_stalls_asks_for_memory(tmp_path: Path) -> None:
    stalled = "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=0.00\n"
    pressure = version_2(tmp_path, pressure=stalled)
    assert pressure.wanted_bytes() == 256 * MB
    calm = stalled.replace("12.50", "9.99")
    (tmp_path / "cgroup" / "pod" / "engine" / "memory.pressure").write_text(calm)
    assert pressure.wanted_bytes() == 0


@pytest.mark.parametrize("text", ["", "some", "some avg10=much", "full avg10=99"])
def test_what_cannot_be_read_is_no_pressure(tmp_path: Path, text: str) -> None:
    assert version_2(tmp_path, pressure=text, current=text, max=text).wanted_bytes() == 0
    assert GroupPressure(proc=tmp_path / "none", root=tmp_path / "none").wanted_bytes() == 0


def test_version_1_and_every_group_above_count(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:cpu,memory:/pod/engine\n3:cpuset:/\n0::/\n")
    pod = tmp_path / "memory" / "pod"
    (pod / "engine").mkdir(parents=True)
    for group, limit_bytes, used_bytes in (
        (pod / "engine", 1 << 62, 90 * MB),
        (pod, 100 * MB, 97 * MB),
    ):
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        (group / "memory.usage_in_bytes").write_text(str(used_bytes))
        (group / "memory.stat").write_text("")
    assert group_rooms(tmp_path / "cgroup", tmp_path) == [Room(100 * MB, 3 * MB)]
