"""KV budget: memory that is free, pages, served context."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.core.errors import CapacityError
from octavo.engine.capacity import available_memory_bytes, plan_capacity
from octavo.engine.memory_ledger import FixedMemory, pages_within

SHAPE = {"page_tokens": 32, "page_bytes": 1000, "model_context_tokens": 320, "max_rows": 4}


def test_default_is_half_of_what_is_available() -> None:
    capacity = plan_capacity(**SHAPE, available_bytes=24_000)
    assert (capacity.pages, capacity.kv_bytes) == (12, 12_000)
    assert (capacity.context_tokens, capacity.note) == (320, None)


def test_default_is_at_most_a_full_context_for_every_row() -> None:
    assert plan_capacity(**SHAPE, available_bytes=10**9).pages == 40


def test_given_bytes_are_taken_if_they_are_there() -> None:
    assert plan_capacity(**SHAPE, available_bytes=55_999, kv_bytes=55_999).pages == 55
    with pytest.raises(CapacityError, match="55999 bytes is more than the 55998 bytes available"):
        plan_capacity(**SHAPE, available_bytes=55_998, kv_bytes=55_999)


def test_context_is_lowered_to_what_the_pages_hold_and_said() -> None:
    capacity = plan_capacity(**SHAPE, available_bytes=10**9, kv_bytes=3_500)
    assert capacity.context_tokens == 96
    assert capacity.note is not None
    assert "96" in capacity.note
    assert "320" in capacity.note


def test_less_than_a_page_is_refused() -> None:
    with pytest.raises(CapacityError, match="does not hold one page"):
        plan_capacity(**SHAPE, available_bytes=10**9, kv_bytes=999)


def machine(folder: Path, available_kib: int, membership: str = "") -> Path:
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {available_kib} kB\n")
    (folder / "self" / "cgroup").write_text(membership)
    return folder


def group(folder: Path, limit: str, used: int, inactive: int, *, version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = (
        ("memory.max", "memory.current")
        if version == 2
        else (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        )
    )
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def test_machine_without_groups(tmp_path: Path) -> None:
    assert available_memory_bytes(proc=machine(tmp_path, 100), cgroup_root=tmp_path) == 102_400


def test_tightest_group_of_the_path_counts(tmp_path: Path) -> None:
    proc, root = machine(tmp_path / "proc", 10**6, "0::/outer/inner\n"), tmp_path / "cgroup"
    group(root / "outer", "5000", 3000, 500)
    group(root / "outer" / "inner", "max", 3000, 0)
    assert available_memory_bytes(proc=proc, cgroup_root=root) == 2500


def test_version_1_group(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", 10**6, "5:cpu:/x\n4:cpuset,memory:/x\n")
    group(tmp_path / "cgroup" / "memory" / "x", "7000", 1000, 0, version=1)
    group(tmp_path / "cgroup" / "memory", str(2**63 - 4096), 1000, 0, version=1)
    assert available_memory_bytes(proc=proc, cgroup_root=tmp_path / "cgroup") == 6000


FIXED = FixedMemory(
    process_bytes=10 << 20,
    weight_bytes=50 << 20,
    workspace_bytes=5 << 20,
    table_bytes=1 << 20,
    staged_bytes=0,
)


def test_every_part_is_in_the_ledger_and_under_the_ceiling() -> None:
    available_bytes = 100 << 20
    ceiling_bytes = FIXED.ceiling(available_bytes, None)
    assert ceiling_bytes == 160 << 20
    room = pages_within(FIXED.room_for_pages(ceiling_bytes), 1 << 20)
    capacity = plan_capacity(
        page_tokens=32,
        page_bytes=1 << 20,
        model_context_tokens=32 * 1000,
        max_rows=4,
        available_bytes=available_bytes,
        ceiling_bytes=room,
        kv_bytes=room,
    )
    ledger = FIXED.ledger(
        pages=capacity.pages, kv_bytes=capacity.kv_bytes, ceiling_bytes=ceiling_bytes
    )
    assert ledger.parts["kv_cache"] == room
    assert (154 << 20) < ledger.total_bytes <= ledger.ceiling_bytes
    assert set(ledger.parts) >= {"process", "weights", "workspace", "messages", "page_index"}


def test_a_ceiling_lowers_the_cache_and_refuses_what_is_above_it() -> None:
    ceiling_bytes = FIXED.ceiling(1 << 40, 120 << 20)
    room = pages_within(FIXED.room_for_pages(ceiling_bytes), 1000)
    shape = {**SHAPE, "max_rows": 1 << 20, "available_bytes": 1 << 40, "ceiling_bytes": room}
    assert plan_capacity(**shape).kv_bytes == room
    with pytest.raises(CapacityError, match=f"give at most {room} bytes"):
        plan_capacity(**shape, kv_bytes=room + 1)


def test_a_ceiling_below_what_is_needed_anyway_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"memory.total_bytes: 64MB are not enough"):
        FIXED.ceiling(1 << 40, 64 << 20)


def test_a_ceiling_above_the_system_is_that_of_the_system() -> None:
    assert FIXED.ceiling(100 << 20, 1 << 40) == 160 << 20
