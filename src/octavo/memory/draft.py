"""What a plan would do to the pages, worked out beside them without touching them."""

from __future__ import annotations

from octavo.core.errors import CapacityError
from octavo.memory import _pages


class PageDraft(_pages.PageDraft):
    """A scratch view of a `PageCache`; it costs what the plan changes, not the size of the pool.

    `take` gives free pages first, then cached ones, then those that were released in this draft;
    check `available` first, it raises IndexError when nothing is left. `release` and `look_up` do
    as those of `PageCache`, but what the draft has taken is not found. `unheld` counts the pages
    that would stop being available if they were shared, `freed` those that would become available
    if each of `held` lost a holder (a page comes once for each), without those of `wanted`.
    `give_back` undoes takes; the pages go first next time, in the order in which they came, and
    `passed_over` are those that did not: as pages behind them may have been taken, their content
    must go too, children before parents.

    Committing the same shares, then releases, then takes on the cache is always possible. The
    cache must not change while pages are taken from a draft (RuntimeError).
    """

    def take_run(self, count: int) -> list[int]:
        """Take the run that `find_run` finds; a draft takes runs or single pages, not both.

        Raises:
            CapacityError: there is none.
        """
        pages = super().take_run(count)
        if pages is None:
            raise CapacityError(f"no run of {count} pages is free", field="pages")
        return pages
