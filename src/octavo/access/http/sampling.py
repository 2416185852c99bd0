"""Sampling fields of the OpenAI API and its usual extensions, as the core's parameters."""

from __future__ import annotations

from typing import Any

from octavo.access.http.errors import invalid
from octavo.access.http.fields import Fields
from octavo.core.errors import InvalidRequest
from octavo.core.sampling import MAX_LOGPROBS, SamplingParams

MAX_TOP_LOGPROBS = 20
"""What the reference API allows in chat."""

_MAX_TOKENS = 2**31 - 1
_SAME_NAMES = (
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "n",
)


def completion_params(fields: Fields, *, echo: bool) -> SamplingParams:
    """Parameters of /v1/completions: 16 tokens unless said, 0 to score the prompt.

    Raises:
        InvalidRequest, ApiError: a field is out of range.
    """
    max_tokens = fields.integer("max_tokens", 0, _MAX_TOKENS)
    logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)
    return SamplingParams(
        max_tokens=16 if max_tokens is None else max_tokens,
        logprobs=logprobs,
        prompt_logprobs=logprobs if echo else None,
        **_shared(fields),
    )


def chat_params(fields: Fields) -> SamplingParams:
    """Parameters of /v1/chat/completions: to the end of the served context unless said.

    Raises:
        InvalidRequest, ApiError: a field is out of range.
    """
    new_name = fields.integer("max_completion_tokens", 1, _MAX_TOKENS)
    old_name = fields.integer("max_tokens", 1, _MAX_TOKENS)
    if new_name is not None and old_name is not None and new_name != old_name:
        raise invalid("differs from max_tokens (send one of them)", "max_completion_tokens")
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top is not None and not wanted:
        raise invalid("goes with logprobs: true only", "top_logprobs")
    return SamplingParams(
        max_tokens=old_name if new_name is None else new_name,
        logprobs=(top or 0) if wanted else None,
        **_shared(fields),
    )


def _shared(fields: Fields) -> dict[str, Any]:
    """The fields that have the same name and meaning here; absent ones are left to the defaults."""
    given = {name: fields.take(name) for name in _SAME_NAMES}
    if given["stop"] is not None and not isinstance(given["stop"], (str, list)):
        raise InvalidRequest("must be text or a list of texts", field="stop")
    return {name: value for name, value in given.items() if value is not None}
