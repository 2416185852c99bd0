"""Streams of random numbers that follow from one seed."""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derive_seed(seed: int, index: int) -> int:
    """The 64-bit seed of choice `index` of a request; index 0 keeps the seed itself (mod 2^64).

    Others are splitmix64's output number `index` from state `seed` (Steele, Lea and Flood, "Fast
    splittable pseudorandom number generators", 2014), so the streams of one request differ.

    Raises:
        ValueError: the index is negative.
    """
    if index < 0:
        raise ValueError(f"a choice has an index from 0, not {index}")
    if index == 0:
        return seed & _MASK
    mixed = (seed + index * _GOLDEN) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
