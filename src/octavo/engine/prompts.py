"""From a caller's prompt to requests of the engine; everything is checked here, before any work."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.core.errors import InvalidRequest, PromptTooLong
from octavo.core.ids import RequestId
from octavo.core.request import ANONYMOUS, Request
from octavo.core.sampling import SamplingParams
from octavo.core.seeds import derive_seed
from octavo.core.shown import shown
from octavo.text.checks import check_text

if TYPE_CHECKING:  # a process that sees no text does not load the tokenizer
    from octavo.text.tokenizer import Tokenizer

NO_LISTS = (bytes, bytearray, memoryview, Mapping)
"""What yields integers or keys, and is no list of token ids."""
_SEED_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine serves: a request may use positions below `context_tokens`."""

    context_tokens: int
    vocabulary_size: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked call: `text` is None where the caller gave token ids."""

    text: str | None
    token_ids: tuple[int, ...]
    params: SamplingParams
    max_new_tokens: int
    stop_ids: frozenset[int]


def prepare(
    prompt: str | Sequence[int],
    params: SamplingParams,
    *,
    tokenizer: Tokenizer,
    limits: Limits,
    field: str = "prompt",
) -> Prepared:
    """Check a call and turn its prompt into token ids.

    Text is literal: a special token's name in it is plain text. Token ids are taken as they are.

    Raises:
        InvalidRequest: lone surrogates, an id outside the vocabulary, an empty prompt for a model
            without a BOS token, contradictory lengths.
        PromptTooLong: the prompt leaves no room in the served context.
    """
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(f"must be SamplingParams, not {type(params).__name__}", field="params")
    params.check_vocabulary(limits.vocabulary_size)
    if isinstance(prompt, str):
        check_text(prompt, field)
        text: str | None = prompt
        ids = tuple(
            tokenizer.with_bos(tokenizer.encode(prompt, add_special=False, parse_special=False))
        )
    else:
        text = None
        ids = checked_ids(prompt, limits.vocabulary_size, field)
    if not ids:
        if tokenizer.bos_id is None:
            raise InvalidRequest(
                "is empty and the model has no BOS token to start from",
                field=field,
                remedy="give at least one token",
            )
        ids = (tokenizer.bos_id,)
    room = limits.context_tokens - len(ids)
    wanted = params.max_tokens
    if room < (0 if wanted == 0 else 1):
        raise PromptTooLong(
            f"the prompt has {len(ids)} tokens, the served context {limits.context_tokens}"
            " (prompt and answer together)",
            field=field,
            remedy=f"shorten it by at least {len(ids) - limits.context_tokens + 1} tokens",
        )
    if wanted is not None and params.min_tokens > wanted:
        raise InvalidRequest(
            f"{params.min_tokens} is more than max_tokens, which is {wanted}", field="min_tokens"
        )
    stop_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        stop_ids |= frozenset(tokenizer.eos_ids)
    return Prepared(text, ids, params, room if wanted is None else min(wanted, room), stop_ids)


def requests_of(
    prepared: Prepared,
    *,
    call: str,
    seed: int,
    arrival_seconds: float,
    service_class: str = "standard",
    cache_salt: bytes = b"",
    tenant: str = ANONYMOUS,
    on_miss: str | None = None,
) -> list[Request]:
    """One request a choice; choice i draws from a stream of its own, the first from `seed`'s.

    Prompt log-probabilities are the same for every choice, so only the first computes them.
    """
    params = prepared.params
    base = (params.seed if params.seed is not None else seed) & _SEED_MASK
    return [
        Request(
            id=RequestId(call if params.n == 1 else f"{call}-{index}"),
            prompt=prepared.token_ids,
            params=params if index == 0 else replace(params, prompt_logprobs=None),
            seed=derive_seed(base, index),
            max_new_tokens=prepared.max_new_tokens,
            stop_ids=prepared.stop_ids,
            arrival_seconds=arrival_seconds,
            service_class=service_class,
            cache_salt=cache_salt,
            tenant=tenant,
            on_miss=on_miss,
        )
        for index in range(params.n)
    ]


def checked_ids(prompt: object, vocabulary_size: int, field: str) -> tuple[int, ...]:
    """Token ids of the vocabulary, from any kind of integers (those of numpy, too).

    Raises:
        InvalidRequest: not a list of integers, or an id outside the vocabulary.
    """
    try:
        if isinstance(prompt, NO_LISTS):
            raise TypeError
        tokens = list(prompt)  # type: ignore[call-overload]
    except TypeError:
        raise InvalidRequest(
            f"must be text or a list of token ids, not {type(prompt).__name__}", field=field
        ) from None
    ids: list[int] = []
    for position, token in enumerate(tokens):
        try:
            if isinstance(token, bool):
                raise TypeError
            ids.append(operator.index(token))
        except TypeError:
            raise InvalidRequest(
                f"must hold integers, not {type(token).__name__}", field=f"{field}[{position}]"
            ) from None
        if not 0 <= ids[-1] < vocabulary_size:
            raise InvalidRequest(
                f"token id {shown(ids[-1], 40)} is not in the vocabulary",
                field=f"{field}[{position}]",
                remedy=f"use ids from 0 to {vocabulary_size - 1}",
            )
    return tuple(ids)
