"""Pool, index, draft, keys and waste by example; histories are in tests/property."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.errors import CapacityError, SettingsError
from octavo.memory._pages import CACHED, FREE, HELD
from octavo.memory.cache import PageCache
from octavo.memory.draft import PageDraft
from octavo.memory.keys import KEY_BYTES, child_key, extend_keys, root_key
from octavo.memory.waste import measure_waste

ROOT = root_key(b"model", b"")


def chain(*tokens: int) -> list[bytes]:
    keys: list[bytes] = []
    extend_keys(keys, ROOT, tokens, 1)
    return keys


def cached_chain(cache: PageCache, keys: list[bytes]) -> list[int]:
    """Hold, publish and release a table of `keys`."""
    table = [cache.allocate() for _ in keys]
    publish(cache, table, keys)
    cache.release(table)
    return table


def publish(cache: PageCache, table: list[int], keys: list[bytes]) -> None:
    for place, page in enumerate(table):
        cache.publish(page, keys[place], keys[place - 1] if place else None)


class TestKeys:
    def test_a_key_depends_on_every_token_before(self) -> None:
        assert len(ROOT) == KEY_BYTES == 32
        assert child_key(child_key(ROOT, [1]), [2]) != child_key(child_key(ROOT, [3]), [2])
        assert child_key(ROOT, [1, 2]) != child_key(ROOT, [2, 1])

    def test_fingerprint_and_salt_are_kept_apart(self) -> None:
        assert root_key(b"ab", b"c") != root_key(b"a", b"bc")
        assert root_key(b"a", b"") != root_key(b"a", b"x")

    def test_extending_in_parts_gives_the_same_keys(self) -> None:
        whole: list[bytes] = []
        extend_keys(whole, ROOT, range(11), 4)
        parts: list[bytes] = []
        for end in (3, 4, 9, 11):
            extend_keys(parts, ROOT, range(end), 4)
        first = child_key(ROOT, range(4))
        assert whole == parts == [first, child_key(first, range(4, 8))]


class TestPool:
    @pytest.mark.parametrize("sizes", [(0, 4), (-1, 4), (4, 0)])
    def test_refuses_sizes_below_one(self, sizes: tuple[int, int]) -> None:
        with pytest.raises(SettingsError):
            PageCache(sizes[0], slab_pages=sizes[1])

    def test_takes_from_the_fullest_slab(self) -> None:
        cache = PageCache(8, slab_pages=4)
        pages = [cache.allocate() for _ in range(6)]
        assert pages == [0, 1, 2, 3, 4, 5]
        cache.release([0])  # slab 0 has one free page, slab 1 two
        assert cache.allocate() == 0
        cache.release([0, 1, 2])
        assert {cache.allocate(), cache.allocate()} == {6, 7}

    def test_a_full_pool_says_so(self) -> None:
        cache = PageCache(2)
        cache.take([0, 1])
        with pytest.raises(CapacityError, match="all 2 pages are held"):
            cache.allocate()

    def test_wrong_moves_are_refused(self) -> None:
        cache = PageCache(2)
        page = cache.allocate()
        with pytest.raises(ValueError, match="held"):
            cache.take([page])
        cache.release([page])
        with pytest.raises(ValueError, match="not held"):
            cache.release([page])
        with pytest.raises(ValueError, match="free"):
            cache.share([page])
        with pytest.raises(ValueError, match="only held pages"):
            cache.publish(page, chain(1)[0], None)
        with pytest.raises(ValueError, match="no such level"):
            cache.release([cache.allocate()], level=1)
        assert cache.audit([[page]]) == []

    @pytest.mark.parametrize("page", [-1, 2, 1 << 40])
    def test_pages_that_do_not_exist_are_refused(self, page: int) -> None:
        cache = PageCache(2)
        draft = PageDraft(cache)
        for wrong in (cache.take, cache.share, cache.release, draft.share, draft.release):
            with pytest.raises((IndexError, ValueError)):
                wrong([page])
        with pytest.raises(ValueError, match="not taken here"):
            draft.give_back([0])
        assert cache.audit([]) == []

    @pytest.mark.parametrize("key", [b"", b"short", "text", None])
    def test_what_is_no_key_is_refused(self, key: object) -> None:
        cache = PageCache(2)
        with pytest.raises(ValueError, match="32 bytes"):
            cache.look_up([key])  # type: ignore[list-item]

    def test_a_hit_leaves_the_middle_of_the_cached_list(self) -> None:
        cache = PageCache(4)
        pages = [cached_chain(cache, chain(number))[0] for number in range(4)]
        cache.share([pages[1]])
        assert cache.pool.cached_pages() == [pages[0], *pages[2:]]
        assert cache.pool.cached_pages(1) == [pages[0]]
        state, refs = cache.pool.state, cache.pool.refs
        assert (state[pages[1]], refs[pages[1]], cache.pool.cached_count) == (HELD, 1, 3)

    def test_columns_outlive_the_cache_and_see_its_changes(self) -> None:
        cache = PageCache(4)
        refs, identities = cache.pool.refs, cache.index.hash_id
        table = [cache.allocate()]
        publish(cache, table, chain(1))
        assert (refs[table[0]], identities[table[0]]) == (1, 0)
        cache.repair([table, table])
        assert (refs[table[0]], identities[table[0]]) == (2, -1)
        del cache
        gc.collect()
        assert refs.tolist() == [2, 0, 0, 0]


class TestCache:
    def test_eviction_takes_children_first_then_least_recently_used(self) -> None:
        cache = PageCache(4)
        old = cached_chain(cache, chain(1, 2))
        new = cached_chain(cache, chain(5, 6))
        cache.share(cache.look_up(chain(1)))
        cache.release(old[:1])  # the parent alone was used again
        assert [cache.allocate() for _ in range(4)] == [old[1], new[1], new[0], old[0]]
        assert cache.evicted_pages == 4
        assert cache.look_up(chain(1)) == []

    def test_the_first_of_two_equal_pages_is_found(self) -> None:
        cache = PageCache(4)
        first, second = cache.allocate(), cache.allocate()
        assert cache.publish(first, chain(1)[0], None)
        assert not cache.publish(second, chain(1)[0], None)
        assert cache.look_up(chain(1)) == [first]
        cache.release([first])
        assert cache.look_up(chain(1)) == [second]
        assert cache.pool.state[first] == FREE
        cache.release([second])
        assert cache.look_up(chain(1)) == [second]
        assert cache.audit([]) == []

    def test_a_cached_page_makes_way_for_an_equal_held_one(self) -> None:
        cache = PageCache(4)
        (old,) = cached_chain(cache, chain(1))
        table = [cache.allocate(), cache.allocate()]
        publish(cache, table, chain(1, 2))
        assert cache.look_up(chain(1, 2)) == table
        assert cache.pool.state[old] == FREE
        assert cache.audit([table]) == []

    def test_a_page_without_published_parent_stays_private(self) -> None:
        cache = PageCache(2)
        page = cache.allocate()
        assert not cache.publish(page, chain(1, 2)[1], chain(1)[0])
        cache.release([page])
        assert cache.pool.state[page] == FREE

    def test_repair_keeps_tables_and_forgets_the_rest(self) -> None:
        cache = PageCache(6, slab_pages=2)
        cached_chain(cache, chain(1, 2))
        table = [cache.allocate(), cache.allocate()]
        cache.pool.next[0] = 3
        cache.pool.refs[table[0]] = 7
        assert cache.audit([table])
        cache.repair([table])
        assert cache.audit([table]) == []
        assert cache.pool.held_count == 2
        assert cache.look_up(chain(1)) == []


def damage_refs(cache: PageCache) -> None:
    cache.pool.refs[0] += 1


def damage_state(cache: PageCache) -> None:
    cache.pool.state[3] = CACHED


def damage_links(cache: PageCache) -> None:
    cache.pool.prev[cache.pool.next[cache.pool.cached_anchor(0)]] = 0


def damage_counts(cache: PageCache) -> None:
    cache.pool.free_count -= 1


def damage_slabs(cache: PageCache) -> None:
    cache.pool.slab_free[1] = 0


def damage_mask(cache: PageCache) -> None:
    cache.pool.bucket_words[0] ^= 1 << 2


def damage_key(cache: PageCache) -> None:
    cache.index.page[0] = 5


def damage_children(cache: PageCache) -> None:
    cache.index.children[0] = 0


def damage_order(cache: PageCache) -> None:
    pool, anchor = cache.pool, cache.pool.cached_anchor(0)
    child, parent = pool.cached_pages()
    ring = [anchor, parent, child]
    for member, after in zip(ring, [*ring[1:], anchor], strict=True):
        pool.next[member], pool.prev[after] = after, member
    assert pool.cached_pages() == [parent, child]


def damage_twins(cache: PageCache) -> None:
    cache.index.twin_next[0] = 1


@pytest.mark.parametrize(
    "damage",
    [
        damage_refs,
        damage_state,
        damage_links,
        damage_counts,
        damage_slabs,
        damage_mask,
        damage_key,
        damage_children,
        damage_order,
        damage_twins,
    ],
)
def test_audit_finds_damage_and_repair_heals_it(damage) -> None:  # type: ignore[no-untyped-def]
    cache = PageCache(6, slab_pages=3)
    table = [cache.allocate()]
    cached_chain(cache, chain(1, 2))
    assert cache.audit([table]) == []
    damage(cache)
    assert cache.audit([table])
    cache.repair([table])
    assert cache.audit([table]) == []


class TestDraft:
    def test_changes_nothing(self) -> None:
        cache = PageCache(4)
        cached_chain(cache, chain(1, 2))
        draft = PageDraft(cache)
        draft.share(draft.look_up(chain(1)))
        assert draft.available == 3
        assert draft.take(3) == [2, 3, 1]
        assert draft.available == 0
        assert cache.audit([]) == []
        assert cache.pool.held_count == 0

    def test_does_not_find_what_it_has_taken(self) -> None:
        cache = PageCache(2)
        cached_chain(cache, chain(1, 2))
        draft = PageDraft(cache)
        assert len(draft.look_up(chain(1, 2))) == 2
        draft.take(1)
        assert len(draft.look_up(chain(1, 2))) == 1

    def test_given_back_pages_are_taken_again_in_the_same_order(self) -> None:
        cache = PageCache(5)
        cached_chain(cache, chain(1, 2, 3))
        draft = PageDraft(cache)
        taken = draft.take(4)
        draft.give_back([taken[1]])
        draft.give_back([taken[3], taken[0]])
        assert draft.available == 4
        assert draft.take(3) == [taken[0], taken[1], taken[3]]

    def test_a_draft_of_pages_that_have_changed_takes_none(self) -> None:
        cache = PageCache(4)
        draft = PageDraft(cache)
        cache.allocate()
        with pytest.raises(RuntimeError, match="changed meanwhile"):
            draft.take(1)

    def test_taking_more_than_there_is_fails(self) -> None:
        draft = PageDraft(PageCache(4))
        with pytest.raises(IndexError):
            draft.take(5)

    @given(
        st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True), max_size=5),
        st.data(),
    )
    def test_tells_what_it_frees_to_release_tables(
        self, tables: list[list[int]], data: st.DataObject
    ) -> None:
        cache = PageCache(8)
        pages = [cache.allocate() for _ in range(8)]
        for table in tables:
            cache.share([pages[place] for place in table])
        cache.release(pages)
        leaving = [table for table in tables if data.draw(st.booleans())]
        wanted = data.draw(st.lists(st.sampled_from(pages)))
        draft = PageDraft(cache)
        before = {page for page in pages if draft.unheld([page])}
        held = [pages[place] for table in leaving for place in table]
        freed = draft.freed(held, wanted)
        for table in leaving:
            draft.release([pages[place] for place in table])
        after = {page for page in pages if draft.unheld([page])}
        assert freed == len(after - before - set(wanted))

    def test_released_pages_come_last_and_shared_ones_stay(self) -> None:
        cache = PageCache(3)
        table = [cache.allocate(), cache.allocate()]
        cache.share(table[:1])
        draft = PageDraft(cache)
        draft.release(table)
        assert draft.available == 2
        assert draft.take(2) == [2, table[1]]


class TestWaste:
    def test_counts_shared_pages_once(self) -> None:
        waste = measure_waste([([0, 1], 6), ([0, 2, 3], 9)], 4)
        assert (waste.held_pages, waste.unwritten_tokens) == (4, 5)
        assert waste.share == 5 / 16

    def test_nothing_held_is_no_waste(self) -> None:
        assert measure_waste([], 16).share == 0.0


class TestRetention:
    def test_a_lower_level_is_evicted_first_whatever_was_used_last(self) -> None:
        cache = PageCache(4, levels=2)
        strict, lax = chain(1, 2), chain(3, 4)
        tables = [[cache.allocate(), cache.allocate()] for _ in range(2)]
        publish(cache, tables[0], strict)
        publish(cache, tables[1], lax)
        cache.release(tables[0], level=1)
        cache.release(tables[1], level=0)
        assert cache.pool.cached_pages() == [*tables[1][::-1], *tables[0][::-1]]
        cache.allocate()
        assert cache.look_up(lax) == tables[1][:1]
        assert cache.look_up(strict) == tables[0]

    def test_a_beginning_that_a_higher_level_continues_is_kept_with_it(self) -> None:
        cache = PageCache(5, levels=2)
        strict, lax = chain(1, 2, 3), chain(1, 2, 4)
        table = [cache.allocate() for _ in strict]
        publish(cache, table, strict)
        cache.share(cache.look_up(lax))
        other = [*table[:2], cache.allocate()]
        publish(cache, other, lax)
        cache.release(table, level=1)
        cache.release(other, level=0)
        assert cache.pool.cached_pages() == [other[2], table[2], table[1], table[0]]
        assert cache.audit([]) == []
