"""What a step brought: plain rows all at once, those to which something happens one by one."""

from __future__ import annotations

from octavo.core.errors import EngineError
from octavo.core.output import EngineOutput, TokenLogprob
from octavo.core.request import RequestState
from octavo.schedule.accept import accept_tokens, collect_scores
from octavo.schedule.lane import Lane
from octavo.schedule.ledger import Ledger
from octavo.schedule.plan import NO_TOKEN, RowPlan, RowResult, StepPlan, StepResult
from octavo.schedule.rows import NO_LANE
from octavo.schedule.sequence import Sequence

_INFINITE = float("inf")

_Single = tuple[RowPlan, RowResult]
_Logprobs = tuple[TokenLogprob, ...] | None


def take_results(
    ledger: Ledger, plan: StepPlan, result: StepResult, now: float
) -> list[EngineOutput]:
    """Bring requests forward by a step; the news of those that only decode come first.

    Raises:
        ValueError: a row of the result is not in the plan; then nothing has changed.
    """
    tokens, logprobs, singles = _sorted_out(plan, result)
    outputs = _take_plain(ledger, plan, tokens, logprobs, singles, now)
    for row, news in singles:
        sequence = ledger.rows.sequences[row.row]
        # Who ended in the meantime has no row any more.
        if sequence is not None and sequence.id == row.request_id:
            ledger.counters.computed_tokens += len(row.tokens)
            output = _advance(ledger, sequence, row, news, plan.number, now)
            if output is not None:
                outputs.append(output)
    return outputs


def _sorted_out(
    plan: StepPlan, result: StepResult
) -> tuple[list[int], list[_Logprobs], list[_Single]]:
    """Next tokens and log-probabilities (or none) of the decoding rows, and all other results.

    `NO_TOKEN` stands for rows that are among the others or have no result.
    """
    decodes = plan.decodes
    if result.decoded and len(result.decoded) != len(decodes.rows):
        raise ValueError(f"{len(result.decoded)} rows instead of {len(decodes.rows)} have decoded")
    tokens = list(result.decoded) or [NO_TOKEN] * len(decodes.rows)
    logprobs: list[_Logprobs] = list(result.decoded_logprobs)
    singles: list[_Single] = []
    if not result.rows:
        return tokens, logprobs, singles
    planned = {row.row: row for row in plan.chunks}
    places: dict[int, int] = {}
    if any(news.row not in planned for news in result.rows):
        logprobs = logprobs or [None] * len(decodes)
        for place, row in enumerate(decodes.row_plans()):
            planned[row.row] = row
            places[row.row] = place
    for news in result.rows:
        row_plan = planned.get(news.row)
        if row_plan is None or row_plan.request_id != news.request_id:
            raise ValueError(f"row {news.row} is not part of step {plan.number}")
        if news.row in places and len(news.tokens) == 1 and news.error is None:
            tokens[places[news.row]] = news.tokens[0]
            logprobs[places[news.row]] = news.logprobs
        else:
            singles.append((row_plan, news))
    return tokens, logprobs, singles


def _take_plain(
    ledger: Ledger,
    plan: StepPlan,
    tokens: list[int],
    logprobs: list[_Logprobs],
    singles: list[_Single],
    now: float,
) -> list[EngineOutput]:
    """Bring the plain rows forward; those to which more happens go to `singles`."""
    decodes = plan.decodes
    outputs, others, ended, gaps, gaps_missed = ledger.rows.columns.take(
        decodes.rows,
        decodes.starts,
        decodes.request_ids,
        tokens,
        logprobs,
        plan.number,
        now,
        len(ledger.lanes),
        EngineOutput,
    )
    if others:
        rows = decodes.row_plans([place for place, _ in others])
        singles += [
            (row, RowResult(row.row, row.request_id, (token,), _entry(logprobs, place)))
            for (place, token), row in zip(others, rows, strict=True)
        ]
    ledger.counters.computed_tokens += len(outputs)
    for lane in ledger.lanes:
        lane.counters.gaps += gaps[lane.rank]
        lane.counters.gaps_missed += gaps_missed[lane.rank]
    if ended:
        _end_pages(ledger, ledger.rows.sequences_of(ended))
    return outputs


