"""A step as a value: what `plan()` returns, `commit()` applies and the executor runs."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from octavo.core.ids import RequestId
from octavo.core.output import TokenLogprob
from octavo.core.request import Request


@dataclass(frozen=True, slots=True)
class Admission:
    """A request takes a permanent row of the executor.

    `generated` holds the tokens it had produced before it was preempted (empty at first);
    `cached_tokens` of its prompt + generated tokens are already in the pages of its first
    `RowPlan`.
    """

    row: int
    request: Request
    generated: tuple[int, ...]
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Preemption:
    """A running request gives its row and pages back and waits again."""

    row: int
    request_id: RequestId
    reason: str = "out of pages"
    mode: str = "recompute"


class RowPlan(msgspec.Struct, frozen=True, gc=False):
    """The part of one request in this step.

    Tokens `tokens` are computed at positions `start` … `start + len(tokens) - 1`; everything before
    `start` is in the KV cache. `new_pages` are appended to the row's page table at index
    `table_start` (0 for a row just admitted, where they include reused pages). `wants_token`: the
    last position's logits are sampled. `score_prompt`: prompt log-probabilities of the positions
    computed here are wanted.
    """

    row: int
    request_id: RequestId
    start: int
    tokens: tuple[int, ...]
    table_start: int
    new_pages: tuple[int, ...]
    wants_token: bool
    score_prompt: bool = False


@dataclass(frozen=True, slots=True)
class PrefixWait:
    """A waiting request sits aside until `producer_id` has computed the page of `key`."""

    request_id: RequestId
    producer_id: RequestId
    key: bytes


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything one step does, in this order: closed rows, preemptions, admissions, rows.

    `closed_rows` are rows whose requests ended since the last committed plan: the executor forgets
    them first, because an admission of the same plan may take such a row. `waits` concern the
    scheduler only, as is `predicted_seconds`, the time the step is expected to take.
    """

    number: int
    rows: tuple[RowPlan, ...] = ()
    admissions: tuple[Admission, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    closed_rows: tuple[int, ...] = ()
    waits: tuple[PrefixWait, ...] = ()
    predicted_seconds: float = 0.0

    @property
    def token_count(self) -> int:
        return sum(len(row.tokens) for row in self.rows)

    @property
    def is_empty(self) -> bool:
        return not self.rows


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


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one plan, rows in plan order; `native_seconds` is the share spent in kernels."""

    number: int
    rows: tuple[RowResult, ...]
    elapsed_seconds: float
    native_seconds: float = 0.0
