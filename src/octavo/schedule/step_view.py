"""What a step is planned from: its bounds, and the state that it is decided on."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from octavo.memory.cache import PageCache
from octavo.schedule.cost import CostModel
from octavo.schedule.lane import Lane
from octavo.schedule.producers import Producers
from octavo.schedule.rows import Rows
from octavo.schedule.tails import PromptTails


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step: tokens over all rows, rows, tokens of one prefill chunk, seconds.

    `is_contiguous`: an admission reserves one run of pages for the whole answer.
    """

    token_budget: int
    max_rows: int
    max_chunk_tokens: int
    max_step_seconds: float | None = None
    starvation_seconds: float = 5.0
    is_contiguous: bool = False


class StepView:
    """What a plan is made from.

    `lanes` are the classes, strictest first; `closed_rows` may be used again; `may_join` says how
    many requests that never ran may get a row, None if any number may, and `padded_tokens` the
    length that their prompts are padded to, 0 if they are not. `between_seconds` is what usually
    passes from the end of one step's computation to the next one's beginning.
    """

    def __init__(
        self,
        *,
        lanes: Ordered[Lane],
        rows: Rows,
        free_rows: Collection[int],
        closed_rows: Ordered[int],
        producers: Producers,
        tails: PromptTails,
        cache: PageCache,
        cost: CostModel,
        now_seconds: float,
        may_join: int | None,
        padded_tokens: int,
        between_seconds: float,
    ):
        self.lanes = lanes
        self.rows = rows
        self.free_rows = free_rows
        self.closed_rows = closed_rows
        self.producers = producers
        self.tails = tails
        self.cache = cache
        self.cost = cost
        self.now_seconds = now_seconds
        self.may_join = may_join
        self.padded_tokens = padded_tokens
        self.between_seconds = between_seconds
