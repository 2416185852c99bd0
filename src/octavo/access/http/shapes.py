"""Parts of answers that both completion routes have: usage, log-probabilities, ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.core.request import FinishReason
from octavo.engine.client import Alternative, LogprobEntry, RequestOutput, Usage
from octavo.text.detokenize import IncrementalDecoder
from octavo.text.tokenizer import Tokenizer

END_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TIMEOUT: "timeout",
}
"""`finish_reason` of answers; the other reasons are errors. "timeout" is Octavo's own word."""


def usage_of(usages: Iterable[Usage]) -> dict[str, object]:
    """Tokens of all prompts of one request."""
    listed = list(usages)
    prompt = sum(usage.prompt_tokens for usage in listed)
    completion = sum(usage.completion_tokens for usage in listed)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in listed)},
    }


def chat_logprobs(entries: Sequence[LogprobEntry]) -> dict[str, object]:
    """`logprobs` of a chat choice or chunk: one object a token, with the token's own bytes."""
    return {
        "content": [
            {**_chat_token(entry), "top_logprobs": [_chat_token(other) for other in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


def _chat_token(token: LogprobEntry | Alternative) -> dict[str, object]:
    return {
        "token": token.token_bytes.decode("utf-8", "replace"),
        "logprob": token.logprob,
        "bytes": list(token.token_bytes),
    }


def legacy_token(token_bytes: bytes) -> str:
    """A token as the completions API writes it: text, or "bytes:\\x.." where it is none."""
    try:
        return token_bytes.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)


class LegacyLogprobs:
    """`logprobs` of one choice of /v1/completions, in as many pieces as its stream has.

    `text_offset` counts characters from the beginning of the prompt, as in the reference API: of
    the first character that the token, or the one that completes it, adds. A fourth list, `bytes`,
    holds each token's own bytes.
    """

    def __init__(self, tokenizer: Tokenizer, *, tops: bool, prompt_text: str):
        self._tokenizer = tokenizer
        self._tops = tops
        self._offset = len(prompt_text)
        self._decoder = IncrementalDecoder(tokenizer, continuation=True)

    def prompt(
        self, token_ids: Sequence[int], entries: Sequence[LogprobEntry | None]
    ) -> dict[str, list[object] | None]:
        """The prompt's part of an echo; its first token has no log-probability."""
        decoder = IncrementalDecoder(self._tokenizer)
        offsets: list[object] = []
        offset = 0
        for token_id in token_ids:
            offsets.append(offset)
            offset += len(decoder.push([token_id]))
        return self._piece(token_ids, entries, offsets)

    def answer(self, entries: Sequence[LogprobEntry]) -> dict[str, list[object] | None]:
        """The part of the next tokens of the answer."""
        offsets: list[object] = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.push([entry.token_id]))
        return self._piece([entry.token_id for entry in entries], entries, offsets)

    def _piece(
        self,
        token_ids: Sequence[int],
        entries: Sequence[LogprobEntry | None],
        offsets: list[object],
    ) -> dict[str, list[object] | None]:
        token_bytes = [self._tokenizer.token_bytes(token_id) for token_id in token_ids]
        return {
            "tokens": [legacy_token(each) for each in token_bytes],
            "token_logprobs": [None if entry is None else entry.logprob for entry in entries],
            "top_logprobs": [_tops(entry) for entry in entries] if self._tops else None,
            "text_offset": offsets,
            "bytes": [list(each) for each in token_bytes],
        }


def joined(
    first: dict[str, list[object] | None], second: dict[str, list[object] | None]
) -> dict[str, list[object] | None]:
    """Two pieces of `LegacyLogprobs` as one."""
    both: dict[str, list[object] | None] = {}
    for name, values in first.items():
        more = second[name]
        both[name] = None if values is None or more is None else values + more
    return both


def _tops(entry: LogprobEntry | None) -> dict[str, float] | None:
    if entry is None:
        return None
    found: dict[str, float] = {}
    for token in entry.top:  # two tokens may have the same bytes; the likelier one counts
        found.setdefault(legacy_token(token.token_bytes), token.logprob)
    return found


def tokens_of(outputs: Iterable[RequestOutput]) -> int:
    """How many tokens were generated in all."""
    return sum(output.usage.completion_tokens for output in outputs)
