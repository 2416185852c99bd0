"""What a caller gets back: text, tokens, log-probabilities, usage and timing."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from octavo.core.request import FinishReason


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the most likely tokens at a position; `token_bytes` need not be valid UTF-8."""

    token_id: int
    token_bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """Log-probability (natural logarithm) of a token; `top` by falling log-probability."""

    token_id: int
    token_bytes: bytes
    logprob: float
    top: tuple[Alternative, ...] = ()


class Delta(msgspec.Struct, frozen=True, gc=False):
    """News of choice `index` of one call.

    `text` may be empty while characters or a possible stop string are held back, and may hold the
    text of tokens of earlier deltas. `finish_reason` is set in the last delta of a choice;
    `error` with `FinishReason.ERROR` only.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished answer.

    `token_ids` includes the token that ended it (a stop id, or the one that completed a stop
    string); `text` does not show it. `stopped_by` is that stop string or id, if one ended it.
    `logprobs` has one entry a token, or is None if none were asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[LogprobEntry, ...] | None = None
    stopped_by: str | int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call; the prompt counts once however many choices there are."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds since the call was submitted; `first_token_seconds` None if there was no token."""

    first_token_seconds: float | None
    total_seconds: float


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """Everything about one call. `prompt` is None if it was given as token ids.

    `prompt_logprobs` has one entry a prompt token, the first of which is None.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...]
    usage: Usage
    timing: Timing
    prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first choice."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first choice ended."""
        return self.outputs[0].finish_reason
