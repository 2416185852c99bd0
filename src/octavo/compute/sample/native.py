"""Draws and scores in C++ from logits that something else computed.

A CPU model's step does this inside its own call; this is for other back ends and for tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.compute.batch import Draw, Float32Array, Score, StepOutput
from octavo.compute.kernels.cpu import _native
from octavo.compute.sample.params import pack_jobs


class NativeSampler:
    """Same answers as `reference.draw_and_score`; rows are shared out among `threads` threads.

    Raises:
        ValueError: the vocabulary is empty or has 2^22 tokens or more, or `threads` is not from 1
            to 1024.
    """

    def __init__(self, vocabulary_size: int, *, threads: int = 1):
        if not 1 <= vocabulary_size < 2**22:
            raise ValueError(f"a vocabulary has 1 to {2**22 - 1} tokens, not {vocabulary_size}")
        self._vocabulary_size = vocabulary_size
        self._sampler = _native.Sampler(vocabulary_size, threads)

    def draw_and_score(
        self,
        logits: Float32Array,
        wanted: Sequence[int],
        draws: Sequence[Draw],
        scores: Sequence[Score],
    ) -> StepOutput:
        """Answer `draws` and `scores` from `logits` [len(wanted), vocabulary].

        Row i belongs to batch token wanted[i]. One caller at a time.

        Raises:
            ValueError: a setting is out of its domain, or a row or token id does not exist.
        """
        packed = pack_jobs(draws, scores, self._vocabulary_size)
        row_of = {token: row for row, token in enumerate(wanted)}
        try:
            rows = [row_of[token] for token in packed.wanted.tolist()]
        except KeyError as missing:
            raise ValueError(f"the logits of batch token {missing} are not at hand") from None
        in_order = rows == list(range(len(logits)))
        self._sampler.sample(
            np.ascontiguousarray(logits if in_order else logits[rows], dtype=np.float32),
            *packed.arrays(),
        )
        return packed.output()
