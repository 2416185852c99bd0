"""One step's input and output for any interpreter, and what an interpreter must offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.compute.program import Program
from octavo.core.cache_groups import CacheGroups
from octavo.core.output import TokenLogprob

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]
ByteRows = NDArray[np.uint8]


@dataclass(slots=True)
class Batch:
    """The tokens of one step: R sequences with row_starts[r+1] - row_starts[r] tokens each.

    tokens [T] int32; row_starts [R + 1] int32; past [R] int32: tokens of the sequence already in
    the cache, so token i of row r stands at position past[r] + i; tables [R, P] int32: physical
    pages in the order of positions, where the cache has several groups one of each for the same
    tokens (entries beyond the sequence, or before the window of a group, are not read).
    """

    tokens: Int32Array
    row_starts: Int32Array
    past: Int32Array
    tables: Int32Array


@dataclass(slots=True)
class Draw:
    """Sample one token from the logits of batch token `token`.

    `history_prompt` and `history_output` are the ids that penalties look at (may be empty when no
    penalty is set). `counter` is the number of tokens drawn before in this sequence: with `seed`
    it fixes the random number. `banned` ids get -inf (min_tokens). `top` None: no
    log-probabilities; k: the chosen token's and the k most likely.
    """

    token: int
    seed: int
    counter: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias_ids: Sequence[int] = ()
    bias_values: Sequence[float] = ()
    banned: Sequence[int] = ()
    history_prompt: Sequence[int] = ()
    history_output: Sequence[int] = ()
    top: int | None = None

    @property
    def looks_back(self) -> bool:
        """A penalty is set: the tokens before it change the draw."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(slots=True)
class Score:
    """Log-probability of `target` after batch token `token`, and the `top` most likely tokens."""

    token: int
    target: int
    top: int = 0


@dataclass(slots=True)
class StepOutput:
    """`drawn[i]` answers draws[i] and `scored[i]` scores[i].

    `drawn_logprobs[i]` is None unless draws[i] asked for it; there is none if no draw did.
    A draw that failed alone has token -1 and its cause in `draw_errors`; a score that failed has
    log-probability NaN.
    """

    drawn: list[int] = field(default_factory=list)
    drawn_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    scored: list[TokenLogprob] = field(default_factory=list)
    draw_errors: dict[int, str] = field(default_factory=dict)
    native_seconds: float = 0.0


class ElasticBuffers(Protocol):
    """Buffers whose memory comes and goes; pages are named by their ids."""

    def discard_kv(self, first: int, count: int) -> int:
        """Give the memory of pages back to the system, between two steps; the bytes."""
        ...

    def populate_kv(self, first: int, count: int) -> None:
        """Have memory put behind pages without touching contents; any thread may call."""
        ...

    def discard_workspace(self) -> int:
        """Give back what only a running step needs; the bytes."""
        ...


class StepModel(Protocol):
    """A loaded model on one back end, with its KV cache."""

    program: Program
    weight_bytes: int

    def page_bytes(self, page_tokens: int) -> int:
        """Bytes of one KV page of `page_tokens` tokens, all layers."""
        ...

    def allocate_kv(self, pages: int, page_tokens: int, groups: CacheGroups | None = None) -> None:
        """(Re)allocate the cache, pages having the layers of one group; contents are lost.

        Without `groups` there is one, of all layers.
        """
        ...

    def kv_pages(self) -> ByteRows:
        """The cache as bytes [pages, bytes of a page], not a copy; between two steps only."""
        ...

    def elastic(self) -> ElasticBuffers | None:
        """What can give memory back and take it again while the model is loaded."""
        ...

    def logits(self, batch: Batch, wanted: Sequence[int]) -> Float32Array:
        """Run a step; return logits [len(wanted), vocabulary] of the batch tokens in `wanted`."""
        ...

    def step(self, batch: Batch, draws: Sequence[Draw], scores: Sequence[Score]) -> StepOutput:
        """Run a step, draw and score; never holds more than a block of logit rows at once."""
        ...

    def close(self) -> None:
        """Free weights and cache."""
        ...
