"""What a step brought, taken row by row; the plain decode row is the short way."""

from __future__ import annotations

from octavo.core.errors import EngineError
from octavo.core.output import EngineOutput
from octavo.core.request import RequestState
from octavo.schedule.accept import accept_tokens, collect_scores
from octavo.schedule.lane import Lane
from octavo.schedule.ledger import Ledger
from octavo.schedule.plan import RowPlan, RowResult, StepPlan, StepResult
from octavo.schedule.sequence import Sequence

_INFINITE = float("inf")


def take_results(
    ledger: Ledger, plan: StepPlan, sequences: list[Sequence], result: StepResult, now: float
) -> list[EngineOutput]:
    """Bring requests forward by a step; `sequences` are those of the plan's rows, in order.

    Raises:
        ValueError: a row of the result is not in the plan; then nothing has changed.
    """
    rows, results = plan.rows, result.rows
    # A row belongs to one request in a step, so its number says it all.
    if [row.row for row in rows] != [news.row for news in results]:
        rows, sequences = _matched(plan, sequences, results)
    outputs: list[EngineOutput] = []
    add = outputs.append
    lane: Lane | None = None
    limit = _INFINITE
    gaps = missed = 0
    for sequence, row, news in zip(sequences, rows, results, strict=True):
        # Who ended or lost its row in the meantime has no row any more.
        if sequence.row != news.row:
            continue
        if sequence.lane is not lane:
            if lane is not None:
                _count(ledger, lane, gaps, missed)
            lane, gaps, missed = sequence.lane, 0, 0
            limit = lane.service.inter_token_seconds or _INFINITE
        tokens = news.tokens
        length = row.start + 2
        if (
            sequence.is_plain
            and length < sequence.end_tokens
            and len(tokens) == 1
            and tokens[0] not in sequence.stop_ids
            and news.error is None
        ):
            sequence.tokens.append(tokens[0])
            sequence.computed = computed = length - 1
            gaps += 1
            if now - sequence.token_seconds > limit:
                missed += 1
            sequence.token_seconds = now
            if computed >= sequence.room:
                _fill_page(ledger, sequence)
            add(EngineOutput(sequence.id, tokens, news.logprobs, None, sequence.cached_tokens or 0))
            continue
        ledger.counters.computed_tokens += len(row.tokens)
        output = _advance(ledger, sequence, row, news, now)
        if output is not None:
            add(output)
    if lane is not None:
        _count(ledger, lane, gaps, missed)
    return outputs


def _matched(
    plan: StepPlan, sequences: list[Sequence], results: tuple[RowResult, ...]
) -> tuple[tuple[RowPlan, ...], list[Sequence]]:
    """Rows and sequences of results that are not one for each row of the plan."""
    known = {
        (row.row, row.request_id): (row, sequence)
        for row, sequence in zip(plan.rows, sequences, strict=True)
    }
    for news in results:
        if (news.row, news.request_id) not in known:
            raise ValueError(f"row {news.row} is not part of step {plan.number}")
    pairs = [known[news.row, news.request_id] for news in results]
    return tuple(row for row, _ in pairs), [sequence for _, sequence in pairs]


def _count(ledger: Ledger, lane: Lane, decoded: int, missed: int) -> None:
    ledger.counters.computed_tokens += decoded
    lane.past_tokens += decoded
    lane.counters.gaps += decoded
    lane.counters.gaps_missed += missed


def _fill_page(ledger: Ledger, sequence: Sequence) -> None:
    ledger.publish(sequence)
    sequence.lane.full[sequence.order] = sequence
    sequence.lane.queue.charge(sequence.request.tenant, sequence.page_tokens)


def _advance(
    ledger: Ledger, sequence: Sequence, row: RowPlan, news: RowResult, now: float
) -> EngineOutput | None:
    """Any row but a plain decode one."""
    if sequence.ghost:
        _advance_ghost(ledger, sequence, row, news, now)
        return None
    if news.error is not None:
        return ledger.failed(sequence, news.error, now)
    try:
        prompt_logprobs = collect_scores(sequence, row, news)
    except EngineError as error:
        return ledger.failed(sequence, str(error), now)
    was_decoding = sequence.order in sequence.lane.decoding
    ledger.counters.chunks += not was_decoding
    before = sequence.computed
    sequence.computed = row.start + len(row.tokens)
    ledger.publish(sequence)
    tokens, reason = accept_tokens(sequence, news, ledger.limit_tokens)
    _measure(sequence, len(tokens), now)
    _settle(ledger, sequence, was_decoding, sequence.computed - before)
    if reason is not None:
        ledger.end(sequence, RequestState.FINISHED, reason.value, now)
    if not tokens and prompt_logprobs is None and reason is None:
        return None
    return EngineOutput(
        request_id=sequence.id,
        token_ids=tokens,
        logprobs=None if news.logprobs is None else news.logprobs[: len(tokens)],
        prompt_logprobs=prompt_logprobs,
        cached_tokens=sequence.cached_tokens or 0,
        finish_reason=reason,
    )


def _settle(ledger: Ledger, sequence: Sequence, was_decoding: bool, computed: int) -> None:
    lane = sequence.lane
    if not was_decoding:
        lane.settle(sequence)
    else:
        lane.past_tokens += computed
        if sequence.is_decoding:
            lane.settle_page(sequence)
        else:
            lane.unsettle(sequence)
    ledger.come_home(sequence)


def _measure(sequence: Sequence, tokens: int, now: float) -> None:
    if not tokens:
        return
    counters = sequence.home.counters
    service = sequence.home.service
    if sequence.first_token_sent:
        counters.gaps += tokens
        limit = service.inter_token_seconds or _INFINITE
        counters.gaps_missed += now - sequence.token_seconds > limit
    else:
        sequence.first_token_sent = True
        counters.first_tokens += 1
        target = service.first_token_seconds or _INFINITE
        counters.first_tokens_kept += now - sequence.queued_seconds <= target
    sequence.token_seconds = now


def _advance_ghost(
    ledger: Ledger, ghost: Sequence, row: RowPlan, news: RowResult, now: float
) -> None:
    """A finished member of a static batch computes on until its batch or its memory ends."""
    if ghost.row < 0:
        return
    if news.error is not None or len(ghost.tokens) + 1 >= ledger.limit_tokens or not news.tokens:
        ledger.close_ghost(ghost, now)
        return
    was_decoding = ghost.order in ghost.lane.decoding
    before = ghost.computed
    ghost.tokens.append(news.tokens[0])
    ghost.computed = row.start + len(row.tokens)
    ledger.publish(ghost)
    ghost.token_seconds = now
    _settle(ledger, ghost, was_decoding, ghost.computed - before)
