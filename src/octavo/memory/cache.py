"""The page pool and the prefix index as one: what the scheduler talks to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from octavo.core.errors import CapacityError, SettingsError
from octavo.memory import _pages
from octavo.memory.audit import audit_index, audit_pool
from octavo.memory.misses import MissHistory, MissReason


class PageCache(_pages.PageCache):
    """Pages with sharing by content.

    Two rules keep eviction from ever taking a parent before its child: a page table is released
    from its end, and a key is indexed at a held page while anybody holds a page of that key. So the
    keys held by a table are a held prefix, and among cached pages children are always older.

    With several retention `levels` a page is in the level of its last holder (None: the highest) or
    a higher one, and never in a lower one than a page that continues it.

    With `keeps_pages` (lazy reclaim) a page that nobody holds any more stays findable until its
    memory is wanted; without (eager reclaim) it is forgotten at once.

    `share` and `look_up` go together: only what was found can be shared. `publish_run` publishes
    pages `first` to `end` of a table, `publish` a single one, and says whether it is the page that
    is found. Wrong moves, such as releasing what is not held, raise ValueError.
    """

    def __init__(
        self, pages: int, *, slab_pages: int = 64, keeps_pages: bool = True, levels: int = 1
    ):
        for name, value in (("pages", pages), ("slab_pages", slab_pages)):
            if value < 1:
                raise SettingsError(f"must be at least 1 page, not {value}", field=name)
        super().__init__(pages, slab_pages, keeps_pages, levels)
        self.misses = MissHistory()

    def allocate(self) -> int:
        """Hold the best free page, else the least recently used cached one.

        Raises:
            CapacityError: every page is held.
        """
        page = super().allocate()
        if page is None:
            raise CapacityError(f"all {self.pool.pages} pages are held", field="pages")
        return page

    def explain_miss(
        self, key: bytes, root: bytes, first_page: tuple[int, ...] | None
    ) -> MissReason:
        """Why `key` was not found; `first_page` are the prompt's first tokens if that is its page.

        A prompt that is asked about is remembered under its root.
        """
        return self.misses.explain(root, first_page, was_given_up=self.was_given_up(key))

    def audit(self, tables: Iterable[Sequence[int]]) -> list[str]:
        """Findings against the invariants, given every page table; empty when all hold."""
        counts = Counter(page for table in tables for page in table)
        return audit_pool(self.pool, counts) + audit_index(self.index, self.pool)

    def repair(self, tables: Iterable[Sequence[int]]) -> None:
        """Rebuild from the page tables alone: they keep their pages, nothing is findable."""
        counts = Counter(page for table in tables for page in table)
        self.rebuild([counts[page] for page in range(self.pool.pages)])
