"""A request on its way through the scheduler: the one mutable record of it."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import TYPE_CHECKING

from octavo.core.ids import RequestId
from octavo.core.output import TokenLogprob
from octavo.core.request import ANONYMOUS, Request, RequestState
from octavo.memory.keys import child_key, extend_keys, root_key
from octavo.memory.layout import NO_PAGE
from octavo.schedule.rows import NO_ROW

if TYPE_CHECKING:
    from octavo.schedule.lane import Lane
    from octavo.schedule.rows import Rows

DEADLINE_STEP_SECONDS = 0.1
"""Requests whose deadlines fall into one such step are ordered by what remains to be computed."""
MOST_PREEMPTIONS = 3
"""A request that was preempted this often is no victim any more, if there is any other way."""

Key = tuple[int, int, int, int]
"""Place of a request in its class: served tokens of its tenant, deadline, remaining, arrival."""


class Sequence:
    """Tokens, page table and progress of one request.

    `lane` is the class that it is scheduled in, which is not its `home` while it computes a prefix
    for a stricter one. `key` is its place among those who run, fixed at each admission. A `ghost`
    has ended and keeps its row until its static batch ends. `end_tokens` is the length at which its
    answer is complete, `room` the tokens that its table can hold.

    `order` is its place by arrival, which it keeps for life. `computed` tokens are in the KV cache,
    in the pages of `table`, whose windows begin at block `window_block`; the rest is pending. While
    it has a row, what steps change of it is kept in `rows`. Of `padding` tokens that are computed
    before its own, in the same pages, `padded` are done. Without `reuses` it takes no pages of the
    cache.

    `keys` are those of the full pages of `tokens`, of which the first `published_pages` of the
    table carry theirs. `tail` is the key of what the prompt has between its reusable pages and its
    last token, None if that is nothing or not shared; with `holds_tail` others may copy it from
    page `tail_page` of the table. `scored` counts the prompt positions whose log-probability is
    known or needs none (the first); `prompt_logprobs` collects them until they are sent and is None
    otherwise. Of a preempted one, `lost_tokens` were in its pages; `kept_tokens` were still there
    when it began to wait for others from the tier below, None if it did not. State changes in
    `Scheduler` only.
    """

    __slots__ = (
        "cached_tokens",
        "deadline_seconds",
        "deadline_step",
        "end_tokens",
        "first_token_sent",
        "ghost",
        "holds_tail",
        "home",
        "id",
        "kept_tokens",
        "key",
        "keys",
        "known_tokens",
        "lane",
        "layout",
        "lost_tokens",
        "marked_pages",
        "order",
        "padded",
        "padding",
        "page_tokens",
        "parked_on",
        "preemptions",
        "prompt_logprobs",
        "prompt_tokens",
        "published_pages",
        "queued_seconds",
        "request",
        "reuses",
        "root",
        "row",
        "rows",
        "scored",
        "started_step",
        "state",
        "table",
        "tail",
        "token_seconds_before",
        "window_block",
    )

    def __init__(
        self,
        request: Request,
        order: int,
        fingerprint: bytes | None,
        lane: Lane,
        rows: Rows,
        *,
        now_seconds: float,
        limit_tokens: int,
        salt: bytes = b"",
        reuses: bool = True,
    ):
        self.request = request
        self.id: RequestId = request.id
        self.lane = self.home = lane
        self.rows = rows
        self.row = NO_ROW
        self.reuses = reuses
        self.padding = self.padded = 0
        # A clock of another machine must not make a request older or younger than it can be.
        arrival = request.arrival_seconds
        arrival = min(arrival, now_seconds) if arrival > 0 else now_seconds
        self.queued_seconds = self.token_seconds_before = arrival
        self.deadline_seconds = arrival + (lane.service.first_token_seconds or 0.0)
        self.deadline_step = int(self.deadline_seconds / DEADLINE_STEP_SECONDS)
        self.key: Key = (0, 0, 0, order)
        self.preemptions = 0
        self.lost_tokens = 0
        self.kept_tokens: int | None = None
        self.started_step = 0
        self.first_token_sent = False
        self.ghost = False
        self.end_tokens = min(len(request.prompt) + request.max_new_tokens, limit_tokens)
        self.order = order
        self.layout = rows.layout
        self.page_tokens = rows.page_tokens
        self.state = RequestState.WAITING
        self.known_tokens = list(request.prompt)
        self.prompt_tokens = len(request.prompt)
        self.table: list[int] = []
        self.window_block = 0
        self.published_pages = 0
        self.marked_pages = 0
        self.parked_on: bytes | None = None
        self.cached_tokens: int | None = None
        wants_scores = request.params.prompt_logprobs is not None
        self.prompt_logprobs: list[TokenLogprob | None] | None = [None] if wants_scores else None
        self.scored = 1 if wants_scores else self.prompt_tokens
        self.root = None if fingerprint is None else root_key(fingerprint, salt)
        self.keys: list[bytes] = []
        self.extend_keys()
        self.tail = self._tail_key() if reuses else None
        self.holds_tail = False

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer so far."""
        return self.rows.fetch_tokens(self) if self.row >= 0 else self.known_tokens

    @property
    def padding_left(self) -> int:
        return self.padding - self.padded

    @property
    def position(self) -> int:
        """Where its next chunk starts."""
        return self.padded if self.padding_left else self.computed

    @property
    def token_count(self) -> int:
        """Length of `tokens`, without fetching them."""
        row = self.row
        if row >= 0 and self.rows.plain.item(row):
            return self.rows.computed.item(row) + 1
        return len(self.known_tokens)

    @property
    def computed(self) -> int:
        return self.rows.computed.item(self.row) if self.row >= 0 else 0

    @computed.setter
    def computed(self, tokens: int) -> None:
        self.rows.computed[self.row] = tokens

    @property
    def room(self) -> int:
        return self.rows.room.item(self.row) if self.row >= 0 else 0

    @property
    def token_seconds(self) -> float:
        """When its latest token came; its arrival before the first one."""
        row = self.row
        return self.rows.token_seconds.item(row) if row >= 0 else self.token_seconds_before

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to be computed at most."""
        return self.prompt_tokens + self.request.max_new_tokens - self.computed

    @property
    def pending(self) -> int:
        """Tokens that are known but not in the KV cache."""
        return self.token_count - self.computed

    @property
    def generated_tokens(self) -> int:
        return self.token_count - self.prompt_tokens

    @property
    def is_decoding(self) -> bool:
        """Nothing but the last generated token is pending; asked of rows that are not plain."""
        tokens = len(self.known_tokens)
        return tokens > self.prompt_tokens and tokens - self.rows.computed.item(self.row) == 1

    @property
    def was_preempted(self) -> bool:
        return self.state is RequestState.PREEMPTED

    @property
    def is_exposed(self) -> bool:
        """It may be preempted."""
        return not self.ghost and self.preemptions < MOST_PREEMPTIONS

    @property
    def is_scoring(self) -> bool:
        return self.scored < self.prompt_tokens

    @property
    def reusable_pages(self) -> int:
        """Most pages that may come from the cache.

        One token at least is computed, for its logits; so is every position whose logits score a
        prompt token that has no log-probability yet.
        """
        if not self.reuses:
            return 0
        tokens = self.scored if self.scored < self.prompt_tokens else self.token_count
        return (tokens - 1) // self.page_tokens

    @property
    def reusable_keys(self) -> list[bytes]:
        """The keys of those pages."""
        return self.keys[: self.reusable_pages] if self.keys else []

    @property
    def tail_page(self) -> int:
        """Place in the table of the page with the prompt's last token."""
        return (self.prompt_tokens - 1) // self.page_tokens

    def tail_after(self, pages: int) -> bytes | None:
        """The key of its tail, if it could use that, having so many pages before."""
        return self.tail if pages == self.tail_page and not self.is_scoring else None

    def _tail_key(self) -> bytes | None:
        start, end = self.tail_page * self.page_tokens, self.prompt_tokens - 1
        if self.root is None or start == end:
            return None
        parent = self.keys[self.tail_page - 1] if self.tail_page else self.root
        return child_key(parent, self.known_tokens[start:end])

    def way_back(self, found_tokens: int) -> str:
        """What became of the pages of a preempted request that finds so many tokens computed."""
        if self.kept_tokens is not None and found_tokens > self.kept_tokens:
            return "swap"
        whole_tokens = self.lost_tokens - self.lost_tokens % self.page_tokens
        return "recompute" if found_tokens < whole_tokens else "keep"

    def needs_scores(self, position: int) -> bool:
        """The logits at `position` score a prompt token that has no log-probability yet."""
        return self.is_scoring and position + 1 >= self.scored

    def chunk_limit(self, start: int) -> int:
        """Most tokens of a chunk from `start`: it stops where scoring has to begin again."""
        if self.is_scoring and not self.needs_scores(start):
            return self.scored - 1 - start
        return self.token_count - start

    @property
    def blocks(self) -> int:
        """Length of the table in blocks."""
        return len(self.table) // self.layout.groups

    @property
    def held_pages(self) -> int:
        """Pages of the table that are there."""
        return len(self.table) - self.window_block * self.layout.windowed

    @property
    def pages(self) -> Ordered[int]:
        """The pages that are there, in the order in which tables are released."""
        return self.layout.in_order(self.table, self.window_block)

    def extend_keys(self) -> None:
        """Compute the keys of pages that `known_tokens` fill, if pages are shared."""
        if self.root is None:
            return
        if len(self.known_tokens) >= (len(self.keys) + 1) * self.page_tokens:
            extend_keys(self.keys, self.root, self.known_tokens, self.page_tokens)

    def parent_key(self, page: int) -> bytes | None:
        return self.keys[page - 1] if page else None

    def sit_down(self, row: int, reused: Ordered[int], computed: int) -> int:
        """Get a row and a table with `computed` tokens; how many blocks it has."""
        self.rows.seat(self, row, computed)
        if not reused:
            return 0
        self.add_pages(reused)
        blocks = self.published_pages = self.blocks
        self.window_block = self.layout.first_block(blocks * self.page_tokens)
        return blocks

    def leave(self) -> Ordered[int]:
        """Forget row and pages; returns the pages to be released."""
        pages, self.table = self.pages, []
        self.published_pages = self.window_block = 0
        self.padding = self.padded = 0
        self.rows.vacate(self)
        return pages

    def add_pages(self, pages: Ordered[int]) -> None:
        """Append pages to the table."""
        self.table += pages
        self.rows.room[self.row] = self.blocks * self.page_tokens

    def written_parts(self) -> list[tuple[Ordered[int], int]]:
        """The pages of each group, and how many of their tokens are written."""
        groups, before = self.layout.groups, self.window_block
        parts: list[tuple[Ordered[int], int]] = [(self.table[::groups], self.computed)]
        for group in range(1, groups):
            pages = self.table[before * groups + group :: groups]
            parts.append((pages, self.computed - before * self.page_tokens))
        return parts

    def move_window(self) -> list[int]:
        """Take pages out of the table that have left the window; returns them.

        The window is that behind the last full page, where it would go on after a preemption.
        """
        layout = self.layout
        full_tokens = self.computed // self.page_tokens * self.page_tokens
        first = min(layout.first_block(full_tokens), self.blocks)
        left: list[int] = []
        for block in range(self.window_block, first):
            start = block * layout.groups + 1
            left += self.table[start : start + layout.windowed]
            self.table[start : start + layout.windowed] = [NO_PAGE] * layout.windowed
        self.window_block = max(first, self.window_block)
        return left


def tenant_salt(request: Request) -> bytes:
    """What separates the pages of a tenant, and of a salt within it, from all others."""
    tenant = b"" if request.tenant == ANONYMOUS else request.tenant.encode()
    return len(tenant).to_bytes(4, "little") + tenant + request.cache_salt
