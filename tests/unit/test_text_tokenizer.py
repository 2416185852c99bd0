"""The tokenizer on vocabularies small enough to reckon by hand, and its refusals."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable

import pytest

from octavo.core.errors import InvalidRequest, ModelFileError, SettingsError
from octavo.text.merges import derive_merges
from octavo.text.tokenizer import Tokenizer
from octavo.text.vocabulary import BYTE_ALPHABET, Vocabulary
from text_vocabularies import SPACED, Metadata, byte_level, sentencepiece


def names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.vocabulary.tokens[token] for token in ids]


def test_byte_level_merges_in_order_of_rank() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    ids = tokenizer.encode("hi hi aaaaa", add_special=False, parse_special=False)
    assert names(tokenizer, ids) == ["hi", f"{SPACED}hi", SPACED, "aaaa", "a"]
    assert tokenizer.decode(ids) == "hi hi aaaaa"


def test_a_tokenizer_keeps_no_merges_and_scores() -> None:
    for metadata in (byte_level(), sentencepiece()):
        tokenizer = Tokenizer.from_metadata(metadata)
        kept = [
            each
            for each in gc.get_objects()
            if type(each) is Vocabulary and each.tokens is tokenizer.vocabulary.tokens
        ]
        assert [(each.merges, each.scores) for each in kept] == [(None, None)]


def test_control_tokens_are_parsed_only_where_asked() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    text = "hi<|im_end|><tool>"
    parsed = tokenizer.encode(text, add_special=False, parse_special=True)
    assert names(tokenizer, parsed) == ["hi", "<|im_end|>", "<tool>"]
    literal = tokenizer.encode(text, add_special=False, parse_special=False)
    assert not any(tokenizer.is_control(token) for token in literal)
    assert names(tokenizer, literal)[-1] == "<tool>"
    assert tokenizer.decode(literal) == text
    assert tokenizer.decode(parsed) == "hi<tool>"
    assert tokenizer.decode(parsed, skip_special=False) == text


def test_end_of_turn_ids_come_from_keys_and_from_names() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    assert {tokenizer.vocabulary.tokens[i] for i in tokenizer.eos_ids} == {
        "<|im_end|>",
        "<|endoftext|>",
    }
    metadata = byte_level() | {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 6}
    assert {5, 6} < Tokenizer.from_metadata(metadata).eos_ids


@pytest.mark.parametrize(
    ("add_bos", "ids", "expected"),
    [
        (True, [7], ["BOS", 7]),
        (True, ["BOS", 7], ["BOS", 7]),
        (True, [], ["BOS"]),
        (False, [7], [7]),
    ],
)
def test_one_bos_judged_from_the_first_id(
    add_bos: bool, ids: list[object], expected: list[object]
) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level() | {"tokenizer.ggml.add_bos_token": add_bos})
    bos = tokenizer.bos_id
    given = [bos if token == "BOS" else token for token in ids]
    assert tokenizer.with_bos(given) == [bos if token == "BOS" else token for token in expected]  # type: ignore[arg-type]


def test_add_special_adds_bos_and_eos_once() -> None:
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = Tokenizer.from_metadata(byte_level() | flags)
    ids = tokenizer.encode("<|im_start|>hi", add_special=True, parse_special=True)
    assert names(tokenizer, ids) == ["<|im_start|>", "hi", "<|endoftext|>"]
    ids = tokenizer.encode("hi<|endoftext|>", add_special=True, parse_special=True)
    assert names(tokenizer, ids) == ["<|im_start|>", "hi", "<|endoftext|>"]


def test_sentencepiece_puts_a_space_in_front_even_of_a_space() -> None:
    # As in the published vectors of Llama 2: " Hello" is a lone space, then "Hello" with its own.
    tokenizer = Tokenizer.from_metadata(sentencepiece())
    ids = tokenizer.encode("hi", add_special=False, parse_special=False)
    assert names(tokenizer, ids) == ["\u2581hi"]
    ids = tokenizer.encode(" hi", add_special=False, parse_special=False)
    assert names(tokenizer, ids) == ["\u2581", "\u2581hi"]
    assert tokenizer.decode(ids) == " hi"
    assert tokenizer.decode(ids, continuation=True) == "  hi"


def test_sentencepiece_without_the_prefix_and_with_bytes() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece(add_space_prefix=False))
    ids = tokenizer.encode("hi\n\u597d\u4f60", add_special=True, parse_special=False)
    assert names(tokenizer, ids) == ["<s>", "hi", "<0x0A>", "\u597d", "<0xE4>", "<0xBD>", "<0xA0>"]
    assert tokenizer.decode(ids) == "hi\n\u597d\u4f60"


def test_sentencepiece_never_merges_into_a_control_or_byte_token() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece(add_space_prefix=False))
    ids = tokenizer.encode("</s><0x0A>", add_special=False, parse_special=False)
    assert 2 not in ids
    assert tokenizer.decode(ids) == "</s><0x0A>"
    assert tokenizer.encode("</s>", add_special=False, parse_special=True) == [2]


def test_token_bytes_are_the_raw_bytes() -> None:
    spm = Tokenizer.from_metadata(sentencepiece())
    place = spm.vocabulary.tokens.index
    assert spm.token_bytes(place("<0xE4>")) == b"\xe4"
    assert spm.token_bytes(place("\u2581hi")) == b" hi"
    assert spm.token_bytes(1) == b"<s>"
    bpe = Tokenizer.from_metadata(byte_level())
    place = bpe.vocabulary.tokens.index
    assert [bpe.token_bytes(place(c)) for c in BYTE_ALPHABET.values()] == [
        bytes([b]) for b in BYTE_ALPHABET
    ]
    assert bpe.token_bytes(place("<tool>")) == b"<tool>"
    assert bpe.token_bytes(place("[PAD]")) == b""


def test_ids_outside_the_vocabulary_are_the_callers_fault() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    for bad in (-1, tokenizer.vocabulary_size, 2**40):
        with pytest.raises(InvalidRequest, match="not in the vocabulary"):
            tokenizer.decode([bad])


def test_half_a_surrogate_pair_is_named_with_its_place() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    with pytest.raises(InvalidRequest, match=r"U\+D83D\) at character 2"):
        tokenizer.encode("ab\ud83d", add_special=False, parse_special=False)


def test_merges_derived_from_a_vocabulary_equal_the_plain_search() -> None:
    tokens = ["a", "b", "ab", "ba", "aba", "abab", "\u597d", "\u597da", "baab", "bab", "aab"]
    ids = {token: place for place, token in enumerate(tokens)}
    expected = sorted(
        (
            (place, -at, token[:at], token[at:])
            for token, place in ids.items()
            for at in range(1, len(token))
            if token[:at] in ids and token[at:] in ids
        )
    )
    assert derive_merges(ids) == [(left, right) for _, _, left, right in expected]
    assert derive_merges({}) == []


def remove(key: str) -> Callable[[Metadata], object]:
    return lambda metadata: metadata.pop(f"tokenizer.ggml.{key}")


def put(key: str, value: object) -> Callable[[Metadata], object]:
    return lambda metadata: metadata.update({f"tokenizer.ggml.{key}": value})


DAMAGE = [
    (byte_level, remove("model"), "tokenizer.ggml.model"),
    (byte_level, put("model", "bert"), "tokenizer.ggml.model"),
    (byte_level, put("model", 7), "tokenizer.ggml.model"),
    (byte_level, remove("pre"), "tokenizer.ggml.pre"),
    (byte_level, put("pre", "nobody-knows"), "tokenizer.ggml.pre"),
    (byte_level, remove("tokens"), "tokenizer.ggml.tokens"),
    (byte_level, put("tokens", []), "tokenizer.ggml.tokens"),
    (byte_level, put("tokens", "abc"), "tokenizer.ggml.tokens"),
    (byte_level, put("tokens", ["a", 1]), r"tokenizer.ggml.tokens\[1\]"),
    (byte_level, put("token_type", [1, 1]), "tokenizer.ggml.token_type"),
    (byte_level, put("token_type", [9] * 265), r"tokenizer.ggml.token_type\[0\]"),
    (byte_level, remove("merges"), "tokenizer.ggml.merges"),
    (byte_level, put("merges", ["h i", "hi"]), r"tokenizer.ggml.merges\[1\]"),
    (byte_level, put("merges", ["h i", "h zz"]), r"tokenizer.ggml.merges\[1\]"),
    (byte_level, put("bos_token_id", 10_000), "tokenizer.ggml.bos_token_id"),
    (byte_level, put("eos_token_id", "x"), "tokenizer.ggml.eos_token_id"),
    (byte_level, put("add_bos_token", "yes"), "tokenizer.ggml.add_bos_token"),
    (sentencepiece, remove("scores"), "tokenizer.ggml.scores"),
    (sentencepiece, put("scores", [0.0]), "tokenizer.ggml.scores"),
    (sentencepiece, put("scores", [math.nan] * 273), "tokenizer.ggml.scores"),
    (sentencepiece, put("tokens", ["<0xZZ>"] * 273), r"tokenizer.ggml.tokens\[3\]"),
]


@pytest.mark.parametrize(("make", "damage", "field"), DAMAGE)
def test_damage_is_refused_and_the_key_named(
    make: Callable[[], Metadata], damage: Callable[[Metadata], object], field: str
) -> None:
    metadata = make()
    damage(metadata)
    with pytest.raises(ModelFileError, match=rf"^{field}: "):
        Tokenizer.from_metadata(metadata)


@pytest.mark.parametrize("difference", [-1, 1])
def test_tokens_that_do_not_fit_the_embedding_rows_are_refused(difference: int) -> None:
    rows = len(byte_level()["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    assert Tokenizer.from_metadata(byte_level(), vocabulary_size=rows).vocabulary_size == rows
    with pytest.raises(ModelFileError, match=f"expected {rows + difference} entries, found {rows}"):
        Tokenizer.from_metadata(byte_level(), vocabulary_size=rows + difference)


def test_the_override_helps_where_the_file_names_no_pre_tokenizer() -> None:
    metadata = byte_level()
    remove("pre")(metadata)
    with pytest.raises(ModelFileError, match="set pre_tokenizer"):
        Tokenizer.from_metadata(metadata)
    assert Tokenizer.from_metadata(metadata, pre="gpt-2").decode([0]) == "!"


def test_an_override_without_effect_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"pre_tokenizer: unknown: 'gpt-5' .*llama-bpe"):
        Tokenizer.from_metadata(byte_level(), pre="gpt-5")
    with pytest.raises(SettingsError, match=r"pre_tokenizer: .*SentencePiece"):
        Tokenizer.from_metadata(sentencepiece(), pre="gpt-2")


def test_a_vocabulary_that_garbles_text_is_refused_at_load() -> None:
    metadata = byte_level()
    metadata["tokenizer.ggml.tokens"] = [
        f"z{place}"
        for place in range(len(metadata["tokenizer.ggml.tokens"]))  # type: ignore[arg-type]
    ]
    metadata["tokenizer.ggml.merges"] = []
    with pytest.raises(ModelFileError, match=r"^tokenizer.ggml.tokens: "):
        Tokenizer.from_metadata(metadata)


def test_long_runs_of_one_character_come_back() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    for character, count in (("a", 50_000), (" ", 200_000), ("\n", 200_000), ("<", 200_000)):
        text = character * 200_000
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        assert len(ids) == count
        assert tokenizer.decode(ids) == text
