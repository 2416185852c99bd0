"""How much of the memory that unfinished requests hold has nothing written in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waste:
    """Unwritten part of the held pages; cached and free pages do not count."""

    held_pages: int
    unwritten_tokens: int
    page_tokens: int

    @property
    def share(self) -> float:
        """Unwritten tokens ÷ tokens the held pages can take, 0 when nothing is held."""
        if not self.held_pages:
            return 0.0
        return self.unwritten_tokens / (self.held_pages * self.page_tokens)


def measure_waste(tables: Iterable[tuple[Sequence[int], int]], page_tokens: int) -> Waste:
    """Measure page tables, each with the number of its tokens that are written.

    A page that several tables share counts once: shared pages are full, so nothing unwritten in
    them is counted twice either.
    """
    held: set[int] = set()
    unwritten = 0
    for table, written_tokens in tables:
        held.update(table)
        unwritten += len(table) * page_tokens - written_tokens
    return Waste(len(held), unwritten, page_tokens)
