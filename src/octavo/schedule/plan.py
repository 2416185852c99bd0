"""A step as a value: what `plan()` returns, `commit()` applies and the executor runs."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered

import msgspec

from octavo.core.ids import RequestId
from octavo.core.output import TokenLogprob
from octavo.core.request import Request

NO_TOKEN = -1


class Admission(msgspec.Struct, frozen=True, gc=False):
    """A request takes a permanent row of the executor.

    `generated` holds the tokens it had produced before it was preempted (empty at first);
    `cached_tokens` of its prompt + generated tokens are already in the pages of its first
    `RowPlan`. `padding` tokens are computed before its own, in rows marked so.
    """

    row: int
    request: Request
    generated: tuple[int, ...]
    cached_tokens: int
    padding: int = 0


class Preemption(msgspec.Struct, frozen=True, gc=False):
    """A running request gives its row and pages back and waits again."""

    row: int
    request_id: RequestId
    reason: str = "out of pages"


class RowPlan(msgspec.Struct, frozen=True, gc=False):
    """The part of one request in this step.

    Tokens `tokens` are computed at positions `start` … `start + len(tokens) - 1`; everything before
    `start` is in the KV cache. `new_pages` are appended to the row's page table, a page of
    each cache group after the other, at block `table_start` (0 for a row just admitted, where they
    include reused pages, and `NO_PAGE` where a group needs none). `wants_token`: the
    last position's logits are sampled. `score_prompt`: prompt log-probabilities of the positions
    computed here are wanted. `is_padding`: the tokens are computed for their time only; the
    request's own overwrite them later.
    """

    row: int
    request_id: RequestId
    start: int
    tokens: tuple[int, ...]
    table_start: int
    new_pages: tuple[int, ...]
    wants_token: bool
    score_prompt: bool = False
    is_padding: bool = False


class DecodeRows(msgspec.Struct, frozen=True, eq=False):
    """Rows that compute their last token and sample the next one, as columns of equal length.

    Place i stands for a `RowPlan` with the one token `tokens[i]`. `new_pages` are pairs of a place
    and the pages, one a cache group, that its row gets; most get none.
    """

    rows: list[int]
    request_ids: tuple[RequestId, ...]
    starts: list[int]
    tokens: list[int]
    table_starts: list[int]
    new_pages: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def __len__(self) -> int:
        return len(self.request_ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecodeRows) and self.row_plans() == other.row_plans()

    def __hash__(self) -> int:
        return hash(self.request_ids)

    def row_plans(self, places: Iterable[int] | None = None) -> list[RowPlan]:
        """The same as single rows, all of them or those at `places`."""
        pages = dict(self.new_pages)
        return [
            RowPlan(
                row=self.rows[place],
                request_id=self.request_ids[place],
                start=self.starts[place],
                tokens=(self.tokens[place],),
                table_start=self.table_starts[place],
                new_pages=pages.get(place, ()),
                wants_token=True,
            )
            for place in (range(len(self)) if places is None else places)
        ]


NO_DECODES = DecodeRows([], (), [], [], [])


class PrefixWait(msgspec.Struct, frozen=True, gc=False):
    """A waiting request sits aside until `producer_id` has computed the page of `key`."""

    request_id: RequestId
    producer_id: RequestId
    key: bytes


class StepPlan(msgspec.Struct, frozen=True):
    """Everything one step does: closed rows, preemptions, admissions, copies, rows, in this order.

    `decodes` and `chunks` are its rows: those that compute one token and sample the next, and all
    others. `closed_rows` are rows whose requests ended since the last committed plan: the executor
    forgets them first, because an admission of the same plan may take such a row. `copies` are
    pages whose bytes are wanted in another page, (from, to), all before anything is computed.
    `waits` concern the scheduler only, as is `predicted_seconds`, the time the step is expected to
    take.
    """

    number: int
    chunks: tuple[RowPlan, ...] = ()
    admissions: tuple[Admission, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    closed_rows: tuple[int, ...] = ()
    waits: tuple[PrefixWait, ...] = ()
    predicted_seconds: float = 0.0
    decodes: DecodeRows = NO_DECODES
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> tuple[RowPlan, ...]:
        """All rows one by one, which decode first."""
        return (*self.decodes.row_plans(), *self.chunks)

    @property
    def row_count(self) -> int:
        return len(self.decodes.rows) + len(self.chunks)

    @property
    def token_count(self) -> int:
        return len(self.decodes.rows) + sum([len(row.tokens) for row in self.chunks])

    @property
    def is_empty(self) -> bool:
        return not self.row_count


class RowResult(msgspec.Struct, frozen=True, gc=False):
    """What a row produced: a span of accepted tokens (one, or none mid-prefill).

    `prompt_logprobs` holds one entry for each scored prompt position, the first of which is
    position `start + 1` of the row's plan. `error` says why this row alone failed; the row then
    has no tokens, and its request ends with `FinishReason.ERROR`.
    """

    row: int
    request_id: RequestId
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None


class StepResult(msgspec.Struct, frozen=True):
    """Result of one plan; `native_seconds` is the share spent in kernels.

    `rows` has a result for each of the plan's rows. Those of `plan.decodes` may be left out if
    `decoded` is there instead, with the next token of each in order, `NO_TOKEN` for those that have
    something else to say in `rows`; `decoded_logprobs` is then empty or as long. A row without
    any result has not happened.
    """

    number: int
    rows: tuple[RowResult, ...]
    elapsed_seconds: float
    native_seconds: float = 0.0
    decoded: Ordered[int] = ()
    decoded_logprobs: Ordered[tuple[TokenLogprob, ...] | None] = ()
