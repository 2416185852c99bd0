"""Identity of a full page: a chained hash of everything its content depends on."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from octavo.memory import _pages

KEY_BYTES = 32


def root_key(fingerprint: bytes, salt: bytes) -> bytes:
    """Key before the first page.

    `fingerprint` names weights, numerics and layout; `salt` separates tenants. The length in front
    keeps two different pairs from reading the same.
    """
    seed = len(fingerprint).to_bytes(8, "little") + fingerprint + salt
    return blake2b(seed, digest_size=KEY_BYTES, person=b"octavo root").digest()


def child_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Key of a page of `token_ids` that follows the page of key `parent` (BLAKE2b, RFC 7693)."""
    return _pages.child_key(parent, token_ids)


def group_key(key: bytes, group: int) -> bytes:
    """Key of the page that cache group `group` has for the tokens of the page of `key`.

    Keys are as good as random, so those of two pages differ in more than the last byte.
    """
    return key[:-1] + bytes((key[-1] ^ group,))


def extend_keys(keys: list[bytes], root: bytes, token_ids: Sequence[int], page_tokens: int) -> None:
    """Append the keys of the full pages of `token_ids` that `keys` does not have yet."""
    _pages.extend_keys(keys, root, token_ids, page_tokens)
