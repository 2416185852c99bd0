"""Page tables of models whose layers form cache groups: what they hold and what is looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from octavo.memory.keys import group_key

NO_PAGE = -1
"""Stands in a table where a group has no page, because its layers do not see those tokens."""


class PageFinder(Protocol):
    """Where pages are looked up: the cache, a draft, what lies below."""

    def look_up(self, keys: Sequence[bytes]) -> Sequence[int]:
        """One page for each of the longest run of `keys` that is there."""
        ...


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The shape of page tables; one group is a plain table.

    A *block* is what `page_tokens` tokens take: a page of each of `groups`. A table is flat, block
    after block. Layers of group 0 see all tokens, those of the others the last `window_tokens`, and
    they keep no blocks before. `step_tokens` are the most that a request computes in one step.

    There are `windowed` such groups, which hold `span_blocks` blocks at most while a step is
    computed: if it starts with the last token of a page.
    """

    page_tokens: int
    groups: int = 1
    window_tokens: int = 0
    step_tokens: int = 0
    windowed: int = field(init=False)
    span_blocks: int = field(init=False)

    def __post_init__(self) -> None:
        before = -(-(self.window_tokens - 1) // self.page_tokens)
        span_blocks = before + 2 + (self.step_tokens - 2) // self.page_tokens
        object.__setattr__(self, "windowed", self.groups - 1)
        object.__setattr__(self, "span_blocks", span_blocks)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens take."""
        return -(-tokens // self.page_tokens)

    def first_block(self, tokens: int) -> int:
        """The first block that windows need when `tokens` tokens are computed."""
        return max(tokens + 1 - self.window_tokens, 0) // self.page_tokens if self.windowed else 0

    def most_pages(self, tokens: int) -> int:
        """Pages that a request of so many tokens holds at most."""
        return self.pages_to_come(self.blocks_for(tokens), 0)

    def pages_to_come(self, blocks: int, in_window: int) -> int:
        """Most pages that `blocks` more take, where windows hold `in_window` blocks already."""
        if not self.windowed:
            return blocks
        return blocks + self.windowed * min(blocks, max(self.span_blocks - in_window, 0))

    def most_tokens(self, pages: int) -> int:
        """Tokens of the longest request that so many pages hold."""
        beyond_span = pages - self.windowed * self.span_blocks
        return max(min(pages // self.groups, self.span_blocks), beyond_span) * self.page_tokens

    def held(self, pages: Sequence[int]) -> Sequence[int]:
        """The pages that are there in a part of a table."""
        return pages if not self.windowed else [page for page in pages if page != NO_PAGE]

    def in_order(self, table: Sequence[int], first_block: int) -> Sequence[int]:
        """The pages of a table whose windows begin at `first_block`, group after group.

        Given up from its end, that leaves the pages of group 0 in the order of their keys.
        """
        if not self.windowed:
            return table
        start, groups = first_block * self.groups, self.groups
        pages = list(table[::groups])
        for group in range(1, groups):
            pages += table[start + group :: groups]
        return pages

    def window_keys(self, keys: Sequence[bytes], blocks: int) -> list[bytes]:
        """Keys of the pages in windows behind `blocks` blocks, of which `keys` are those of all."""
        first = self.first_block(blocks * self.page_tokens)
        return [key for block in range(first, blocks) for key in self.block_keys(keys[block])]

    def block_keys(self, key: bytes) -> list[bytes]:
        """Keys of the windowed groups' pages of a block."""
        return [group_key(key, group) for group in range(1, self.groups)]

    def look_up(self, finder: PageFinder, keys: Sequence[bytes]) -> list[int]:
        """The table of the longest run of blocks that a request can go on from.

        Behind the run, group 0 has a page for each block, the others for those in the window.
        """
        full = list(finder.look_up(keys))
        if not self.windowed:
            return full
        blocks = len(full)
        found: dict[int, Sequence[int]] = {}
        block = blocks - 1
        while block >= self.first_block(blocks * self.page_tokens):
            found[block] = finder.look_up(self.block_keys(keys[block]))
            if len(found[block]) < self.windowed:
                blocks = block
            block -= 1
        table: list[int] = []
        nothing = [NO_PAGE] * self.windowed
        first = self.first_block(blocks * self.page_tokens)
        for block in range(blocks):
            table.append(full[block])
            table += found[block] if block >= first else nothing
        return table
