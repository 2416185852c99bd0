"""The page cache against a naive model, audited after every step."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from octavo.memory._pages import CACHED, FREE, HELD
from octavo.memory.cache import PageCache
from octavo.memory.draft import PageDraft
from octavo.memory.keys import child_key, root_key

ROOT = root_key(b"model", b"")


class Table:
    """A page table, the letters of its full pages and their keys; `published` come first."""

    def __init__(self) -> None:
        self.pages: list[int] = []
        self.letters: list[int] = []
        self.keys: list[bytes] = []
        self.published = 0

    def extend(self, page: int, letter: int) -> None:
        self.pages.append(page)
        self.letters.append(letter)
        self.keys.append(child_key(self.keys[-1] if self.keys else ROOT, [letter]))


class PageCacheMachine(RuleBasedStateMachine):
    """Requests come, extend, publish, share and leave; contents are remembered beside the cache."""

    @initialize(
        pages=st.integers(1, 12), slab_pages=st.integers(1, 5), levels=st.sampled_from([1, 1, 2, 3])
    )
    def start(self, pages: int, slab_pages: int, levels: int) -> None:
        self.cache = PageCache(pages, slab_pages=slab_pages, levels=levels)
        self.tables: list[Table] = []
        self.holds: dict[int, tuple[int, ...]] = {}
        self.last_use: dict[int, int] = {}
        self.released_at: dict[int, int] = {}
        self.clock = 0

    def _available(self) -> int:
        return self.cache.pool.free_count + self.cache.pool.cached_count

    def _pick(self, index: int) -> Table:
        return self.tables[index % len(self.tables)]

    @rule(letters=st.lists(st.integers(0, 1), max_size=4))
    def arrive(self, letters: list[int]) -> None:
        """A new table shares the longest published prefix of `letters`."""
        wanted = Table()
        for letter in letters:
            wanted.extend(-1, letter)
        found = self.cache.look_up(wanted.keys)
        table = Table()
        for page, letter in zip(found, letters, strict=False):
            assert self.holds[page] == (*table.letters, letter)
            table.extend(page, letter)
        self.cache.share(found)
        table.published = len(found)
        if table.pages:
            self.tables.append(table)

    @rule(letter=st.integers(0, 1))
    def begin(self, letter: int) -> None:
        """A new table that looks nothing up, as requests with prompt log-probabilities do."""
        if self._available():
            self.tables.append(Table())
            self._extend(self.tables[-1], letter)

    @precondition(lambda self: self.tables)
    @rule(index=st.integers(0), letter=st.integers(0, 1))
    def extend(self, index: int, letter: int) -> None:
        if self._available():
            self._extend(self._pick(index), letter)

    def _extend(self, table: Table, letter: int) -> None:
        free = self.cache.pool.free_count
        cached = self.cache.pool.cached_pages()
        slab_pages = self.cache.pool.slab_pages
        ranks = self._slab_ranks()
        before = {page: self.cache.pool.state[page] for page in range(self.cache.pool.pages)}
        page = self.cache.allocate()
        if free:
            assert before[page] == FREE
            assert ranks[page // slab_pages] == min(ranks.values()), "not the fullest slab"
        else:
            assert page == cached[0]
            if self.cache.pool.levels == 1:
                assert page == min(cached, key=self.last_use.__getitem__)
        table.extend(page, letter)
        self.holds[page] = tuple(table.letters)

    def _slab_ranks(self) -> dict[int, tuple[int, int]]:
        """Slabs with free pages, the best first: the fullest, an empty backed one, any other."""
        pool = self.cache.pool
        free = Counter(page // pool.slab_pages for page in range(pool.pages) if not pool.refs[page])
        free -= Counter(page // pool.slab_pages for page in pool.cached_pages())
        return {
            slab: (0, count) if count < pool.slab_size(slab) else (2 - pool.backed[slab], 0)
            for slab, count in free.items()
        }

    @rule(idle_seconds=st.integers(0, 5))
    def give_up_idle(self, idle_seconds: int) -> None:
        """Pages that were cached for too long go, and with them their slabs' memory."""
        pool = self.cache.pool
        kept = [
            page
            for page in pool.cached_pages()
            if self.released_at[page] > pool.now_seconds - idle_seconds
        ]
        given_up = pool.cached_count - len(kept)
        assert self.cache.give_up_idle(pool.now_seconds - idle_seconds) == given_up
        assert pool.cached_pages() == kept
        for slab in pool.empty_slabs():
            if pool.empty_since[slab] <= pool.now_seconds - idle_seconds:
                pool.set_backed(slab, False)

    @rule()
    def back_ahead(self) -> None:
        pool = self.cache.pool
        slab = pool.next_unbacked()
        if slab is not None:
            pool.set_backed(slab, True)
            assert slab in pool.empty_slabs()

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.cache.pool.now_seconds += seconds

    @precondition(lambda self: self.tables)
    @rule(index=st.integers(0))
    def publish(self, index: int) -> None:
        """The next unpublished page becomes findable, or the twin of one that is."""
        table = self._pick(index)
        place = table.published
        if place == len(table.pages):
            return
        key, parent = table.keys[place], table.keys[place - 1] if place else None
        found = self.cache.look_up(table.keys[: place + 1])
        # After a repair two tables that share a page publish it one after the other.
        keeps_other = (
            len(found) == place + 1
            and found[-1] != table.pages[place]
            and self.cache.pool.state[found[-1]] == HELD
        )
        is_found = self.cache.publish(table.pages[place], key, parent)
        assert is_found != keeps_other
        table.published += 1
        assert len(self.cache.look_up(table.keys)) >= table.published

    @precondition(lambda self: self.tables)
    @rule(index=st.integers(0), count=st.integers(0, 4))
    def publish_run(self, index: int, count: int) -> None:
        """The next pages at once, which is the same as one after the other."""
        table = self._pick(index)
        end = min(table.published + count, len(table.pages))
        self.cache.publish_run(table.pages, table.keys, table.published, end)
        table.published = end
        assert len(self.cache.look_up(table.keys)) >= end

    @precondition(lambda self: self.tables)
    @rule(index=st.integers(0), level=st.integers(0, 2))
    def leave(self, index: int, level: int) -> None:
        table = self.tables.pop(index % len(self.tables))
        self.cache.release(table.pages, level=min(level, self.cache.pool.levels - 1))
        for page in reversed(table.pages):
            self.clock += 1
            if self.cache.pool.state[page] == CACHED:
                self.last_use[page] = self.clock
                self.released_at[page] = self.cache.pool.now_seconds
        found = self.cache.look_up(table.keys)
        assert len(found) >= table.published, "a published page was lost at release"

    @precondition(lambda self: self.tables)
    @rule(index=st.integers(0), letters=st.lists(st.integers(0, 1), max_size=3))
    def draft_matches_commit(self, index: int, letters: list[int]) -> None:
        """Releasing, sharing and taking in a draft names pages that can then really be taken."""
        victim = self.tables.pop(index % len(self.tables))
        draft = PageDraft(self.cache)
        draft.release(victim.pages)
        wanted = Table()
        for letter in letters:
            wanted.extend(-1, letter)
        shared = draft.look_up(wanted.keys)
        draft.share(shared)
        taken = draft.take(draft.available)
        assert len(set(taken)) == len(taken)
        draft.give_back(taken)
        assert draft.take(draft.available) == taken
        draft.give_back(taken[1:])
        taken = taken[:1]
        assert not set(taken) & set(shared)
        self.cache.release(victim.pages)
        for page in reversed(victim.pages):
            self.clock += 1
            self.last_use[page] = self.clock
            self.released_at[page] = self.cache.pool.now_seconds
        self.cache.share(shared)
        for page in taken:
            self.cache.take([page])
        table = Table()
        for page, letter in zip(shared, letters, strict=False):
            table.extend(page, letter)
        table.published = len(shared)
        for page in taken:
            table.extend(page, 1)
            self.holds[page] = tuple(table.letters)
        if table.pages:
            self.tables.append(table)

    @rule()
    def repair(self) -> None:
        self.cache.repair([table.pages for table in self.tables])
        for table in self.tables:
            table.published = 0
            assert self.cache.look_up(table.keys) == []

    @invariant()
    def audit_is_clean(self) -> None:
        if hasattr(self, "cache"):
            assert self.cache.audit([table.pages for table in self.tables]) == []

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "cache"):
            pool = self.cache.pool
            held = {page for table in self.tables for page in table.pages}
            assert pool.held_count == len(held)
            assert pool.free_count + pool.cached_count == pool.pages - len(held)


