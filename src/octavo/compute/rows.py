"""Rows of running sequences, which stay from step to step, and the steps that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from octavo.compute.batch import Batch, Draw, Score, StepModel, StepOutput
from octavo.core.errors import EngineError


@dataclass(slots=True)
class RowSettings:
    """A sequence that gets a row: how its tokens are drawn, after a prompt of so many tokens.

    `draw` holds what it has drawn so far if penalties look at that; its `token`, `counter` and
    `banned` mean nothing. `stop_ids` are banned until `min_tokens` have been drawn.
    """

    draw: Draw
    prompt_tokens: int
    min_tokens: int = 0
    stop_ids: Sequence[int] = field(default_factory=tuple)


class ChunkRow(NamedTuple):
    """A row that computes `tokens` from position `start` on, and draws after them if it `draws`.

    Its first positions score the tokens `targets`, with the `top` most likely ones.
    """

    row: int
    start: int
    tokens: Sequence[int]
    draws: bool
    targets: Sequence[int] = ()
    top: int = 0


class StepRows(Protocol):
    """The rows of one model.

    A step that is run again gives the same answer: its draws do not see themselves.
    """

    def seat(self, row: int, settings: RowSettings) -> None:
        """Give a row to a sequence, with nothing in its page table.

        Raises:
            ValueError: a setting is not one that the model takes.
        """
        ...

    def vacate(self, row: int) -> None:
        """Take a row away from whoever has it."""
        ...

    def append(self, row: int, start: int, pages: Sequence[int]) -> None:
        """Put pages into a row's page table, from entry `start` on."""
        ...

    def step(
        self, rows: list[int], starts: list[int], tokens: list[int], chunks: Sequence[ChunkRow]
    ) -> StepOutput:
        """Run a step of rows that compute one token and draw the next, and then of `chunks`.

        Raises:
            ValueError: a row or token is not there, or the step does not fit the model.
        """
        ...


@runtime_checkable
class HasRows(Protocol):
    """A model that keeps rows itself."""

    def step_rows(self, max_rows: int, table_width: int) -> StepRows:
        """Rows with page tables of `table_width` entries each."""
        ...


def rows_of(
    model: StepModel, *, max_rows: int, table_width: int, max_batch_tokens: int
) -> StepRows:
    """The model's own rows, or such as are gathered anew for each step."""
    if isinstance(model, HasRows):
        return model.step_rows(max_rows, table_width)
    return GatheredRows(model, max_rows, table_width, max_batch_tokens)


class _Row:
    __slots__ = ("drawn", "settings")

    def __init__(self, settings: RowSettings):
        self.settings = settings
        self.drawn = list(settings.draw.history_output) if settings.draw.looks_back else None
        # Shared on purpose: the draw always sees the tokens so far.
        settings.draw.history_output = () if self.drawn is None else self.drawn

    def draw_after(self, end: int, token: int) -> Draw:
        """The draw of the token at position `end`, from the logits of batch token `token`."""
        settings = self.settings
        draw = settings.draw
        draw.token = token
        draw.counter = counter = end - settings.prompt_tokens
        if self.drawn is not None:
            del self.drawn[counter:]
        draw.banned = settings.stop_ids if counter < settings.min_tokens else ()
        return draw


class GatheredRows:
    """Rows for a model that takes batches: the plain form of what other models do themselves."""

    def __init__(self, model: StepModel, max_rows: int, table_width: int, max_batch_tokens: int):
        self._model = model
        self._rows: list[_Row | None] = [None] * max_rows
        self._tables = np.zeros((max_rows, table_width), dtype=np.int32)
        self._max_batch_tokens = max_batch_tokens

    def seat(self, row: int, settings: RowSettings) -> None:
        self._rows[row] = _Row(settings)

    def vacate(self, row: int) -> None:
        self._rows[row] = None

    def append(self, row: int, start: int, pages: Sequence[int]) -> None:
        self._tables[row, start : start + len(pages)] = pages

    def step(
        self, rows: list[int], starts: list[int], tokens: list[int], chunks: Sequence[ChunkRow]
    ) -> StepOutput:
        drawing: list[_Row] = []
        draws: list[Draw] = []
        scores: list[Score] = []
        ids = list(tokens)
        ends = list(range(len(ids) + 1))
        for place, (number, start) in enumerate(zip(rows, starts, strict=True)):
            drawing.append(self._row(number))
            draws.append(drawing[-1].draw_after(start + 1, place))
        for chunk in chunks:
            first = len(ids)
            scores += [
                Score(first + offset, target, chunk.top)
                for offset, target in enumerate(chunk.targets)
            ]
            ids += chunk.tokens
            ends.append(len(ids))
            if chunk.draws:
                drawing.append(self._row(chunk.row))
                draws.append(drawing[-1].draw_after(chunk.start + len(chunk.tokens), len(ids) - 1))
        if len(ids) > self._max_batch_tokens:
            raise ValueError(f"the batch has {len(ids)} tokens, more than {self._max_batch_tokens}")
        batch = Batch(
            tokens=np.array(ids, dtype=np.int32),
            row_starts=np.array(ends, dtype=np.int32),
            past=np.array([*starts, *(chunk.start for chunk in chunks)], dtype=np.int32),
            tables=self._tables[[*rows, *(chunk.row for chunk in chunks)]],
        )
        output = self._model.step(batch, draws, scores)
        for row, token in zip(drawing, output.drawn, strict=True):
            if row.drawn is not None and token >= 0:
                row.drawn.append(token)
        return output

    def _row(self, number: int) -> _Row:
        row = self._rows[number]
        if row is None:
            raise EngineError(f"nobody has row {number}")
        return row
