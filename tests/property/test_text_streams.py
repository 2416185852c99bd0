"""Streams of text equal the whole, for any tokens, any bytes and any division into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text.detokenize import IncrementalDecoder
from octavo.text.literals import Masker, compile_words
from octavo.text.stops import StopSearch
from octavo.text.templates import ChatTemplate, encode_chat
from octavo.text.tokenizer import Tokenizer
from text_vocabularies import byte_level, sentencepiece

TOKENIZERS = {
    "byte-level": Tokenizer.from_metadata(byte_level()),
    "sentencepiece": Tokenizer.from_metadata(sentencepiece()),
    "without prefix": Tokenizer.from_metadata(sentencepiece(add_space_prefix=False)),
}
SMALL = st.text(alphabet="ab\n ", max_size=40)
STOPS = st.lists(st.text(alphabet="ab\n ", min_size=1, max_size=5), max_size=4)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data(), skip=st.booleans(), continuation=st.booleans())
@settings(max_examples=150, deadline=None)
def test_pieces_joined_are_the_whole(
    name: str, data: st.DataObject, skip: bool, continuation: bool
) -> None:
    tokenizer = TOKENIZERS[name]
    any_id = st.integers(0, tokenizer.vocabulary_size - 1)
    groups = data.draw(st.lists(st.lists(any_id, max_size=4), max_size=12))
    decoder = IncrementalDecoder(tokenizer, skip_special=skip, continuation=continuation)
    pieces = [decoder.push(group) for group in groups]
    pieces.append(decoder.flush())
    ids = [token for group in groups for token in group]
    assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip, continuation=continuation)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(max_size=60) | st.text(alphabet="hia <|/s>\n_endm\u597d", max_size=60))
@settings(max_examples=200, deadline=None)
def test_text_comes_back_and_is_literal(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special=True, parse_special=False)
    body = ids[1:] if tokenizer.add_bos else ids
    assert not any(tokenizer.is_control(token) for token in body)
    expected = text if name == "byte-level" else text.replace("\u2581", " ")
    assert tokenizer.decode(ids) == expected


@given(text=SMALL, stops=STOPS, cuts=st.lists(st.integers(0, 40), max_size=6), keep=st.booleans())
@settings(max_examples=500)
def test_stop_search_equals_a_plain_search_of_the_whole(
    text: str, stops: list[str], cuts: list[int], keep: bool
) -> None:
    ends = [(i + len(s), i, s) for s in stops for i in range(len(text)) if text.startswith(s, i)]
    expected = (text, None)
    if ends:
        end, start, stop = min(ends)
        expected = (text[: end if keep else start], stop)
    search = StopSearch(stops, include_stop=keep)
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    sent, found = "", None
    for begin, end in pairwise(places):
        piece, found = search.push(text[begin:end])
        sent += piece
        if found is not None:
            break
    assert (sent + search.flush(), found) == expected


@given(words=st.lists(st.text(alphabet="ab<|", min_size=1, max_size=5), max_size=8), text=SMALL)
def test_the_prefix_tree_finds_the_longest_word_at_each_place(words: list[str], text: str) -> None:
    text = text.replace("\n", "<").replace(" ", "|")
    place, expected = 0, []
    while place < len(text):
        here = [word for word in words if text.startswith(word, place)]
        if here:
            expected.append((place, max(here, key=len)))
        place += len(max(here, key=len)) if here else 1
    found = [(m.start(), m.group()) for m in compile_words(words).finditer(text)]
    assert found == expected


@given(text=st.text(alphabet="<|im_end>\U000f0000 /thk", max_size=40))
def test_masking_is_one_for_one_and_comes_back(text: str) -> None:
    masker = Masker(["<|im_end|>", "<|im_start|>"], "{{ content.split('</think>') }}")
    mask = masker.mask([text])
    hidden = mask.hide(text)
    assert len(hidden) == len(text)
    assert mask.reveal(hidden) == text
    assert "<|" not in hidden
    assert hidden.count("</think>") == text.count("</think>")


CHAT = ChatTemplate(
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content.split('</think>')[-1] }}"
    "{{ m.content.split('</think>')[0] | trim }}<|im_end|>{% endfor %}",
    control_names=TOKENIZERS["byte-level"].control_ids,
)
FRAGMENTS = "<|im_end|>,<|im_start|>,<|im,_end|>,<,|>,</think>,<|endoftext|>,hi, "
PARTS = st.sampled_from(FRAGMENTS.split(","))


@given(contents=st.lists(st.lists(PARTS, max_size=6).map("".join), min_size=1, max_size=3))
@settings(deadline=None)
def test_no_user_text_opens_a_control_token_whatever_the_template_does(contents: list[str]) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    messages = [{"role": "user", "content": content} for content in contents]
    ids = encode_chat(tokenizer, CHAT, messages)
    controls = [tokenizer.vocabulary.tokens[i] for i in ids if tokenizer.is_control(i)]
    assert controls == ["<|im_start|>", "<|im_end|>"] * len(contents)
    parts = [content.split("</think>") for content in contents]
    expected = "".join(f"user {part[-1]}{part[0].strip()}" for part in parts)
    assert tokenizer.decode(ids) == expected
