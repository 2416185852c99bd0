"""What a row's result means for its request: tokens kept, scores collected, the end reached."""

from __future__ import annotations

from octavo.core.errors import CapacityError, EngineError, InvalidRequest, PromptTooLong
from octavo.core.output import TokenLogprob
from octavo.core.request import FinishReason, Request
from octavo.schedule.plan import RowPlan, RowResult
from octavo.schedule.sequence import Sequence

_MOST = 2**31 - 1
"""Token ids and numbers of tokens that native code takes."""


def check_fits(request: Request, *, max_context: int, pool_tokens: int) -> None:
    """Refuse a request that could not run even alone.

    Raises:
        InvalidRequest: the prompt is empty, an id is no 32-bit token id, or so many tokens are
            wanted that nobody could count them.
        PromptTooLong: prompt and one new token exceed the served context.
        CapacityError: they exceed the whole KV cache.
    """
    prompt_tokens = len(request.prompt)
    if not prompt_tokens:
        raise InvalidRequest("has no tokens", field="prompt", remedy="give at least one token")
    for field, ids in (("prompt", request.prompt), ("stop_token_ids", request.stop_ids)):
        if ids and (min(ids) < 0 or max(ids) > _MOST):
            raise InvalidRequest(f"has ids that are not from 0 to {_MOST}", field=field)
    if not 0 <= request.max_new_tokens <= _MOST:
        raise InvalidRequest(
            f"must be from 0 to {_MOST}, not {request.max_new_tokens}", field="max_tokens"
        )
    new_tokens = min(request.max_new_tokens, 1)
    wanted = f"the prompt has {prompt_tokens} tokens and {new_tokens} more must fit"
    if prompt_tokens + new_tokens > max_context:
        raise PromptTooLong(
            f"{wanted}, but the served context has {max_context}",
            field="prompt",
            remedy="shorten the prompt or serve a longer context",
        )
    if prompt_tokens + new_tokens > pool_tokens:
        raise CapacityError(
            f"{wanted}, but the KV cache holds {pool_tokens}",
            field="prompt",
            remedy="shorten the prompt or raise memory.kv_bytes",
        )


def accept_tokens(
    sequence: Sequence, result: RowResult, limit_tokens: int
) -> tuple[tuple[int, ...], FinishReason | None]:
    """Append the tokens of a result up to the end of the answer; the tokens kept and the reason.

    The row of the sequence is not plain, so that all its tokens are in `known_tokens`.
    The token that ends the answer is kept. Stop ids count only after `min_tokens` tokens. The end
    of the context or of the whole cache (`limit_tokens`) is a reason "length", as is
    `max_new_tokens`.
    """
    request, known = sequence.request, sequence.known_tokens
    accepted: list[int] = []
    reason: FinishReason | None = None
    for token in result.tokens:
        known.append(token)
        accepted.append(token)
        generated = len(known) - sequence.prompt_tokens
        if token in request.stop_ids and generated > request.params.min_tokens:
            reason = FinishReason.STOP
        elif generated >= request.max_new_tokens or len(known) >= limit_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            break
    if request.max_new_tokens == 0 and not sequence.pending:
        reason = FinishReason.LENGTH
    return tuple(accepted), reason


def collect_scores(
    sequence: Sequence, plan: RowPlan, result: RowResult
) -> tuple[TokenLogprob | None, ...] | None:
    """Keep a row's prompt log-probabilities; all of them once the last one is there, else None.

    Raises:
        EngineError: the row has more or fewer than its plan asked for.
    """
    collected = sequence.prompt_logprobs
    if collected is None:
        return None
    if plan.score_prompt:
        end = min(plan.start + len(plan.tokens), sequence.prompt_tokens - 1)
        expected = end - plan.start
        if len(result.prompt_logprobs) != expected:
            raise EngineError(
                f"{len(result.prompt_logprobs)} prompt log-probabilities came back instead of"
                f" {expected}",
                field="prompt_logprobs",
            )
        collected.extend(result.prompt_logprobs)
        sequence.scored += expected
    if sequence.is_scoring:
        return None
    sequence.prompt_logprobs = None
    return tuple(collected)
