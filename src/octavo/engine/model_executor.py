"""Runs step plans on a loaded model, from permanent rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from octavo.compute.batch import Draw, StepModel, StepOutput
from octavo.compute.rows import ChunkRow, RowSettings, rows_of
from octavo.core.clock import Clock, monotonic
from octavo.core.errors import EngineError
from octavo.core.ids import RequestId
from octavo.core.output import TokenLogprob
from octavo.core.request import Request
from octavo.schedule.plan import (
    NO_DECODES,
    NO_TOKEN,
    Admission,
    DecodeRows,
    RowPlan,
    RowResult,
    StepPlan,
    StepResult,
)

_BAD_LOGITS = "the model's logits for this request are not finite numbers"


def _settings_of(request: Request, generated: Sequence[int]) -> RowSettings:
    params = request.params
    draw = Draw(
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
        top=params.logprobs,
    )
    if draw.looks_back:
        draw.history_prompt, draw.history_output = request.prompt, generated
    return RowSettings(
        draw, len(request.prompt), params.min_tokens, tuple(sorted(request.stop_ids))
    )


class ModelExecutor:
    """Copies the pages of a plan and turns its rows into one step of the model.

    A row's page table and draw settings stay in place from admission until its row is closed,
    preempted or reused (`compute.rows`). Rows that decode are taken and answered as columns. When a
    step raises, its rows are run again one at a time, so that only those at fault fail: a step
    writes only pages its own rows hold, so running it twice leaves the same bytes. The cache has
    `groups` groups.
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
        self._requests: list[Request | None] = [None] * max_rows
        self._refusals: dict[int, str] = {}
        """Why rows that were given away have nobody."""
        self._groups = groups
        self._table_width = max_pages_per_row
        self._rows = rows_of(
            model,
            max_rows=max_rows,
            table_width=max_pages_per_row,
            max_batch_tokens=max_batch_tokens,
        )
        self._closed = False

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one plan.

        Raises:
            EngineError: the plan does not fit the rows or buffers the executor was made with.
        """
        started = self._clock()
        for row in plan.closed_rows:
            self._vacate(row)
        for preemption in plan.preemptions:
            self._vacate(preemption.row)
        for admission in plan.admissions:
            self._seat(admission)
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
        if decodes.rows or chunks:
            try:
                output = self._run(decodes, chunks)
            except Exception as error:
                results, native_seconds = self._run_apart(plan.rows, error)
            else:
                native_seconds = output.native_seconds
                tokens, logprobs = self._decoded(decodes, output, results)
                self._add_chunks(chunks, len(decodes.rows), output, results)
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

    def _seat(self, admission: Admission) -> None:
        row, request = admission.row, admission.request
        self._vacate(row)
        try:
            self._rows.seat(row, _settings_of(request, admission.generated))
        except ValueError as error:
            # Whoever else is in the plan has nothing to do with it.
            self._refusals[row] = str(error)
        else:
            self._requests[row] = request

    def _vacate(self, row: int) -> None:
        self._refusals.pop(row, None)
        self._requests[row] = None
        self._rows.vacate(row)

    def _append_pages(self, plan: StepPlan) -> None:
        decodes = plan.decodes
        for place, pages in decodes.new_pages:
            start = decodes.table_starts[place]
            self._append(decodes.rows[place], decodes.request_ids[place], start, pages)
        for row in plan.chunks:
            if row.new_pages:
                self._append(row.row, row.request_id, row.table_start, row.new_pages)

    def _append(self, row: int, request_id: str, start: int, pages: Sequence[int]) -> None:
        start *= self._groups
        width, end = self._table_width, start + len(pages)
        if end > width:
            raise EngineError(f"request {request_id} needs {end} pages, its row holds {width}")
        if self._requests[row] is not None:
            self._rows.append(row, start, pages)

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
        for row, request_id in zip(decodes.rows, decodes.request_ids, strict=True):
            self._check(row, request_id)
        parts = [_chunk_of(plan, self._check(plan.row, plan.request_id)) for plan in chunks]
        return self._rows.step(decodes.rows, decodes.starts, decodes.tokens, parts)

    def _check(self, row: int, request_id: RequestId) -> Request:
        request = self._requests[row]
        if request is None or request.id != request_id:
            reason = self._refusals.get(row, f"row {row} does not hold request {request_id}")
            raise EngineError(reason)
        return request

    def _decoded(
        self, decodes: DecodeRows, output: StepOutput, results: list[RowResult]
    ) -> tuple[list[int], Sequence[tuple[TokenLogprob, ...] | None]]:
        """Tokens and log-probabilities of the rows that decode; those that failed to `results`."""
        count = len(decodes.rows)
        tokens = output.drawn[:count]
        for place in [place for place, token in enumerate(tokens) if token < 0]:
            error = output.draw_errors.get(place, _BAD_LOGITS)
            number = decodes.rows[place]
            results.append(RowResult(number, decodes.request_ids[place], error=error))
            tokens[place] = NO_TOKEN
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
            error: str | None = None
            prompt_logprobs: tuple[TokenLogprob, ...] = ()
            if plan.score_prompt:
                targets = len(_targets(plan, self._check(plan.row, plan.request_id)))
                prompt_logprobs = tuple(output.scored[score_number : score_number + targets])
                score_number += targets
                if any(math.isnan(entry.logprob) for entry in prompt_logprobs):
                    error = _BAD_LOGITS
            tokens: tuple[int, ...] = ()
            logprobs: tuple[TokenLogprob, ...] | None = None
            if plan.wants_token:
                token = output.drawn[draw_number]
                logprob = output.drawn_logprobs[draw_number] if output.drawn_logprobs else None
                if token < 0:
                    error = output.draw_errors.get(draw_number, _BAD_LOGITS)
                draw_number += 1
                if error is None:
                    tokens = (token,)
                    logprobs = None if logprob is None else (logprob,)
            if error is not None:
                results.append(RowResult(plan.row, plan.request_id, error=error))
            else:
                results.append(
                    RowResult(plan.row, plan.request_id, tokens, logprobs, prompt_logprobs)
                )


def _targets(plan: RowPlan, request: Request) -> tuple[int, ...]:
    """The prompt tokens that a row scores."""
    if not plan.score_prompt:
        return ()
    return request.prompt[plan.start + 1 : plan.start + 1 + len(plan.tokens)]


def _chunk_of(plan: RowPlan, request: Request) -> ChunkRow:
    targets = _targets(plan, request)
    top = request.params.prompt_logprobs or 0
    return ChunkRow(plan.row, plan.start, plan.tokens, plan.wants_token, targets, top)