def _entry(logprobs: list[_Logprobs], place: int) -> _Logprobs:
    return logprobs[place] if logprobs else None


def _end_pages(ledger: Ledger, ended: list[Sequence]) -> None:
    charges: dict[tuple[Lane, str], int] = {}
    for sequence in ended:
        # Before the next token takes the place of the first one of this page.
        ledger.rows.fetch_tokens(sequence)
        ledger.publish(sequence, sequence.computed)
        whom = sequence.lane, sequence.request.tenant
        charges[whom] = charges.get(whom, 0) + sequence.page_tokens
    for (lane, tenant), tokens in charges.items():
        lane.queue.charge(tenant, tokens)


def _advance(
    ledger: Ledger, sequence: Sequence, row: RowPlan, news: RowResult, step: int, now: float
) -> EngineOutput | None:
    """Any row but a plain one."""
    if sequence.ghost:
        _advance_ghost(ledger, sequence, row, news, step)
        return None
    if news.error is not None:
        return ledger.failed(sequence, news.error, now)
    if row.is_padding:
        sequence.padded += len(row.tokens)
        return None
    prompt_logprobs = None
    if sequence.prompt_logprobs is not None:
        try:
            prompt_logprobs = collect_scores(sequence, row, news)
        except EngineError as error:
            return ledger.failed(sequence, str(error), now)
    rows, number = ledger.rows, sequence.row
    was_decoding = rows.lane.item(number) != NO_LANE
    if was_decoding:
        rows.unset_plain(sequence)
    else:
        ledger.counters.chunks += 1
    computed = rows.computed[number] = row.start + len(row.tokens)
    ledger.publish(sequence, computed)
    tokens, reason = accept_tokens(sequence, news, ledger.limit_tokens)
    if tokens:
        _measure(sequence, len(tokens), now)
    if reason is None or ledger.keeps_rows:
        _settle(ledger, sequence, was_decoding, step)
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


def _settle(ledger: Ledger, sequence: Sequence, was_decoding: bool, step: int) -> None:
    lane = sequence.lane
    ledger.rows.served_step[sequence.row] = step
    if not was_decoding:
        lane.settle(sequence)
    elif sequence.is_decoding:
        ledger.rows.set_decoding(sequence, lane)
    else:
        lane.unsettle(sequence)
    if lane is not sequence.home:
        ledger.come_home(sequence)


def _measure(sequence: Sequence, tokens: int, now: float) -> None:
    counters, service = sequence.home.counters, sequence.home.service
    if sequence.first_token_sent:
        counters.gaps += tokens
        limit = service.inter_token_seconds or _INFINITE
        counters.gaps_missed += now - sequence.token_seconds > limit
    else:
        sequence.first_token_sent = True
        counters.first_tokens += 1
        target = service.first_token_seconds or _INFINITE
        counters.first_tokens_kept += now - sequence.queued_seconds <= target
    sequence.rows.token_seconds[sequence.row] = now


def _advance_ghost(
    ledger: Ledger, ghost: Sequence, row: RowPlan, news: RowResult, step: int
) -> None:
    """A finished member of a static batch computes on until its batch or its memory ends."""
    is_full = len(ghost.tokens) + 1 >= ledger.limit_tokens
    # Behind a run of pages may be those of somebody else.
    is_full |= ledger.is_contiguous and len(ghost.tokens) + 1 > ghost.room
    if news.error is not None or is_full or not news.tokens:
        ledger.close_ghost(ghost)
        return
    was_decoding = ledger.rows.is_decoding(ghost)
    ghost.tokens.append(news.tokens[0])
    ghost.computed = row.start + len(row.tokens)
    ledger.publish(ghost, ghost.computed)
    _settle(ledger, ghost, was_decoding, step)
