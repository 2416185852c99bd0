"""Memory that goes back to the system and comes again: by idle time, under pressure, eagerly."""

from __future__ import annotations

import threading

import pytest

from octavo.memory.cache import PageCache
from octavo.memory.elastic import ElasticMemory, runs, slab_pages_for
from octavo.memory.keys import child_key, root_key

ROOT = root_key(b"model", b"")
PAGE_BYTES = 1 << 20
SLAB_PAGES = 4
PAGES = 512


class Memory:
    """Remembers which pages have memory behind them."""

    def __init__(self) -> None:
        self.backed: set[int] = set()
        self.discarded: list[tuple[int, int]] = []
        self.workspace_discards = 0
        self.populating = threading.Event()
        self.populating.set()

    def discard_kv(self, first: int, count: int) -> int:
        self.backed -= set(range(first, first + count))
        self.discarded.append((first, count))
        return count * PAGE_BYTES

    def populate_kv(self, first: int, count: int) -> None:
        assert self.populating.wait(60)
        self.backed |= set(range(first, first + count))

    def discard_workspace(self) -> int:
        self.workspace_discards += 1
        return 0


class Pressure:
    def __init__(self) -> None:
        self.wanted = 0

    def wanted_bytes(self) -> int:
        return self.wanted


class Rig:
    """A cache whose memory is elastic, and a clock that the test moves."""

    def __init__(self, *, idle_seconds: float | None = 100.0, is_eager: bool = False):
        self.cache = PageCache(PAGES, slab_pages=SLAB_PAGES, keeps_pages=not is_eager)
        self.memory = Memory()
        self.pressure = Pressure()
        self.now = 1000.0
        self.elastic = ElasticMemory(
            self.cache,
            self.memory,
            page_bytes=PAGE_BYTES,
            idle_seconds=idle_seconds,
            is_eager=is_eager,
            pressure=self.pressure,
        )

    def step(self, *, seconds: float = 0.0) -> None:
        """A step that changes nothing, `seconds` after the one before."""
        self.now += seconds
        self.elastic.begin(self.now)
        self.elastic.end(self.now)

    def serve(self, pages: int, name: int = 0) -> list[int]:
        """A request of `pages` full pages comes, is published, and leaves."""
        self.elastic.begin(self.now)
        table = [self.cache.allocate() for _ in range(pages)]
        parent: bytes | None = None
        for place, page in enumerate(table):
            key = child_key(parent or ROOT, [name, place])
            self.cache.publish(page, key, parent)
            parent = key
        self.cache.release(table)
        self.elastic.end(self.now)
        return table

    def audit(self) -> None:
        assert self.cache.audit([]) == []


def test_slabs_are_whole_pages_and_at_least_two_huge_pages() -> None:
    assert slab_pages_for(720 << 10) == 6
    assert slab_pages_for(64) == (4 << 20) // 64
    assert slab_pages_for(16 << 20) == 1


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], []), ([3], [(3, 3)]), ([1, 2, 3, 5, 7, 8], [(1, 3), (5, 5), (7, 8)])],
)
def test_runs(numbers: list[int], expected: list[tuple[int, int]]) -> None:
    assert list(runs(numbers)) == expected


def test_an_idle_engine_gives_everything_back_once_it_is_due() -> None:
    rig = Rig()
    assert rig.elastic.seconds_to_rest(rig.now) is None
    rig.serve(40)
    assert rig.elastic.seconds_to_rest(rig.now) == 100.0
    assert not rig.elastic.rest(rig.now + 99)
    assert rig.cache.pool.cached_count == 40
    assert rig.elastic.rest(rig.now + 100)
    assert rig.cache.pool.free_count == PAGES
    assert rig.elastic.backed_bytes == 0
    assert rig.memory.backed == set()
    assert rig.memory.workspace_discards == 1
    assert rig.elastic.seconds_to_rest(rig.now + 100) is None
    assert not rig.elastic.rest(rig.now + 300)
    rig.audit()
    rig.elastic.close()


def test_off_means_never() -> None:
    rig = Rig(idle_seconds=None)
    rig.serve(8)
    assert rig.elastic.seconds_to_rest(rig.now) is None
    rig.step(seconds=1e6)
    assert not rig.elastic.rest(rig.now + 1e6)
    assert rig.cache.pool.cached_count == 8
    rig.elastic.close()


