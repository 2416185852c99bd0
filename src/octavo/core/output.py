"""What comes back from the engine: token ids and log-probabilities, never text."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from octavo.core.ids import RequestId
from octavo.core.request import FinishReason


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (natural logarithm) of a token and of the most likely alternatives.

    `top` is sorted by falling log-probability, then rising id.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class EngineOutput(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """News of one request after a step.

    `prompt_logprobs` has one entry a prompt token, the first one None, and comes once.
    `error` is set with `FinishReason.ERROR` only.
    """

    request_id: RequestId
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
