"""Ids equal those of the sentencepiece library itself, on vocabularies trained here."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
import sentencepiece

from octavo.text.tokenizer import Tokenizer
from octavo.text.vocabulary import TokenKind
from text_vocabularies import Metadata

ROOT = Path(__file__).resolve().parents[2]
ALPHABET = "aeinorst thd.,\n\t  \u00e9\u4f60\u597d\U0001f999<s>/x0A_1"


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no prefix"])
def processor(request: pytest.FixtureRequest) -> sentencepiece.SentencePieceProcessor:
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(licence.splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=request.param,
        minloglevel=2,
    )
    loaded = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    loaded.prefixed = request.param
    return loaded


def metadata(processor: sentencepiece.SentencePieceProcessor) -> Metadata:
    ids = range(processor.vocab_size())

    def kind(place: int) -> int:
        if processor.is_control(place):
            return TokenKind.CONTROL
        if processor.is_unknown(place):
            return TokenKind.UNKNOWN
        return TokenKind.BYTE if processor.is_byte(place) else TokenKind.NORMAL

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(place) for place in ids],
        "tokenizer.ggml.scores": [processor.get_score(place) for place in ids],
        "tokenizer.ggml.token_type": [int(kind(place)) for place in ids],
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.add_space_prefix": processor.prefixed,
    }


def test_ids_equal_the_library(processor: sentencepiece.SentencePieceProcessor) -> None:
    tokenizer = Tokenizer.from_metadata(metadata(processor))
    chance = random.Random(3)
    readme = (ROOT / "LICENSE").read_text(encoding="utf-8")
    texts = [readme, "", " ", "</s><s><unk><0x0A>", *(" " * n for n in range(1, 40))]
    texts += ["a" * n for n in range(1, 40)]
    texts += ["".join(chance.choices(ALPHABET, k=chance.randrange(50))) for _ in range(2000)]
    texts += [readme[at : at + 300] for at in range(0, len(readme), 97)]
    for text in texts:
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ids == processor.encode(text), repr(text)
        assert tokenizer.decode(ids) == text
