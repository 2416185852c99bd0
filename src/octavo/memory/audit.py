"""Proofs that pool and index are sound; they read everything and change nothing."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.memory.pool import CACHED, FREE, HELD, PagePool
from octavo.memory.prefix import NONE, PrefixIndex


def audit_pool(pool: PagePool, held: Mapping[int, int]) -> list[str]:
    """Check lists, counts and states; `held` gives how many tables name each page."""
    findings: list[str] = []
    lists = {CACHED: _cached(pool, findings)}
    free: list[int] = []
    for slab in range(pool.slabs):
        name = f"free list of slab {slab}"
        members = _members(pool, pool.slab_anchor(slab), name, findings)
        if len(members) != pool.slab_free[slab]:
            findings.append(f"{name} has {len(members)} pages, counted {pool.slab_free[slab]}")
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
    pool: PagePool, free: set[int], cached: set[int], held: Mapping[int, int]
) -> list[str]:
    findings = []
    for page in range(pool.pages):
        refs, tables, state = pool.refs[page], held.get(page, 0), pool.state[page]
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


def _audit_buckets(pool: PagePool) -> list[str]:
    findings = []
    seen: dict[int, int] = {}
    for bucket in range(pool.slab_pages + 2):
        anchor = pool.slabs + bucket
        slab = pool.slab_next[anchor]
        filled = slab != anchor
        for _ in range(pool.slabs + 1):
            if slab == anchor:
                break
            if not 0 <= slab < pool.slabs or slab in seen:
                findings.append(f"bucket {bucket} of slabs is damaged at {slab}")
                break
            seen[slab] = bucket
            slab = pool.slab_next[slab]
        if filled != bool(pool.bucket_mask >> bucket & 1):
            findings.append(f"bucket mask is wrong about bucket {bucket}")
    findings.extend(
        f"slab {slab} with {pool.slab_free[slab]} free pages is in bucket {seen.get(slab)}"
        for slab in range(pool.slabs)
        if seen.get(slab) != pool.bucket_of(slab)
    )
    findings.extend(
        f"slab {slab} is in use and not backed"
        for slab in range(pool.slabs)
        if pool.slab_free[slab] < pool.slab_size(slab) and not pool.backed[slab]
    )
    backed = sum(pool.slab_size(slab) for slab in range(pool.slabs) if pool.backed[slab])
    if backed != pool.backed_pages:
        findings.append(f"{backed} pages are backed, counted {pool.backed_pages}")
    return findings


def audit_index(index: PrefixIndex, pool: PagePool) -> list[str]:
    """Check keys against pages, and that children are given up before their parents."""
    findings = []
    # Not `cached_pages`, which would never end on a damaged list.
    cached = _cached(pool, [])
    position = {page: place for place, page in enumerate(cached)}
    children = dict.fromkeys(index.ids.values(), 0)
    for key, identity in index.ids.items():
        page, parent = index.page[identity], index.parent[identity]
        if index.keys[identity] != key or index.hash_id[page] != identity:
            findings.append(f"key id {identity} and page {page} do not name each other")
        if pool.state[page] == FREE:
            findings.append(f"page {page} of key id {identity} is free")
        if parent == NONE:
            continue
        if parent not in children:
            findings.append(f"key id {identity} has a parent {parent} that is not published")
            continue
        children[parent] += 1
        parent_page = index.page[parent]
        if pool.state[parent_page] == HELD:
            continue
        if position.get(page, pool.pages) > position.get(parent_page, NONE):
            findings.append(f"page {parent_page} would be evicted before its child {page}")
    findings.extend(
        f"key id {identity} has {count} children, counted {index.children[identity]}"
        for identity, count in children.items()
        if index.children[identity] != count
    )
    return findings + _audit_pages(index, pool)


def _audit_pages(index: PrefixIndex, pool: PagePool) -> list[str]:
    findings = []
    for page in range(pool.pages):
        identity, state = index.hash_id[page], pool.state[page]
        if state == FREE and identity != NONE:
            findings.append(f"free page {page} has key id {identity}")
        if state == CACHED and not index.is_indexed(page):
            findings.append(f"cached page {page} cannot be found")
        twins = index.twins.get(identity, [])
        if state == HELD and identity != NONE and not index.is_indexed(page) and page not in twins:
            findings.append(f"held page {page} has key id {identity} but is not its twin")
    for identity, twins in index.twins.items():
        if not twins or identity not in index.ids.values():
            findings.append(f"twins {twins} of key id {identity} are left over")
            continue
        findings.extend(
            f"page {page} shares key id {identity} but is not held"
            for page in (*twins, index.page[identity])
            if pool.state[page] != HELD or index.hash_id[page] != identity
        )
    return findings


def _cached(pool: PagePool, findings: list[str]) -> list[int]:
    """Cached pages in the order of eviction."""
    return [
        page
        for level in range(pool.levels)
        for page in _members(pool, pool.cached_anchor(level), "cached list", findings)
    ]


def _members(pool: PagePool, anchor: int, name: str, findings: list[str]) -> list[int]:
    """Pages of one list, stopping at the first damaged link."""
    members: list[int] = []
    before, page = anchor, pool.next[anchor]
    while page != anchor:
        if page < 0 or page >= pool.pages or pool.prev[page] != before:
            findings.append(f"{name} is damaged between {before} and {page}")
            return members
        if len(members) >= pool.pages:
            findings.append(f"{name} never ends")
            return members
        members.append(page)
        before, page = page, pool.next[page]
    if pool.prev[anchor] != before:
        findings.append(f"{name} ends at {before}, its anchor says {pool.prev[anchor]}")
    return members
