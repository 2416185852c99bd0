"""Runs step plans on a loaded model, from permanent rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from octavo.compute.batch import Batch, Draw, Score, StepModel, StepOutput
from octavo.core.clock import Clock, monotonic
from octavo.core.errors import EngineError
from octavo.core.ids import RequestId
from octavo.core.output import TokenLogprob
from octavo.core.request import Request
from octavo.schedule.plan import (
    NO_DECODES,
    NO_TOKEN,
    DecodeRows,
    RowPlan,
    RowResult,
    StepPlan,
    StepResult,
)

_BAD_LOGITS = "the model's logits for this request are not finite numbers"


class _Row:
    """A running request: its draw settings, filled in once.

    `generated` are the tokens it has drawn, kept only if penalties look at them.
    """

    __slots__ = ("draw", "generated", "min_tokens", "prompt_tokens", "request", "stop_ids")

    def __init__(self, request: Request, generated: Sequence[int]):
        self.request = request
        self.prompt_tokens = len(request.prompt)
        self.min_tokens = request.params.min_tokens
        self.generated = list(generated) if _is_penalised(request) else None
        self.stop_ids = tuple(sorted(request.stop_ids))
        self.draw = _draw_settings(request, self.generated)

    def draw_after(self, end: int, token: int) -> Draw:
        """The draw of the token at position `end`, from the logits of batch token `token`."""
        draw = self.draw
        draw.token = token
        draw.counter = counter = end - self.prompt_tokens
        if self.generated is not None:
            # A plan that was interrupted is run again and must not see its own first draw.
            del self.generated[counter:]
        draw.banned = self.stop_ids if counter < self.min_tokens else ()
        return draw


def _is_penalised(request: Request) -> bool:
    params = request.params
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def _draw_settings(request: Request, generated: list[int] | None) -> Draw:
    params = request.params
    return Draw(
        token=0,
        seed=request.seed,
        counter=0,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        bias_ids=tuple(params.logit_bias),
        bias_values=tuple(params.logit_bias.values()),
        # `generated` is shared on purpose: the draw always sees the tokens so far.
        history_prompt=() if generated is None else request.prompt,
        history_output=() if generated is None else generated,
        top=params.logprobs,
    )


class ModelExecutor:
    """Copies the pages of a plan and turns its rows into one `StepModel.step` call.

    A row's page table and request stay in place from admission until its row is closed, preempted
    or reused; nothing per request is allocated in a step but its result. Rows that decode are taken
    and answered as columns. When a step raises, its rows are run again one at a time, so that only
    those at fault fail: a step writes only pages its own rows hold, so running it twice leaves the
    same bytes. The cache has `groups` groups.
    """

    def __init__(
        self,
        model: StepModel,
        *,
        max_rows: int,
        max_pages_per_row: int,
        max_batch_tokens: int,
        groups: int = 1,
        clock: Clock = monotonic,
    ):
        self._model = model
        self._clock = clock
        self._rows: list[_Row | None] = [None] * max_rows
        self._groups = groups
        self._tables = np.zeros((max_rows, max_pages_per_row), dtype=np.int32)
        self._tokens = np.zeros(max_batch_tokens, dtype=np.int32)
        self._lone_starts = np.arange(max_rows + 1, dtype=np.int32)
        self._row_starts = np.zeros(max_rows + 1, dtype=np.int32)
        self._past = np.zeros(max_rows, dtype=np.int32)
        self._gathered = np.zeros_like(self._tables)
        self._closed = False

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one plan.

        Raises:
            EngineError: the plan does not fit the rows or buffers the executor was made with.
        """
        started = self._clock()
        for row in plan.closed_rows:
            self._rows[row] = None
        for preemption in plan.preemptions:
            self._rows[preemption.row] = None
        for admission in plan.admissions:
            self._rows[admission.row] = _Row(admission.request, admission.generated)
        if plan.copies:
            pages = self._model.kv_pages()
            for source, target in plan.copies:
                pages[target] = pages[source]
        self._append_pages(plan)
        decodes, chunks = plan.decodes, plan.chunks
        tokens: Sequence[int] = ()
        logprobs: Sequence[tuple[TokenLogprob, ...] | None] = ()
        results: list[RowResult] = []
        native_seconds = 0.0
        if len(decodes) or chunks:
            try:
                output = self._run(decodes, chunks)
            except Exception as error:
                results, native_seconds = self._run_apart(plan.rows, error)
            else:
                native_seconds = output.native_seconds
                tokens, logprobs = self._decoded(decodes, output, results)
                self._add_chunks(chunks, len(decodes), output, results)
        return StepResult(
            number=plan.number,
            rows=tuple(results),
            elapsed_seconds=self._clock() - started,
            native_seconds=native_seconds,
            decoded=tokens,
            decoded_logprobs=logprobs,
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._model.close()

    def _append_pages(self, plan: StepPlan) -> None:
        decodes = plan.decodes
        for place, pages in decodes.new_pages:
            start = decodes.table_starts.item(place)
            self._append(decodes.rows.item(place), decodes.request_ids[place], start, pages)
        for row in plan.chunks:
            if row.new_pages:
                self._append(row.row, row.request_id, row.table_start, row.new_pages)

    def _append(self, row: int, request_id: str, start: int, pages: Sequence[int]) -> None:
        start *= self._groups
        width, end = self._tables.shape[1], start + len(pages)
        if end > width:
            raise EngineError(f"request {request_id} needs {end} pages, its row holds {width}")
        self._tables[row, start:end] = pages

    def _run_apart(
        self, rows: Sequence[RowPlan], error: Exception
    ) -> tuple[list[RowResult], float]:
        """One row at a time, after all together have raised `error`."""
        if len(rows) == 1:
            message = f"{type(error).__name__}: {error}"
            return [RowResult(rows[0].row, rows[0].request_id, error=message)], 0.0
        results: list[RowResult] = []
        native_seconds = 0.0
        for row in rows:
            try:
                output = self._run(NO_DECODES, (row,))
            except Exception as own_error:
                results += self._run_apart((row,), own_error)[0]
            else:
                self._add_chunks((row,), 0, output, results)
                native_seconds += output.native_seconds
        return results, native_seconds

    def _run(self, decodes: DecodeRows, chunks: Sequence[RowPlan]) -> StepOutput:
        """One call of the model for rows that decode and then all others."""
        starts = decodes.starts.tolist()
        draws = [
            self._row(row, request_id).draw_after(start + 1, place)
            for place, (row, request_id, start) in enumerate(
                zip(decodes.rows.tolist(), decodes.request_ids, starts, strict=True)
            )
        ]
        scores: list[Score] = []
        batch = self._batch(decodes, chunks, draws, scores)
        return self._model.step(batch, draws, scores)

    def _batch(
        self,
        decodes: DecodeRows,
        chunks: Sequence[RowPlan],
        draws: list[Draw],
        scores: list[Score],
    ) -> Batch:
        """The input arrays; what of `chunks` is to be drawn and scored goes to the lists."""
        at = count = len(decodes)
        rows = decodes.rows
        row_starts = self._lone_starts
        self._tokens[:at] = decodes.tokens
        self._past[:at] = decodes.starts
        if chunks:
            # One conversion of a list costs less than a numpy assignment a row.
            tokens: list[int] = []
            ends: list[int] = []
            for plan in chunks:
                row = self._row(plan.row, plan.request_id)
                if plan.score_prompt:
                    scores += _scores(row.request, plan, at + len(tokens))
                tokens += plan.tokens
                ends.append(at + len(tokens))
                if plan.wants_token:
                    draws.append(row.draw_after(plan.start + len(plan.tokens), ends[-1] - 1))
            count += len(chunks)
            row_starts = self._row_starts
            row_starts[: at + 1] = self._lone_starts[: at + 1]
            row_starts[at + 1 : count + 1] = ends
            self._past[at:count] = [plan.start for plan in chunks]
            rows = np.concatenate((rows, [plan.row for plan in chunks]))
            self._tokens[at : ends[-1]] = tokens
            at = ends[-1]
        return Batch(
            tokens=self._tokens[:at],
            row_starts=row_starts[: count + 1],
            past=self._past[:count],
            tables=self._tables.take(rows, axis=0, out=self._gathered[:count]),
        )

    def _row(self, number: int, request_id: RequestId) -> _Row:
        row = self._rows[number]
        if row is None or row.request.id != request_id:
            raise EngineError(f"row {number} does not hold request {request_id}")
        return row

    def _decoded(
        self, decodes: DecodeRows, output: StepOutput, results: list[RowResult]
    ) -> tuple[list[int], Sequence[tuple[TokenLogprob, ...] | None]]:
        """Tokens and log-probabilities of the rows that decode; those that failed to `results`."""
        count = len(decodes)
        tokens = output.drawn[:count]
        for place, token in enumerate(tokens):
            number = decodes.rows.item(place)
            row = self._rows[number]
            if token < 0:
                error = output.draw_errors.get(place, _BAD_LOGITS)
                results.append(RowResult(number, decodes.request_ids[place], error=error))
                tokens[place] = NO_TOKEN
            elif row is not None and row.generated is not None:
                row.generated.append(token)
        logprobs = output.drawn_logprobs[:count]
        if not any(logprobs):
            return tokens, ()
        return tokens, [None if each is None else (each,) for each in logprobs]

    def _add_chunks(
        self,
        chunks: Sequence[RowPlan],
        draw_number: int,
        output: StepOutput,
        results: list[RowResult],
    ) -> None:
        """Add the results of `chunks`, whose first draw is number `draw_number`."""
        score_number = 0
        for plan in chunks:
            row = self._row(plan.row, plan.request_id)
            error: str | None = None
            prompt_logprobs: tuple[TokenLogprob, ...] = ()
            if plan.score_prompt:
                targets = max(min(len(plan.tokens), row.prompt_tokens - plan.start - 1), 0)
                prompt_logprobs = tuple(output.scored[score_number : score_number + targets])
                score_number += targets
                if any(math.isnan(entry.logprob) for entry in prompt_logprobs):
                    error = _BAD_LOGITS
            tokens: tuple[int, ...] = ()
            logprobs: tuple[TokenLogprob, ...] | None = None
            if plan.wants_token:
                token = output.drawn[draw_number]
                logprob = output.drawn_logprobs[draw_number]
                if token < 0:
                    error = output.draw_errors.get(draw_number, _BAD_LOGITS)
                draw_number += 1
                if error is None:
                    if row.generated is not None:
                        row.generated.append(token)
                    tokens = (token,)
                    logprobs = None if logprob is None else (logprob,)
            if error is not None:
                results.append(RowResult(plan.row, plan.request_id, error=error))
            else:
                results.append(
                    RowResult(plan.row, plan.request_id, tokens, logprobs, prompt_logprobs)
                )


def _scores(request: Request, plan: RowPlan, first: int) -> list[Score]:
    """The prompt tokens that a row scores; its own first one is batch token `first`."""
    top = request.params.prompt_logprobs or 0
    targets = request.prompt[plan.start + 1 : plan.start + 1 + len(plan.tokens)]
    return [Score(first + offset, target, top) for offset, target in enumerate(targets)]
