"""The merges of a vocabulary whose file has only scores, found among its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FILTER_BITS = 24


def derive_merges(
    ids: dict[str, int], scores: Sequence[float] | None = None
) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, the best first.

    Best is the highest score of the result (`scores` by id) or, without scores, the lowest id;
    equals are ordered by falling length of the left part. Tokens are found by polynomial hashes of
    all their prefixes and suffixes at once (Karp and Rabin 1987).
    """
    tokens = list(ids)
    if not tokens:
        return []
    whole, left, right = _splits(tokens)
    numbers = np.fromiter(ids.values(), np.int64, len(tokens))
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    if scores is None:
        order = np.argsort(numbers[whole] * (1 << 24) - lengths[left], kind="stable")
    else:
        rank = -np.asarray(scores)[numbers[whole]]
        order = np.lexsort((numbers[whole], -lengths[right], -lengths[left], rank))
    table = np.array(tokens, dtype=object)
    return list(zip(table[left[order]].tolist(), table[right[order]].tolist(), strict=True))


def _splits(tokens: Sequence[str]) -> tuple[NDArray[np.int64], ...]:
    """Indices (whole, left, right) of all splits of a token into two tokens.

    Compared by a 64-bit hash alone: a chance collision among 10^6 splits has odds of 1 in 10^7.
    """
    codes = np.frombuffer("".join(tokens).encode("utf-32-le"), np.uint32).astype(np.uint64)
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    base = 0x9E3779B97F4A7C15
    with np.errstate(over="ignore"):
        powers = _powers(base, codes.size + 1)
        inverse = _powers(pow(base, -1, 2**64), codes.size + 1)
        sums = np.zeros(codes.size + 1, np.uint64)
        np.cumsum((codes + np.uint64(1)) * powers[:-1], out=sums[1:])

        def hashes(begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.uint64]:
            return (sums[end] - sums[begin]) * inverse[begin]

        known = hashes(starts, ends)
        owner = np.repeat(np.arange(len(tokens)), lengths)
        cuts = np.arange(codes.size)
        inside = cuts != starts[owner]
        owner, cuts = owner[inside], cuts[inside]
        left, right = hashes(starts[owner], cuts), hashes(cuts, ends[owner])
    # One bit of memory a few hash bits wide turns most of the misses away before the search.
    seen = np.zeros(1 << _FILTER_BITS, np.bool_)
    shift = np.uint64(64 - _FILTER_BITS)
    seen[known >> shift] = True
    likely = seen[left >> shift] & seen[right >> shift]
    owner, left, right = owner[likely], left[likely], right[likely]
    by_hash = np.argsort(known, kind="stable")
    ordered = known[by_hash]
    at_left = np.minimum(np.searchsorted(ordered, left), ordered.size - 1)
    at_right = np.minimum(np.searchsorted(ordered, right), ordered.size - 1)
    both = (ordered[at_left] == left) & (ordered[at_right] == right)
    return owner[both], by_hash[at_left[both]], by_hash[at_right[both]]


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)
