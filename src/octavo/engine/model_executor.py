"""Runs step plans on a loaded model, from permanent rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from octavo.compute.batch import Batch, Draw, Score, StepModel, StepOutput
from octavo.core.clock import Clock, monotonic
from octavo.core.errors import EngineError
from octavo.core.output import TokenLogprob
from octavo.core.request import Request
from octavo.schedule.plan import Admission, RowPlan, RowResult, StepPlan, StepResult

_BAD_LOGITS = "the model's logits for this request are not finite numbers"


class _Row:
    """A running request: its draw settings, filled in once, and the tokens it has generated."""

    __slots__ = ("draw", "generated", "request", "stop_ids")

    def __init__(self, request: Request, generated: Sequence[int]):
        self.request = request
        self.generated = list(generated)
        self.stop_ids = tuple(sorted(request.stop_ids))
        self.draw = _draw_settings(request, self.generated)


def _draw_settings(request: Request, generated: list[int]) -> Draw:
    params = request.params
    penalised = (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )
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
        history_prompt=request.prompt if penalised else (),
        history_output=generated if penalised else (),
        top=params.logprobs,
    )


class ModelExecutor:
    """Copies the pages of a plan and turns its rows into one `StepModel.step` call.

    A row's page table and request stay in place from admission until its row is closed, preempted
    or reused; nothing per request is allocated in a step but its result. When a step raises, its
    rows are run again one at a time, so that only those at fault fail: a step writes only pages
    its own rows hold, so running it twice leaves the same bytes. The cache has `groups` groups.
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
            self._admit(admission)
        if plan.copies:
            pages = self._model.kv_pages()
            for source, target in plan.copies:
                pages[target] = pages[source]
        rows = plan.rows
        self._append_pages(rows)
        results, native_seconds = self._run(rows) if rows else ([], 0.0)
        return StepResult(
            number=plan.number,
            rows=tuple(results),
            elapsed_seconds=self._clock() - started,
            native_seconds=native_seconds,
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._model.close()

    def _admit(self, admission: Admission) -> None:
        self._rows[admission.row] = _Row(admission.request, admission.generated)

    def _append_pages(self, rows: Sequence[RowPlan]) -> None:
        width = self._tables.shape[1]
        for row in rows:
            if row.new_pages:
                start = row.table_start * self._groups
                end = start + len(row.new_pages)
                if end > width:
                    raise EngineError(
                        f"request {row.request_id} needs {end} pages, its row holds {width}"
                    )
                self._tables[row.row, start:end] = row.new_pages

    def _run(self, rows: Sequence[RowPlan]) -> tuple[list[RowResult], float]:
        try:
            return self._run_together(rows)
        except Exception as error:
            if len(rows) == 1:
                message = f"{type(error).__name__}: {error}"
                return [RowResult(rows[0].row, rows[0].request_id, error=message)], 0.0
        results: list[RowResult] = []
        native_seconds = 0.0
        for row in rows:
            alone, seconds = self._run([row])
            results += alone
            native_seconds += seconds
        return results, native_seconds

    def _run_together(self, rows: Sequence[RowPlan]) -> tuple[list[RowResult], float]:
        draws: list[Draw] = []
        scores: list[Score] = []
        batch = self._batch(rows, draws, scores)
        output = self._model.step(batch, draws, scores)
        return self._results(rows, output), output.native_seconds

    def _batch(self, rows: Sequence[RowPlan], draws: list[Draw], scores: list[Score]) -> Batch:
        """The input arrays of `rows`; what is to be drawn and scored goes to the lists."""
        # One conversion of a list costs less than a numpy assignment a row.
        tokens: list[int] = []
        row_starts = [0]
        for plan in rows:
            if plan.score_prompt:
                scores += self._scores(plan, len(tokens))
            tokens += plan.tokens
            row_starts.append(len(tokens))
            if plan.wants_token:
                draws.append(self._draw(plan, len(tokens) - 1))
        at, count = len(tokens), len(rows)
        self._tokens[:at] = tokens
        self._row_starts[: count + 1] = row_starts
        self._past[:count] = [plan.start for plan in rows]
        gathered = self._gathered[:count]
        np.take(self._tables, [plan.row for plan in rows], axis=0, out=gathered)
        return Batch(
            tokens=self._tokens[:at],
            row_starts=self._row_starts[: count + 1],
            past=self._past[:count],
            tables=gathered,
        )

    def _row(self, plan: RowPlan) -> _Row:
        row = self._rows[plan.row]
        if row is None or row.request.id != plan.request_id:
            raise EngineError(f"row {plan.row} does not hold request {plan.request_id}")
        return row

    def _draw(self, plan: RowPlan, token: int) -> Draw:
        row = self._row(plan)
        draw = row.draw
        draw.token = token
        draw.counter = plan.start + len(plan.tokens) - len(row.request.prompt)
        # A plan that was interrupted is run again and must not see its own first draw.
        del row.generated[draw.counter :]
        draw.banned = row.stop_ids if draw.counter < row.request.params.min_tokens else ()
        return draw

    def _scores(self, plan: RowPlan, first: int) -> list[Score]:
        request = self._row(plan).request
        top = request.params.prompt_logprobs or 0
        targets = request.prompt[plan.start + 1 : plan.start + 1 + len(plan.tokens)]
        return [Score(first + offset, target, top) for offset, target in enumerate(targets)]

    def _results(self, rows: Sequence[RowPlan], output: StepOutput) -> list[RowResult]:
        results = []
        draw_number = score_number = 0
        for plan in rows:
            row = self._row(plan)
            error: str | None = None
            prompt_logprobs: tuple[TokenLogprob, ...] = ()
            if plan.score_prompt:
                targets = max(min(len(plan.tokens), len(row.request.prompt) - plan.start - 1), 0)
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
                    row.generated.append(token)
                    tokens = (token,)
                    logprobs = None if logprob is None else (logprob,)
            if error is not None:
                results.append(RowResult(plan.row, plan.request_id, error=error))
            else:
                results.append(
                    RowResult(plan.row, plan.request_id, tokens, logprobs, prompt_logprobs)
                )
        return results
