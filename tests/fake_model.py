"""A step model without arithmetic: tokens follow from a hash of what its paged cache holds.

Whoever hands it a wrong page table, position or neighbour's page changes the tokens, so tests of
the engine see it at once. It reads no slot that was not written: that fails the test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from octavo.compute.batch import (
    Batch,
    ByteRows,
    Draw,
    ElasticBuffers,
    Float32Array,
    Score,
    StepOutput,
)
from octavo.compute.program import KvLayout, Program
from octavo.core.cache_groups import CacheGroups
from octavo.core.output import TokenLogprob

UNWRITTEN = -1


class FakeModel:
    """`poison` ids make a whole step raise; `nan` ids give the row that holds one bad logits.

    Generated tokens are chosen from `answers`, from the whole vocabulary if it is empty.
    """

    def __init__(
        self,
        vocabulary_size: int = 50,
        context_tokens: int = 4096,
        *,
        poison: Sequence[int] = (),
        nan: Sequence[int] = (),
        answers: Sequence[int] = (),
    ):
        self.program = Program(
            "fake", (), {}, KvLayout(1, 1, 16), vocabulary_size, context_tokens, 16
        )
        self.weight_bytes = 0
        self.poison = frozenset(poison)
        self.nan = frozenset(nan)
        self.answers = tuple(answers) or tuple(range(vocabulary_size))
        self.closed = 0
        self.discards = 0
        self.batches: list[list[int]] = []
        """Tokens computed for each row of each step."""
        self._kv = np.zeros((0, 0), dtype=np.int64)

    def page_bytes(self, page_tokens: int) -> int:
        return page_tokens * 64

    def allocate_kv(self, pages: int, page_tokens: int, groups: CacheGroups | None = None) -> None:
        """Nothing here has a window."""
        assert groups is None or groups.count == 1
        self._kv = np.full((pages, page_tokens), UNWRITTEN, dtype=np.int64)

    def kv_pages(self) -> ByteRows:
        return self._kv.view(np.uint8)

    def elastic(self) -> ElasticBuffers:
        return self

    def discard_kv(self, first: int, count: int) -> int:
        self._kv[first : first + count] = UNWRITTEN
        self.discards += 1
        return count * self.page_bytes(self._kv.shape[1])

    def populate_kv(self, first: int, count: int) -> None:
        """Contents stay as they are."""

    def discard_workspace(self) -> int:
        return 0

    def logits(self, batch: Batch, wanted: Sequence[int]) -> Float32Array:
        """Random rows that follow from each prefix."""
        self._write(batch)
        seeds = [_hash(tuple(self._prefix(batch, token))) for token in wanted]
        rows = [np.random.default_rng(seed).random(self.vocabulary_size) for seed in seeds]
        return np.array(rows, dtype=np.float32)

    def step(self, batch: Batch, draws: Sequence[Draw], scores: Sequence[Score]) -> StepOutput:
        if self.poison.intersection(batch.tokens.tolist()):
            raise RuntimeError("poisoned")
        self._write(batch)
        self.batches.append(np.diff(batch.row_starts).tolist())
        output = StepOutput()
        for number, draw in enumerate(draws):
            prefix = self._prefix(batch, draw.token)
            if self.nan.intersection(prefix):
                output.drawn.append(-1)
                output.drawn_logprobs.append(None)
                output.draw_errors[number] = "bad logits"
                continue
            token = self.next_token(prefix, draw)
            output.drawn.append(token)
            output.drawn_logprobs.append(
                None if draw.top is None else self.logprob(prefix, token, draw.top)
            )
        for score in scores:
            prefix = self._prefix(batch, score.token)
            output.scored.append(self.logprob(prefix, score.target, score.top))
        return output

    def close(self) -> None:
        self.closed += 1

    def next_token(self, prefix: Sequence[int], draw: Draw) -> int:
        """What follows `prefix`; with a temperature it depends on seed and counter too."""
        salt = (draw.seed, draw.counter) if draw.temperature > 0 else ()
        history = (tuple(draw.history_prompt), tuple(draw.history_output))
        penalised = draw.repetition_penalty != 1.0
        place = _hash((*prefix, *salt, *(history if penalised else ())))
        while self.answers[place % len(self.answers)] in draw.banned:
            place += 1
        return self.answers[place % len(self.answers)]

    def logprob(self, prefix: Sequence[int], token: int, top: int) -> TokenLogprob:
        value = -float(_hash((*prefix, token)) % 1000) / 100
        return TokenLogprob(token, value, tuple((other, -float(other)) for other in range(top)))

    @property
    def vocabulary_size(self) -> int:
        return self.program.vocabulary_size

    def _write(self, batch: Batch) -> None:
        page_tokens = self._kv.shape[1]
        for row, past in enumerate(batch.past.tolist()):
            tokens = batch.tokens[batch.row_starts[row] : batch.row_starts[row + 1]]
            for offset, token in enumerate(tokens.tolist()):
                page, slot = divmod(past + offset, page_tokens)
                self._kv[batch.tables[row, page], slot] = token

    def _prefix(self, batch: Batch, token: int) -> list[int]:
        row = int(np.searchsorted(batch.row_starts, token, side="right")) - 1
        length = int(batch.past[row]) + token - int(batch.row_starts[row]) + 1
        page_tokens = self._kv.shape[1]
        pages = batch.tables[row, : -(-length // page_tokens)]
        prefix = self._kv[pages].reshape(-1)[:length].tolist()
        assert UNWRITTEN not in prefix, "a slot was read that was not written"
        return prefix


def _hash(values: tuple[object, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=6).digest(), "little")
