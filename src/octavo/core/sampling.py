"""What a caller may ask of the choice of tokens, checked once, before any work."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from octavo.core.errors import InvalidRequest
from octavo.core.shown import shown

MAX_LOGPROBS = 64
MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 4096
MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one request. Field names follow the OpenAI API and its usual extensions.

    The order of operations is: logit bias, penalties, `min_tokens` mask, temperature, top-k, top-p,
    min-p, draw. Log-probabilities are those of the model (before all of these). A seed fixes the
    answer whatever else is in the batch; choice i of `n` draws from a stream of its own.

    Raises:
        InvalidRequest: a value is out of range or of a wrong type; `field` names it.
    """

    max_tokens: int | None = 16
    """Most tokens to generate; None means to the end of the served context."""
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 or -1 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the prompt or the answer."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    """None: none; 0: the chosen token's; k: also the k most likely."""
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)):
                raise InvalidRequest("must be a list", field=name)
            object.__setattr__(self, name, tuple(value))
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequest("must map token ids to numbers", field="logit_bias")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        for item in fields(self):
            _CHECKS[item.name](self, item.name)

    def check_vocabulary(self, vocabulary_size: int) -> None:
        """Refuse token ids that the model does not have."""
        for token in self.logit_bias:
            if not 0 <= token < vocabulary_size:
                raise InvalidRequest(
                    f"token id {token} is not in the vocabulary",
                    field="logit_bias",
                    remedy=f"use ids from 0 to {vocabulary_size - 1}",
                )
        for token in self.stop_token_ids:
            if not 0 <= token < vocabulary_size:
                raise InvalidRequest(
                    f"token id {token} is not in the vocabulary",
                    field="stop_token_ids",
                    remedy=f"use ids from 0 to {vocabulary_size - 1}",
                )


_Check = Callable[[SamplingParams, str], None]


def _integer(low: int, high: int, *, optional: bool = False) -> _Check:
    def check(params: SamplingParams, name: str) -> None:
        value = getattr(params, name)
        if value is None and optional:
            return
        object.__setattr__(params, name, as_integer(value, name, low, high))

    return check


def as_integer(value: object, name: str, low: int, high: int) -> int:
    """An integer in [low, high]; integer-valued floats are accepted, bools and the rest are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"must be an integer, not {shown(value)}", field=name)
    if not low <= value <= high:
        raise InvalidRequest(f"must be from {low} to {high}, not {shown(value)}", field=name)
    return value


def as_number(value: object, name: str, low: float, high: float) -> float:
    """A finite number in [low, high]; bools and NaN are refused."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(f"must be a number, not {shown(value)}", field=name)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number) or not low <= number <= high:
        raise InvalidRequest(f"must be from {low:g} to {high:g}, not {shown(value)}", field=name)
    return number


def _number(low: float, high: float) -> _Check:
    def check(params: SamplingParams, name: str) -> None:
        object.__setattr__(params, name, as_number(getattr(params, name), name, low, high))

    return check


def _boolean(params: SamplingParams, name: str) -> None:
    if not isinstance(getattr(params, name), bool):
        raise InvalidRequest("must be true or false", field=name)


def _stop_strings(params: SamplingParams, name: str) -> None:
    if len(params.stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"at most {MAX_STOP_STRINGS} stop strings", field=name)
    for text in params.stop:
        if not isinstance(text, str) or not text:
            raise InvalidRequest("stop strings must be non-empty text", field=name)
        if len(text) > MAX_STOP_LENGTH:
            raise InvalidRequest(
                f"stop strings have at most {MAX_STOP_LENGTH} characters", field=name
            )


def _token_ids(params: SamplingParams, name: str) -> None:
    if len(params.stop_token_ids) > 1024:
        raise InvalidRequest("at most 1024 ids", field=name)
    ids = tuple(as_integer(token, name, 0, 2**31 - 1) for token in params.stop_token_ids)
    object.__setattr__(params, name, ids)


def _bias(params: SamplingParams, name: str) -> None:
    if len(params.logit_bias) > 4096:
        raise InvalidRequest("at most 4096 entries", field=name)
    checked = {}
    for token, value in params.logit_bias.items():
        if isinstance(token, str) and token.isdecimal() and len(token) < 11:
            token = int(token)  # JSON has text keys only
        checked[as_integer(token, name, 0, 2**31 - 1)] = as_number(value, name, -100.0, 100.0)
    object.__setattr__(params, name, checked)


def _top_k(params: SamplingParams, name: str) -> None:
    value = as_integer(params.top_k, name, -1, 2**31 - 1)
    object.__setattr__(params, name, max(value, 0))


_CHECKS: dict[str, _Check] = {
    "max_tokens": _integer(0, 2**31 - 1, optional=True),
    "min_tokens": _integer(0, 2**31 - 1),
    "temperature": _number(0.0, 100.0),
    "top_k": _top_k,
    "top_p": _number(0.0, 1.0),
    "min_p": _number(0.0, 1.0),
    "seed": _integer(-(2**63), MAX_SEED, optional=True),
    "repetition_penalty": _number(0.01, 100.0),
    "presence_penalty": _number(-2.0, 2.0),
    "frequency_penalty": _number(-2.0, 2.0),
    "logit_bias": _bias,
    "stop": _stop_strings,
    "stop_token_ids": _token_ids,
    "ignore_eos": _boolean,
    "n": _integer(1, MAX_N),
    "logprobs": _integer(0, MAX_LOGPROBS, optional=True),
    "prompt_logprobs": _integer(0, MAX_LOGPROBS, optional=True),
}
