"""The vocabulary of a model file, checked, and the bytes that each token stands for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from octavo.core.errors import ModelFileError

PREFIX: Final = "tokenizer.ggml."
SPACE: Final = "\u2581"
"""How SentencePiece writes a space inside a token."""

END_OF_TURN_NAMES: Final = frozenset(
    {
        "</s>",
        "<EOT>",
        "<eos>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|end_of_text|>",
        "<|end_of_turn|>",
        "<|end|>",
        "<|endoftext|>",
        "<|endofturn|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|call|>",
        "<|return|>",
        "<|im_end|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "[EOS]",
        "[EOT]",
    }
)
"""Names that end an answer when the file marks them as control tokens."""

TURN_MARKS: Final = frozenset(
    {"<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"}
    | {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"}
)
"""Names that are control tokens whatever the file says: some converters mark them wrongly."""


class TokenKind(IntEnum):
    """The `tokenizer.ggml.token_type` of the GGUF specification."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _byte_alphabet() -> dict[int, str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    hidden = (byte for byte in range(256) if byte not in table)
    table.update({byte: chr(256 + place) for place, byte in enumerate(hidden)})
    return table


BYTE_ALPHABET: Final = _byte_alphabet()
_OUTSIDE = "\uffff"
_TO_LATIN1 = dict.fromkeys(range(256), _OUTSIDE) | {
    ord(character): chr(byte) for byte, character in BYTE_ALPHABET.items()
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens, kinds and rules of one model file.

    `model` is "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE); `kinds` has one `TokenKind`
    a byte. Either of `scores` and `merges` is None where the file has only the other.
    """

    model: str
    pre: str | None
    architecture: str
    tokens: tuple[str, ...]
    kinds: bytes
    scores: tuple[float, ...] | None
    merges: tuple[str, ...] | None
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, object], *, vocabulary_size: int | None = None
    ) -> Vocabulary:
        """Check every key.

        Raises:
            ModelFileError: a key is missing, has a wrong type or a wrong length; `field` names it.
        """
        model = _text(metadata, "model", required=True)
        if model not in ("gpt2", "llama"):
            raise ModelFileError(
                "tokenizer not supported",
                field=PREFIX + "model",
                expected="gpt2 (byte-level BPE) or llama (SentencePiece BPE)",
                found=str(model),
            )
        tokens = _texts(metadata, "tokens")
        if tokens is None or not tokens:
            raise _missing("tokens")
        _check_length("tokens", len(tokens), vocabulary_size, "as many tokens as embedding rows")
        ids_by_name = dict(zip(tokens, range(len(tokens)), strict=True))
        kinds = _corrected(_kinds(metadata, tokens), tokens, ids_by_name)
        scores = _scores(metadata, len(tokens))
        merges = _texts(metadata, "merges")
        if model == "gpt2" and merges is None:
            raise _missing("merges")
        if model == "llama" and merges is None and scores is None:
            raise _missing("scores")
        ids = {
            name: _token_id(metadata, name, len(tokens))
            for name in ("bos", "eos", "unknown", "eot", "eom")
        }
        return cls(
            model=model,
            pre=_text(metadata, "pre"),
            architecture=str(metadata.get("general.architecture", "")),
            tokens=tokens,
            kinds=kinds,
            scores=scores,
            merges=merges,
            bos_id=ids["bos"],
            eos_id=ids["eos"],
            unknown_id=ids["unknown"],
            eos_ids=_end_ids(ids_by_name, kinds, ids),
            add_bos=_flag(metadata, "add_bos_token"),
            add_eos=bool(_flag(metadata, "add_eos_token")),
            # SentencePiece puts a space in front of the text unless told otherwise.
            add_space_prefix=model == "llama" and _flag(metadata, "add_space_prefix") is not False,
        )

    @property
    def is_byte_level(self) -> bool:
        return self.model == "gpt2"

    def is_control(self, token_id: int) -> bool:
        """Whether the token is a mark of the protocol, not part of any text."""
        return self.kinds[token_id] in (TokenKind.CONTROL, TokenKind.UNKNOWN)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; a control token's are its name, an unused one has none."""
        token, kind = self.tokens[token_id], self.kinds[token_id]
        if kind == TokenKind.UNUSED:
            return b""
        if kind == TokenKind.BYTE:
            return bytes([int(token[3:5], 16)])
        if kind != TokenKind.NORMAL:
            return token.encode("utf-8")
        if not self.is_byte_level:
            return token.replace(SPACE, " ").encode("utf-8")
        spelled = token.translate(_TO_LATIN1)
        try:
            return spelled.encode("latin-1")
        except UnicodeEncodeError:  # an added token, written as itself
            return token.encode("utf-8")


def _missing(name: str) -> ModelFileError:
    return ModelFileError(
        "the key is missing or empty",
        field=PREFIX + name,
        remedy="the file has no usable tokenizer; convert the model again",
    )


def _wrong_type(name: str, expected: str, value: object) -> ModelFileError:
    found = type(value).__name__
    return ModelFileError("wrong type", field=PREFIX + name, expected=expected, found=found)


def _check_length(name: str, found: int, expected: int | None, meaning: str) -> None:
    if expected is not None and found != expected:
        raise ModelFileError(
            f"wrong length ({meaning})",
            field=PREFIX + name,
            expected=f"{expected} entries",
            found=f"{found}",
            remedy="the file is damaged or was converted wrongly",
        )


def _text(metadata: Mapping[str, object], name: str, *, required: bool = False) -> str | None:
    value = metadata.get(PREFIX + name)
    if value is None:
        if required:
            raise _missing(name)
        return None
    if not isinstance(value, str):
        raise _wrong_type(name, "text", value)
    return value


def _flag(metadata: Mapping[str, object], name: str) -> bool | None:
    value = metadata.get(PREFIX + name)
    if value is None or isinstance(value, bool):
        return value
    if type(value).__name__ in ("bool_", "bool"):  # numpy's
        return bool(value)
    raise _wrong_type(name, "true or false", value)


def _sequence(metadata: Mapping[str, object], name: str) -> list[object] | None:
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if hasattr(value, "tolist"):  # a numpy array, or a memory view of numbers
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise _wrong_type(name, "an array", value)
    return list(value)


def _texts(metadata: Mapping[str, object], name: str) -> tuple[str, ...] | None:
    values = _sequence(metadata, name)
    if values is None:
        return None
    if set(map(type, values)) - {str}:
        place, value = next((i, v) for i, v in enumerate(values) if type(v) is not str)
        raise _wrong_type(f"{name}[{place}]", "text", value)
    return tuple(values)  # type: ignore[arg-type]


def _kinds(metadata: Mapping[str, object], tokens: Sequence[str]) -> bytes:
    values = _sequence(metadata, "token_type")
    if values is None:
        return bytes([TokenKind.NORMAL]) * len(tokens)
    _check_length("token_type", len(values), len(tokens), "one kind a token")
    known = {int(kind) for kind in TokenKind}
    for place, value in enumerate(values):
        if value not in known:
            raise ModelFileError(
                "unknown kind of token",
                field=f"{PREFIX}token_type[{place}]",
                expected="1 to 6",
                found=str(value)[:40],
            )
    return bytes(values)  # type: ignore[arg-type]


def _check_byte_token(place: int, token: str) -> None:
    if len(token) != 6 or token != f"<0x{token[3:5].upper()}>" or not _is_hexadecimal(token[3:5]):
        raise ModelFileError(
            "malformed byte token",
            field=f"{PREFIX}tokens[{place}]",
            expected="<0x00> to <0xFF>",
            found=repr(token[:20]),
        )


def _is_hexadecimal(text: str) -> bool:
    return all(character in "0123456789ABCDEFabcdef" for character in text)


def _scores(metadata: Mapping[str, object], count: int) -> tuple[float, ...] | None:
    values = _sequence(metadata, "scores")
    if values is None:
        return None
    _check_length("scores", len(values), count, "one score a token")
    if set(map(type, values)) - {float, int} or not all(map(math.isfinite, values)):  # type: ignore[arg-type]
        raise ModelFileError(
            "a score is not a finite number",
            field=PREFIX + "scores",
            remedy="the file is damaged or was converted wrongly",
        )
    return tuple(values)  # type: ignore[arg-type]


def _token_id(metadata: Mapping[str, object], name: str, count: int) -> int | None:
    key = f"{name}_token_id"
    value = metadata.get(PREFIX + key)
    if value is None:
        return None
    try:
        token_id: int = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise _wrong_type(key, "a token id", value) from None
    if token_id == 0xFFFFFFFF:  # how some converters write "none"
        return None
    if not 0 <= token_id < count:
        raise ModelFileError(
            "no such token",
            field=PREFIX + key,
            expected=f"an id below {count}",
            found=str(token_id),
        )
    return token_id


def _corrected(kinds: bytes, tokens: Sequence[str], ids_by_name: Mapping[str, int]) -> bytes:
    for place in places_of(kinds, TokenKind.BYTE):
        _check_byte_token(place, tokens[place])
    corrected = bytearray(kinds)
    for name in TURN_MARKS & ids_by_name.keys():
        corrected[ids_by_name[name]] = TokenKind.CONTROL
    return bytes(corrected)


def places_of(kinds: bytes, *wanted: TokenKind) -> list[int]:
    """The ids of the tokens of these kinds, rising."""
    return [match.start() for match in re.finditer(b"[%b]" % re.escape(bytes(wanted)), kinds)]


def _end_ids(
    ids_by_name: Mapping[str, int], kinds: bytes, ids: Mapping[str, int | None]
) -> frozenset[int]:
    named = {
        name: ids_by_name[name]
        for name in END_OF_TURN_NAMES & ids_by_name.keys()
        if kinds[ids_by_name[name]] == TokenKind.CONTROL
    }
    # In the harmony format <|end|> closes one message of several, not the turn.
    if "<|return|>" in named and "<|call|>" in named:
        named.pop("<|end|>", None)
    declared = (ids[name] for name in ("eos", "eot", "eom"))
    return frozenset(named.values()) | {place for place in declared if place is not None}
