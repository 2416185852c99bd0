"""Refuses prompts that are far too long without tokenizing all of them."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.errors import PromptTooLong
from octavo.text.tokenizer import Tokenizer

_CHUNK_CHARACTERS = 1 << 16
_SURELY = 2
"""Cutting a text changes its number of tokens a little, never by this factor."""


def refuse_oversized(
    texts: Sequence[str], tokenizer: Tokenizer, context_tokens: int, field: str
) -> None:
    """Count the tokens of `texts` in pieces until they are sure to be more than the context.

    What this lets through holds at most about twice the context, so its exact count, made when it
    is prepared, is quick.

    Raises:
        PromptTooLong: with the estimated number and the limit.
    """
    total_characters = sum(map(len, texts))
    if total_characters <= max(_SURELY * context_tokens, _CHUNK_CHARACTERS):
        return
    tokens = characters = 0
    for text in texts:
        for start in range(0, len(text), _CHUNK_CHARACTERS):
            chunk = text[start : start + _CHUNK_CHARACTERS]
            tokens += len(tokenizer.encode(chunk, add_special=False, parse_special=False))
            characters += len(chunk)
            if tokens > _SURELY * context_tokens:
                raise too_long(
                    f"about {tokens * total_characters // characters}", context_tokens, field
                )


def refuse_long_ids(token_ids: Sequence[object], context_tokens: int, field: str) -> None:
    """Raises PromptTooLong before a single one of too many ids is looked at."""
    if len(token_ids) > context_tokens:
        raise too_long(str(len(token_ids)), context_tokens, field)


def too_long(tokens: str, context_tokens: int, field: str) -> PromptTooLong:
    return PromptTooLong(
        f"the prompt has {tokens} tokens, the served context {context_tokens}"
        " (prompt and answer together)",
        field=field,
        remedy="shorten it",
    )
