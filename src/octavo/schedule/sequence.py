"""A request on its way through the scheduler: the one mutable record of it."""

from __future__ import annotations

from octavo.core.ids import RequestId
from octavo.core.output import TokenLogprob
from octavo.core.request import Request, RequestState
from octavo.memory.keys import extend_keys, root_key

NO_ROW = -1


class Sequence:
    """Tokens, page table and progress of one request.

    `order` is its place by arrival, which it keeps for life. `computed` tokens are in the KV cache,
    in the pages of `table`; the rest is pending. `keys` are those of the full pages of `tokens`, of
    which the first `published_pages` of the table carry theirs. `scored` counts the prompt
    positions whose log-probability is known or needs none (the first); `prompt_logprobs` collects
    them until they are sent and is None otherwise. State changes in `Scheduler` only.
    """

    __slots__ = (
        "cached_tokens",
        "computed",
        "keys",
        "marked_pages",
        "order",
        "page_tokens",
        "parked_on",
        "prompt_logprobs",
        "prompt_tokens",
        "published_pages",
        "request",
        "root",
        "row",
        "scored",
        "state",
        "table",
        "tokens",
    )

    def __init__(self, request: Request, order: int, page_tokens: int, fingerprint: bytes):
        self.request = request
        self.order = order
        self.page_tokens = page_tokens
        self.state = RequestState.WAITING
        self.tokens = list(request.prompt)
        self.prompt_tokens = len(request.prompt)
        self.computed = 0
        self.table: list[int] = []
        self.published_pages = 0
        self.marked_pages = 0
        self.parked_on: bytes | None = None
        self.row = NO_ROW
        self.cached_tokens: int | None = None
        wants_scores = request.params.prompt_logprobs is not None
        self.prompt_logprobs: list[TokenLogprob | None] | None = [None] if wants_scores else None
        self.scored = 1 if wants_scores else self.prompt_tokens
        self.root = root_key(fingerprint, request.cache_salt)
        self.keys: list[bytes] = []
        self.extend_keys()

    @property
    def id(self) -> RequestId:
        return self.request.id

    @property
    def pending(self) -> int:
        """Tokens that are known but not in the KV cache."""
        return len(self.tokens) - self.computed

    @property
    def generated_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def is_decoding(self) -> bool:
        """Nothing but the last generated token is pending."""
        tokens = len(self.tokens)
        return tokens - self.computed == 1 and tokens > self.prompt_tokens

    @property
    def was_preempted(self) -> bool:
        return self.state is RequestState.PREEMPTED

    @property
    def is_scoring(self) -> bool:
        return self.scored < self.prompt_tokens

    @property
    def reusable_pages(self) -> int:
        """Most pages that may come from the cache.

        One token at least is computed, for its logits; so is every position whose logits score a
        prompt token that has no log-probability yet.
        """
        tokens = self.scored - 1 if self.is_scoring else len(self.tokens) - 1
        return tokens // self.page_tokens

    def needs_scores(self, position: int) -> bool:
        """The logits at `position` score a prompt token that has no log-probability yet."""
        return self.is_scoring and position + 1 >= self.scored

    def chunk_limit(self, start: int) -> int:
        """Most tokens of a chunk from `start`: it stops where scoring has to begin again."""
        if self.is_scoring and not self.needs_scores(start):
            return self.scored - 1 - start
        return len(self.tokens) - start

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens take."""
        return -(-tokens // self.page_tokens)

    def extend_keys(self) -> None:
        """Compute the keys of pages that have become full."""
        if len(self.tokens) >= (len(self.keys) + 1) * self.page_tokens:
            extend_keys(self.keys, self.root, self.tokens, self.page_tokens)

    def parent_key(self, page: int) -> bytes | None:
        return self.keys[page - 1] if page else None

    def leave(self) -> list[int]:
        """Forget row and pages; returns the page table to be released."""
        table, self.table = self.table, []
        self.row = NO_ROW
        self.computed = 0
        self.published_pages = 0
        return table
