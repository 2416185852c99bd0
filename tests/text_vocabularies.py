"""Vocabularies small enough to reckon by hand, as the metadata of a model file."""

from __future__ import annotations

from octavo.text.vocabulary import BYTE_ALPHABET, TokenKind

Metadata = dict[str, object]
SPACED = BYTE_ALPHABET[0x20]


def byte_level() -> Metadata:
    merges = ["h i", f"{SPACED} hi", "a a", "aa aa"]
    tokens = [*BYTE_ALPHABET.values(), *(m.replace(" ", "") for m in merges)]
    kinds = [int(TokenKind.NORMAL)] * len(tokens)
    for name, kind in (
        ("<|im_start|>", TokenKind.CONTROL),
        ("<|im_end|>", TokenKind.NORMAL),
        ("<tool>", TokenKind.USER_DEFINED),
        ("<|endoftext|>", TokenKind.CONTROL),
        ("[PAD]", TokenKind.UNUSED),
    ):
        tokens.append(name)
        kinds.append(int(kind))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|endoftext|>"),
    }


def sentencepiece(*, add_space_prefix: bool = True) -> Metadata:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256]
    scores = [0.0] * len(tokens)
    words = ["\u2581h", "\u2581hi", "hi", "\u2581\u2581", "\u2581", *"hi</s>", "</", "s>", "\u597d"]
    for place, word in enumerate(words):
        tokens.append(word)
        kinds.append(1)
        scores.append(-float(place))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }
