"""Identity of a full page: a chained hash of everything its content depends on."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 32
_TOKEN_BYTES = 4


def root_key(fingerprint: bytes, salt: bytes) -> bytes:
    """Key before the first page.

    `fingerprint` names weights, numerics and layout; `salt` separates tenants. The length in front
    keeps two different pairs from reading the same.
    """
    seed = len(fingerprint).to_bytes(8, "little") + fingerprint + salt
    return blake2b(seed, digest_size=KEY_BYTES, person=b"octavo root").digest()


def child_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Key of a page of `token_ids` that follows the page of key `parent` (BLAKE2b, RFC 7693)."""
    return _child_key(parent, _content(token_ids))


def group_key(key: bytes, group: int) -> bytes:
    """Key of the page that cache group `group` has for the tokens of the page of `key`.

    Keys are as good as random, so those of two pages differ in more than the last byte.
    """
    return key[:-1] + bytes((key[-1] ^ group,))


def extend_keys(keys: list[bytes], root: bytes, token_ids: Sequence[int], page_tokens: int) -> None:
    """Append the keys of the full pages of `token_ids` that `keys` does not have yet."""
    content = _content(token_ids[len(keys) * page_tokens :])
    page_bytes = _TOKEN_BYTES * page_tokens
    key = keys[-1] if keys else root
    for start in range(0, len(content) - page_bytes + 1, page_bytes):
        key = _child_key(key, content[start : start + page_bytes])
        keys.append(key)


def _content(token_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


def _child_key(parent: bytes, content: bytes) -> bytes:
    return blake2b(parent + content, digest_size=KEY_BYTES, person=b"octavo page").digest()
