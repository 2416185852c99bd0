"""Keys of pages: what they are made of, and that two ways to them meet."""

from __future__ import annotations

import struct
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.memory.keys import child_key, extend_keys, root_key

ROOT = root_key(b"model", b"salt")
TOKENS = st.integers(0, 2**31 - 1)


@settings(deadline=None)
@given(tokens=st.lists(TOKENS, max_size=200))
def test_a_key_is_a_hash_of_the_key_before_and_the_tokens(tokens: list[int]) -> None:
    content = ROOT + struct.pack(f"<{len(tokens)}i", *tokens)
    expected = blake2b(content, digest_size=32, person=b"octavo page").digest()
    assert child_key(ROOT, tokens) == expected


@pytest.mark.parametrize("tokens", [24, 56, 88, 120])
def test_content_that_ends_with_a_block_of_the_hash(tokens: int) -> None:
    content = ROOT + bytes(4 * tokens)
    expected = blake2b(content, digest_size=32, person=b"octavo page").digest()
    assert child_key(ROOT, [0] * tokens) == expected


@settings(deadline=None)
@given(
    tokens=st.lists(TOKENS, max_size=40),
    more=st.lists(TOKENS, max_size=40),
    page_tokens=st.integers(1, 9),
)
def test_keys_are_those_of_each_page_after_the_other(
    tokens: list[int], more: list[int], page_tokens: int
) -> None:
    keys: list[bytes] = []
    extend_keys(keys, ROOT, tokens, page_tokens)
    assert len(keys) == len(tokens) // page_tokens
    extend_keys(keys, ROOT, tokens + more, page_tokens)
    parent, expected = ROOT, []
    for end in range(page_tokens, len(tokens + more) + 1, page_tokens):
        parent = child_key(parent, (tokens + more)[end - page_tokens : end])
        expected.append(parent)
    assert keys == expected


def test_wrong_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        child_key(b"short", [1])
    with pytest.raises(IndexError, match="32-bit"):
        child_key(ROOT, [2**31])
    with pytest.raises(TypeError):
        child_key(ROOT, ["a"])  # type: ignore[list-item]
