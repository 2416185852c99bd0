"""Philox4x32-10, a counter-based random number generator (Salmon et al., SC 2011)."""

from __future__ import annotations

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 2**32 - 1
_BLOCK = tuple[int, int, int, int]


def philox4x32_10(counter: _BLOCK, key: tuple[int, int]) -> _BLOCK:
    """Four random 32-bit words that depend on `counter` and `key` only."""
    key0, key1 = key
    for _ in range(10):
        product0 = _MULTIPLIERS[0] * counter[0]
        product1 = _MULTIPLIERS[1] * counter[2]
        counter = (
            (product1 >> 32) ^ counter[1] ^ key0,
            product1 & _WORD,
            (product0 >> 32) ^ counter[3] ^ key1,
            product0 & _WORD,
        )
        key0 = (key0 + _WEYL[0]) & _WORD
        key1 = (key1 + _WEYL[1]) & _WORD
    return counter


def philox_bits(seed: int, counter: int) -> int:
    """64 random bits of draw number `counter` of the stream `seed`."""
    block = philox4x32_10(
        (counter & _WORD, counter >> 32 & _WORD, 0, 0), (seed & _WORD, seed >> 32 & _WORD)
    )
    return block[1] << 32 | block[0]
