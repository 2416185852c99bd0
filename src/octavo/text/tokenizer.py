"""Text to token ids and back, from the vocabulary of a model file."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from octavo.core.errors import InvalidRequest, ModelFileError, SettingsError
from octavo.core.shown import shown
from octavo.text.bpe import build_byte_level, build_sentencepiece
from octavo.text.checks import check_text
from octavo.text.literals import compile_words
from octavo.text.pretokenizers import CUTS, Cut, find_cut
from octavo.text.vocabulary import BYTE_ALPHABET, PREFIX, TokenKind, Vocabulary, places_of

_PROBE = (
    "Hello, w\u00f6rld! 1 22 333\n\n\tif (x):  "
    "\u4f60\u597d \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \U0001f999"
)


@dataclass(frozen=True, slots=True)
class ControlSpan:
    """A control token that stands in a text, from character `start` up to `end`."""

    start: int
    end: int
    token_id: int


class Tokenizer:
    """Encodes and decodes for one model; safe to share between threads.

    User-defined tokens (markup a vocabulary keeps whole) count as text. Control tokens are found in
    text only where asked. Text is not normalised: byte-level BPE gives back every byte it has
    tokens for, and `missing_bytes` names those it has not; they are dropped, as the reference does.
    SentencePiece vocabularies read U+2581 as a space.
    """

    def __init__(self, vocabulary: Vocabulary, *, pre: str | None = None):
        cut = choose_cut(vocabulary, pre)
        self._engine = (
            build_sentencepiece(vocabulary) if cut is None else build_byte_level(vocabulary, cut)
        )
        # What only the engine is built from is as much again as the tokens.
        self.vocabulary = replace(vocabulary, scores=None, merges=None)
        self.bos_id = vocabulary.bos_id
        self.eos_ids = vocabulary.eos_ids
        self.add_bos = self.bos_id is not None and _adds_bos(vocabulary, cut)
        self.add_eos = vocabulary.add_eos and vocabulary.eos_id is not None
        self.vocabulary_size = len(vocabulary.tokens)
        self.missing_bytes = _missing_bytes(vocabulary)
        self.control_ids = {
            vocabulary.tokens[place]: place
            for place in places_of(vocabulary.kinds, TokenKind.CONTROL)
            if vocabulary.tokens[place]
        }
        self._controls = compile_words(self.control_ids)
        self._bytes: dict[int, bytes] = {}
        self.whole_texts = WholeTexts(self.vocabulary)
        self._check_round_trip()

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, object],
        *,
        vocabulary_size: int | None = None,
        pre: str | None = None,
    ) -> Tokenizer:
        """Build from GGUF metadata; `vocabulary_size` is the model's number of embedding rows.

        `pre` overrides the name of the pre-tokenizer that the file gives.

        Raises:
            ModelFileError: a key is missing, malformed or not supported; `field` names it.
            SettingsError: `pre` is unknown, or the vocabulary uses none.
        """
        vocabulary = Vocabulary.from_metadata(metadata, vocabulary_size=vocabulary_size)
        return cls(vocabulary, pre=pre)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of `text`; `parse_special` turns names of control tokens in it into their ids.

        Raises:
            InvalidRequest: the text has half of a surrogate pair.
        """
        check_text(text, "text")
        ids = self.encode_spans(text, self.find_controls(text) if parse_special else ())
        if add_special:
            ids = self.with_bos(ids)
            if self.add_eos and ids[-1:] != [self.vocabulary.eos_id]:
                ids.append(self.vocabulary.eos_id)  # type: ignore[arg-type]
        return ids

    def find_controls(self, text: str) -> list[ControlSpan]:
        """Control tokens in `text`, the longest at each place, left to right."""
        return [
            ControlSpan(match.start(), match.end(), self.control_ids[match.group()])
            for match in self._controls.finditer(text)
        ]

    def encode_spans(self, text: str, controls: Iterable[ControlSpan]) -> list[int]:
        """Ids of `text` with these control tokens in it, everything between taken literally."""
        ids: list[int] = []
        done = 0
        for span in controls:
            ids += self._plain(text[done : span.start])
            ids.append(span.token_id)
            done = span.end
        return ids + self._plain(text[done:])

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        """Ids with exactly one BOS in front where the file asks for it, judged from the first."""
        if self.add_bos and self.bos_id is not None and list(ids[:1]) != [self.bos_id]:
            return [self.bos_id, *ids]
        return list(ids)

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = True, continuation: bool = False
    ) -> str:
        """Text of `ids`; bytes that form no character become U+FFFD (Unicode 3.9, best practice).

        SentencePiece's space in front of the text is taken off, except from a `continuation` of
        text that came before.

        Raises:
            InvalidRequest: an id is not in the vocabulary.
        """
        text = b"".join(self.text_bytes(ids, skip_special=skip_special)).decode("utf-8", "replace")
        return text[1:] if self.strips_space(continuation) and text.startswith(" ") else text

    def text_bytes(self, ids: Iterable[int], *, skip_special: bool) -> Iterator[bytes]:
        """The bytes of each token that shows."""
        for token_id in ids:
            shown = self.token_bytes(token_id)
            if not (skip_special and self.vocabulary.is_control(token_id)):
                yield shown

    def strips_space(self, continuation: bool) -> bool:
        """Whether decoded text loses the space that encoding put in front of it."""
        return self.vocabulary.add_space_prefix and not continuation

    def token_bytes(self, token_id: int) -> bytes:
        """A token's own bytes, which need not be whole characters.

        Raises:
            InvalidRequest: the id is not in the vocabulary.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = _token_bytes(self.vocabulary, token_id)
        return known

    def is_control(self, token_id: int) -> bool:
        """Whether the token is a mark of the protocol that never shows in an answer."""
        return self.vocabulary.is_control(token_id)

    def _plain(self, text: str) -> list[int]:
        if not text:
            return []
        # The batch form leaves out the character offsets, which cost more than the ids.
        ids: list[int] = self._engine.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _check_round_trip(self) -> None:
        """Refuse a vocabulary that does not give a sample text back."""
        lost = bytes(self.missing_bytes)
        expected = _PROBE.encode("utf-8").translate(None, lost)
        ids = self._plain(_PROBE)
        found = b"".join(self.text_bytes(ids, skip_special=False))
        if self.vocabulary.add_space_prefix:
            found = found.removeprefix(b" ")
        if found != expected and self.vocabulary.unknown_id not in ids:
            raise ModelFileError(
                "text does not survive encoding and decoding",
                field=PREFIX + "tokens",
                expected=ascii(_PROBE),
                found=ascii(found.decode("utf-8", "replace")),
                remedy="the vocabulary is damaged or its type is stated wrongly",
            )


class WholeTexts(dict[int, str | None]):
    """By token id: its text, or None if that is not whole characters or is a control token's.

    Filled as they are asked for, since most of a vocabulary never is.
    """

    def __init__(self, vocabulary: Vocabulary):
        super().__init__()
        self._vocabulary = vocabulary

    def __missing__(self, token_id: int) -> str | None:
        """Raises InvalidRequest: the id is not in the vocabulary."""
        token_bytes = _token_bytes(self._vocabulary, token_id)
        text: str | None = None
        if not self._vocabulary.is_control(token_id):
            with suppress(UnicodeDecodeError):
                text = token_bytes.decode("utf-8")
        self[token_id] = text
        return text


def _token_bytes(vocabulary: Vocabulary, token_id: int) -> bytes:
    """Raises InvalidRequest: the id is not in the vocabulary."""
    size = len(vocabulary.tokens)
    if not 0 <= token_id < size:
        raise InvalidRequest(
            f"token id {token_id} is not in the vocabulary",
            remedy=f"use ids from 0 to {size - 1}",
        )
    return vocabulary.token_bytes(token_id)


def choose_cut(vocabulary: Vocabulary, pre: str | None) -> Cut | None:
    """The cut that the file names, or `pre`; None for SentencePiece vocabularies.

    Raises:
        ModelFileError: the file's is missing or unknown.
        SettingsError: `pre` is unknown, or the vocabulary uses none.
    """
    if pre is not None and not vocabulary.is_byte_level:
        raise SettingsError(
            "this model's tokenizer (SentencePiece) has no pre-tokenizer",
            field="pre_tokenizer",
            remedy="leave it at auto",
        )
    if pre is not None and pre not in CUTS:
        raise SettingsError(
            f"unknown: {shown(pre)}",
            field="pre_tokenizer",
            remedy=f"known: {', '.join(sorted(CUTS))}",
        )
    return find_cut(pre or vocabulary.pre) if vocabulary.is_byte_level else None


def _adds_bos(vocabulary: Vocabulary, cut: Cut | None) -> bool:
    if vocabulary.add_bos is not None:
        return vocabulary.add_bos
    return True if cut is None else cut.add_bos


def _missing_bytes(vocabulary: Vocabulary) -> frozenset[int]:
    if vocabulary.is_byte_level:
        tokens = set(vocabulary.tokens)
        return frozenset(b for b, spelled in BYTE_ALPHABET.items() if spelled not in tokens)
    return frozenset()


def utf8_decoder() -> codecs.IncrementalDecoder:
    """The one machine that turns bytes into text, whole or in pieces."""
    return codecs.getincrementaldecoder("utf-8")("replace")
