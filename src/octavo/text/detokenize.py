"""Turns a growing list of token ids into text, never half a character."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.text.tokenizer import Tokenizer, utf8_decoder


class IncrementalDecoder:
    """Text of one sequence, piece by piece; the pieces joined are `Tokenizer.decode` of all ids.

    Bytes of an unfinished character wait for the rest. Bytes that cannot become one turn into
    U+FFFD as soon as that is certain, the last ones at `flush`. Work is linear in the new tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, continuation: bool = False
    ):
        self._tokenizer = tokenizer
        self._whole_texts = tokenizer.whole_texts
        self._skip_special = skip_special
        self._decoder = utf8_decoder()
        self._strips_space = tokenizer.strips_space(continuation)
        self._is_inside = False
        """Whether bytes of an unfinished character wait."""

    def push(self, ids: Iterable[int]) -> str:
        """Text that is complete with these ids; often empty.

        Raises:
            InvalidRequest: an id is not in the vocabulary.
        """
        pieces = []
        for token_id in ids:
            text = None if self._is_inside else self._whole_texts[token_id]
            pieces.append(self._decoded(token_id) if text is None else text)
        text = "".join(pieces)
        return self._first_space(text) if self._strips_space else text

    def flush(self) -> str:
        """What is left at the end of the sequence; ready for another one afterwards."""
        text = self._first_space(self._decoder.decode(b"", True))
        self._decoder.reset()
        self._is_inside = False
        return text

    def _decoded(self, token_id: int) -> str:
        shown = self._tokenizer.text_bytes((token_id,), skip_special=self._skip_special)
        text = self._decoder.decode(b"".join(shown))
        self._is_inside = self._decoder.getstate()[0] != b""
        return text

    def _first_space(self, text: str) -> str:
        if text and self._strips_space:
            self._strips_space = False
            return text.removeprefix(" ")
        return text