def test_a_shared_page_is_published_by_both_its_tables_after_a_repair() -> None:
    cache = PageCache(1)
    page = cache.allocate()
    key = child_key(ROOT, [0])
    assert cache.publish(page, key, None)
    cache.share(cache.look_up([key]))
    cache.repair([[page], [page]])
    assert cache.look_up([key]) == []
    assert cache.publish(page, key, None)
    assert cache.publish(page, key, None)
    assert cache.look_up([key]) == [page]
    assert cache.audit([[page], [page]]) == []


def test_thousands_of_keys_are_found_as_long_as_their_pages_last() -> None:
    cache, choice = PageCache(512), random.Random(5)
    cached: dict[bytes, int] = {}
    for number in range(6000):
        key = child_key(ROOT, [number])
        page = cache.allocate()
        assert cache.publish(page, key, None)
        cache.release([page])
        cached[key] = page
        if len(cached) > 512:
            del cached[next(iter(cached))]
        asked = child_key(ROOT, [choice.randint(max(number - 1000, 0), number)])
        assert cache.look_up([asked]) == ([cached[asked]] if asked in cached else [])
        assert cache.was_given_up(asked) != (asked in cached)
    assert cache.audit([]) == []


def test_a_draft_finds_no_page_whose_key_a_twin_inherits() -> None:
    cache = PageCache(2)
    key = child_key(ROOT, [0])
    indexed, twin = cache.allocate(), cache.allocate()
    assert cache.publish(indexed, key, None)
    assert not cache.publish(twin, key, None)
    draft = PageDraft(cache)
    assert draft.look_up([key]) == [indexed]
    draft.release([indexed])
    assert draft.look_up([key]) == []
    cache.release([indexed])
    assert cache.look_up([key]) == [twin]


PageCacheMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None
)
TestPageCache = PageCacheMachine.TestCase