def test_a_busy_engine_gives_back_what_is_old_and_keeps_what_is_not() -> None:
    rig = Rig()
    rig.serve(200, name=1)
    rig.now += 60
    rig.serve(40, name=2)
    rig.step(seconds=45)
    assert rig.cache.pool.cached_count == 40
    for _ in range(20):
        rig.step(seconds=10)
    assert rig.cache.pool.cached_count == 0
    # What is kept is what the next requests would have to wait for.
    assert 0 < rig.elastic.backed_bytes <= 8 << 20
    rig.audit()
    rig.elastic.close()


def test_a_hit_makes_a_page_young_again() -> None:
    rig = Rig()
    table = rig.serve(8)
    rig.now += 90
    rig.elastic.begin(rig.now)
    rig.cache.share(table[:4])
    rig.cache.release(table[:4])
    rig.step(seconds=20)
    assert sorted(rig.cache.pool.cached_pages()) == sorted(table[:4])
    rig.audit()
    rig.elastic.close()


def test_pressure_takes_empty_slabs_first_and_then_the_oldest_pages() -> None:
    rig = Rig(idle_seconds=None)
    rig.serve(16, name=1)
    rig.serve(16, name=2)
    rig.step()
    rig.elastic.close()
    ahead_bytes = rig.elastic.backed_bytes - 32 * PAGE_BYTES
    rig.pressure.wanted = ahead_bytes + 8 * PAGE_BYTES
    rig.now += 2
    assert rig.elastic.rest(rig.now)
    assert rig.elastic.released_bytes == rig.pressure.wanted
    assert rig.cache.pool.cached_count == 24
    assert rig.elastic.pressure_releases == 1
    assert not rig.elastic.rest(rig.now + 0.5), "it is asked for once a second"
    rig.pressure.wanted = 1 << 40
    assert rig.elastic.rest(rig.now + 2)
    assert rig.elastic.backed_bytes == 0
    rig.audit()


def test_under_pressure_nothing_is_backed_ahead() -> None:
    rig = Rig()
    rig.pressure.wanted = 1 << 40
    rig.serve(4)
    assert rig.elastic.backed_bytes == 0
    rig.pressure.wanted = 0
    rig.step(seconds=5)
    assert rig.elastic.backed_bytes == 0
    rig.step(seconds=6)
    assert rig.elastic.backed_bytes > 0
    rig.elastic.close()


def backed_ahead_bytes(rig: Rig) -> int:
    """Free memory that has something behind it after a few steps."""
    for _ in range(20):
        rig.step()
        if rig.elastic._populating is not None:
            rig.elastic._populating.result(60)
    pool = rig.cache.pool
    free = {page for page in rig.memory.backed if not pool.refs[page]}
    assert len(free - set(pool.cached_pages())) == pool.backed_free_count
    return pool.backed_free_count * PAGE_BYTES


def test_free_slabs_are_backed_ahead_of_their_use() -> None:
    rig = Rig()
    assert backed_ahead_bytes(rig) == 4 << 20
    taken = {rig.cache.allocate() for _ in range(4)}
    assert taken == rig.memory.backed
    rig.elastic.close()


@pytest.mark.parametrize(("pages", "ahead_bytes"), [(20, 20 << 20), (200, 64 << 20)])
def test_as_much_is_backed_ahead_as_a_step_has_taken(pages: int, ahead_bytes: int) -> None:
    rig = Rig()
    rig.serve(pages, name=1)
    rig.now += 50
    rig.serve(SLAB_PAGES, name=2)
    assert backed_ahead_bytes(rig) == ahead_bytes
    rig.elastic.close()


def test_memory_that_is_being_backed_is_not_given_back_meanwhile() -> None:
    rig = Rig()
    rig.memory.populating.clear()
    rig.serve(4)
    timer = threading.Timer(0.05, rig.memory.populating.set)
    timer.start()
    assert rig.elastic.rest(rig.now + 100)
    assert rig.memory.backed == set()
    timer.join()
    rig.elastic.close()


def test_eager_reclaim_keeps_nothing_that_nobody_holds() -> None:
    rig = Rig(is_eager=True)
    rig.serve(8)
    assert rig.cache.pool.free_count == PAGES
    assert rig.cache.look_up([child_key(ROOT, [0, 0])]) == []
    assert rig.elastic.backed_bytes == 0
    assert rig.memory.discarded == [(0, 8)]
    rig.audit()


def test_eager_reclaim_shares_pages_as_long_as_somebody_holds_them() -> None:
    cache = PageCache(4, keeps_pages=False)
    page = cache.allocate()
    key = child_key(ROOT, [0])
    cache.publish(page, key, None)
    cache.share(cache.look_up([key]))
    cache.release([page])
    assert cache.look_up([key]) == [page]
    cache.release([page])
    assert cache.look_up([key]) == []
    assert cache.audit([]) == []
