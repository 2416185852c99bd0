"""Text out of tokens, piece by piece."""

from __future__ import annotations

from octavo.text.detokenize import IncrementalDecoder
from octavo.text.tokenizer import Tokenizer
from text_vocabularies import byte_level, sentencepiece


def test_a_character_waits_until_it_is_whole() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    decoder = IncrementalDecoder(tokenizer)
    ids = tokenizer.encode("\U0001f999!", add_special=False, parse_special=False)
    assert [decoder.push([token]) for token in ids] == ["", "", "", "\U0001f999", "!"]
    assert decoder.flush() == ""


def test_a_character_that_never_comes_shows_at_the_end_only() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    decoder = IncrementalDecoder(tokenizer)
    ids = tokenizer.encode("\u597d", add_special=False, parse_special=False)
    assert decoder.push(ids[:2]) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""
    assert decoder.push(ids) == "\u597d"


def test_control_tokens_do_not_show_and_do_not_part_characters() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    first, second, third = tokenizer.encode("\u597d", add_special=False, parse_special=False)
    control = tokenizer.control_ids["<|im_end|>"]
    decoder = IncrementalDecoder(tokenizer)
    assert decoder.push([first, control, second]) == ""
    assert decoder.push([third, control]) == "\u597d"
    shown = IncrementalDecoder(tokenizer, skip_special=False)
    assert shown.push([control]) == "<|im_end|>"


def test_the_space_in_front_is_taken_off_once() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece())
    ids = tokenizer.encode(" hi hi", add_special=True, parse_special=False)
    decoder = IncrementalDecoder(tokenizer)
    assert "".join([decoder.push([token]) for token in ids] + [decoder.flush()]) == " hi hi"
    answer = IncrementalDecoder(tokenizer, continuation=True)
    assert answer.push([tokenizer.vocabulary.tokens.index("\u2581hi")]) == " hi"
