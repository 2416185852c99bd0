"""Proofs that pool and index are sound; they read everything and change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from octavo.memory import _pages

NONE = -1
FREE, CACHED, HELD = _pages.FREE, _pages.CACHED, _pages.HELD


def audit_pool(pool: _pages.PagePool, held: Mapping[int, int]) -> list[str]:
    """Check lists, counts and states; `held` gives how many tables name each page."""
    findings: list[str] = []
    lists = {CACHED: _cached(pool, findings)}
    free: list[int] = []
    slab_free = pool.slab_free.tolist()
    for slab in range(pool.slabs):
        name = f"free list of slab {slab}"
        members = _members(pool, pool.slab_anchor(slab), name, findings)
        if len(members) != slab_free[slab]:
            findings.append(f"{name} has {len(members)} pages, counted {slab_free[slab]}")
        strangers = [page for page in members if page // pool.slab_pages != slab]
        if strangers:
            findings.append(f"{name} holds pages of other slabs: {strangers}")
        free += members
    lists[FREE] = free
    for state, name, count in (
        (CACHED, "cached", pool.cached_count),
        (FREE, "free", pool.free_count),
    ):
        if len(lists[state]) != count:
            findings.append(f"{len(lists[state])} pages are {name}, counted {count}")
    findings += _audit_states(pool, set(lists[FREE]), set(lists[CACHED]), held)
    return findings + _audit_buckets(pool)


def _audit_states(
    pool: _pages.PagePool, free: set[int], cached: set[int], held: Mapping[int, int]
) -> list[str]:
    findings = []
    columns = zip(pool.refs.tolist(), pool.state.tolist(), strict=True)
    for page, (refs, state) in enumerate(columns):
        tables = held.get(page, 0)
        if refs != tables:
            findings.append(f"page {page} has {refs} references, {tables} tables name it")
        places = ((page in free, FREE), (page in cached, CACHED), (refs > 0, HELD))
        standing = [place for present, place in places if present]
        if standing != [state]:
            findings.append(f"page {page} is in state {state}, found in {standing}")
    strangers = [page for page in held if not 0 <= page < pool.pages]
    if strangers:
        findings.append(f"tables name pages that do not exist: {strangers}")
    return findings


def _audit_buckets(pool: _pages.PagePool) -> list[str]:
    findings = []
    seen: dict[int, int] = {}
    following, words = pool.slab_next.tolist(), pool.bucket_words.tolist()
    free, backed = pool.slab_free.tolist(), pool.backed.tolist()
    sizes = [pool.slab_size(slab) for slab in range(pool.slabs)]
    for bucket in range(pool.slab_pages + 2):
        anchor = pool.slabs + bucket
        slab = following[anchor]
        filled = slab != anchor
        for _ in range(pool.slabs + 1):
            if slab == anchor:
                break
            if not 0 <= slab < pool.slabs or slab in seen:
                findings.append(f"bucket {bucket} of slabs is damaged at {slab}")
                break
            seen[slab] = bucket
            slab = following[slab]
        if filled != bool(words[bucket // 64] >> bucket % 64 & 1):
            findings.append(f"bucket mask is wrong about bucket {bucket}")
    for slab, size in enumerate(sizes):
        if not 0 <= free[slab] <= size or seen.get(slab) != pool.bucket_of(slab):
            findings.append(f"slab {slab} with {free[slab]} free pages is in {seen.get(slab)}")
        if free[slab] < size and not backed[slab]:
            findings.append(f"slab {slab} is in use and not backed")
    counted = sum(size for slab, size in enumerate(sizes) if backed[slab])
    if counted != pool.backed_pages:
        findings.append(f"{counted} pages are backed, counted {pool.backed_pages}")
    return findings


def audit_index(index: _pages.PrefixIndex, pool: _pages.PagePool) -> list[str]:
    """Check keys against pages, and that children are given up before their parents."""
    findings = []
    # Not `cached_pages`, which trusts the lists.
    cached = _cached(pool, [])
    position = {page: place for place, page in enumerate(cached)}
    indexed, parents = index.page.tolist(), index.parent.tolist()
    used = [identity for identity, page in enumerate(indexed) if page != NONE]
    children = dict.fromkeys(used, 0)
    for identity in used:
        page, parent = indexed[identity], parents[identity]
        if index.hash_id[page] != identity or index.find(index.key_of(page)) != page:
            findings.append(f"key id {identity} and page {page} do not name each other")
        if pool.state[page] == FREE:
            findings.append(f"page {page} of key id {identity} is free")
        if parent == NONE:
            continue
        if parent not in children:
            findings.append(f"key id {identity} has a parent {parent} that is not published")
            continue
        children[parent] += 1
        parent_page = indexed[parent]
        if pool.state[parent_page] == HELD:
            continue
        if position.get(page, pool.pages) > position.get(parent_page, NONE):
            findings.append(f"page {parent_page} would be evicted before its child {page}")
    if len(used) != len(index):
        findings.append(f"{len(used)} keys are published, counted {len(index)}")
    findings.extend(
        f"key id {identity} has {count} children, counted {index.children[identity]}"
        for identity, count in children.items()
        if index.children[identity] != count
    )
    return findings + _audit_pages(index, pool)


def _audit_pages(index: _pages.PrefixIndex, pool: _pages.PagePool) -> list[str]:
    """Check that keys and rings of twins fit the states of the pages."""
    findings = []
    states, identities = pool.state.tolist(), index.hash_id.tolist()
    before, after = index.twin_prev.tolist(), index.twin_next.tolist()
    rings: Counter[int] = Counter()
    for page, (state, identity) in enumerate(zip(states, identities, strict=True)):
        if state == FREE and identity != NONE:
            findings.append(f"free page {page} has key id {identity}")
        if state == CACHED and not index.is_indexed(page):
            findings.append(f"cached page {page} cannot be found")
        twin = after[page]
        if not 0 <= twin < pool.pages or before[twin] != page:
            findings.append(f"the ring of twins is damaged at page {page}")
        elif twin != page and (state != HELD or identity == NONE or identities[twin] != identity):
            findings.append(
                f"page {page} is in the ring of page {twin}, of another key or not held"
            )
        if identity != NONE:
            rings[identity] += 1
    for identity, pages in rings.items():
        page = first = index.page[identity]
        length = 1
        while after[page] != first and length <= pages:
            page, length = after[page], length + 1
        if length != pages:
            findings.append(f"{pages} pages have key id {identity}, {length} are in its ring")
    return findings


def _cached(pool: _pages.PagePool, findings: list[str]) -> list[int]:
    """Cached pages in the order of eviction."""
    return [
        page
        for level in range(pool.levels)
        for page in _members(pool, pool.cached_anchor(level), "cached list", findings)
    ]


def _members(pool: _pages.PagePool, anchor: int, name: str, findings: list[str]) -> list[int]:
    """Pages of one list, stopping at the first damaged link."""
    members: list[int] = []
    previous, following = pool.prev, pool.next
    before, page = anchor, following[anchor]
    while page != anchor:
        if page < 0 or page >= pool.pages or previous[page] != before:
            findings.append(f"{name} is damaged between {before} and {page}")
            return members
        if len(members) >= pool.pages:
            findings.append(f"{name} never ends")
            return members
        members.append(page)
        before, page = page, following[page]
    if previous[anchor] != before:
        findings.append(f"{name} ends at {before}, its anchor says {previous[anchor]}")
    return members
