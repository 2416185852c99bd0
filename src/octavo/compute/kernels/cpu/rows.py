"""Rows that stay in native code: a step of decoding rows is one call with three columns."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from octavo.compute.batch import StepOutput
from octavo.compute.kernels.cpu import _native
from octavo.compute.rows import ChunkRow, RowSettings
from octavo.compute.sample.params import STATUS_MESSAGES, draw_bytes
from octavo.core.output import TokenLogprob


class NativeRows:
    """Implements `StepRows` on the model that `model` gives while it is open."""

    def __init__(self, model: Callable[[], _native.Model], rows: _native.StepRows):
        self._model = model
        self._rows = rows

    def seat(self, row: int, settings: RowSettings) -> None:
        draw = settings.draw
        sees = draw.looks_back
        try:
            self._rows.seat(
                row,
                draw_bytes(draw),
                list(draw.bias_ids),
                list(draw.bias_values),
                list(settings.stop_ids),
                list(draw.history_prompt) if sees else [],
                list(draw.history_output) if sees else [],
                settings.prompt_tokens,
                settings.min_tokens,
            )
        except (OverflowError, TypeError, struct.error) as error:
            raise ValueError(f"a number of a draw is too large: {error}") from None

    def vacate(self, row: int) -> None:
        self._rows.vacate(row)

    def append(self, row: int, start: int, pages: Sequence[int]) -> None:
        self._rows.append(row, start, pages)

    def step(
        self, rows: list[int], starts: list[int], tokens: list[int], chunks: Sequence[ChunkRow]
    ) -> StepOutput:
        seconds, drawn, has_more = self._rows.run(self._model(), rows, starts, tokens, chunks)
        if has_more:
            return _output_of(self._rows.answers(), seconds)
        return StepOutput(drawn=drawn, native_seconds=seconds)


def _output_of(answers: list[_native.Answer], seconds: float) -> StepOutput:
    output = StepOutput(native_seconds=seconds)
    for is_draw, has_logprob, token, logprob, status, ids, logprobs in answers:
        entry = TokenLogprob(token, logprob, tuple(zip(ids, logprobs, strict=True)))
        if not is_draw:
            output.scored.append(entry)
            continue
        if status:
            output.draw_errors[len(output.drawn)] = STATUS_MESSAGES[status]
        output.drawn.append(token)
        output.drawn_logprobs.append(entry if has_logprob and not status else None)
    return output
