"""What a simulation remembers of each request and of all steps."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from octavo.core.output import EngineOutput
from octavo.core.request import FinishReason
from octavo.plan.synthetic import request_id
from octavo.plan.traces import TraceRequest
from octavo.schedule.plan import StepPlan


class Outcome(Enum):
    """How a request ended."""

    FINISHED = "finished"
    REFUSED = "refused"
    """There was no room for it in its queue."""
    UNSERVABLE = "unservable"
    """It could not run even alone: its prompt is longer than the context or the whole cache."""
    TIMED_OUT = "timed out"
    FAILED = "failed"


@dataclass(slots=True)
class Record:
    """One request: times in seconds since the first arrival, None for what did not happen.

    `gap_seconds` are the times between its tokens, in order.
    """

    service_class: str
    prompt_tokens: int
    arrival_seconds: float
    admitted_seconds: float | None = None
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    ended_seconds: float | None = None
    answer_tokens: int = 0
    cached_tokens: int = 0
    outcome: Outcome | None = None
    error: str | None = None
    gap_seconds: array[float] = field(default_factory=lambda: array("d"))

    @property
    def queue_seconds(self) -> float | None:
        """From arrival to the first row."""
        return _since(self.arrival_seconds, self.admitted_seconds)

    @property
    def time_to_first_token_seconds(self) -> float | None:
        return _since(self.arrival_seconds, self.first_token_seconds)

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time between two tokens of the answer (TPOT); None with fewer than two."""
        if self.answer_tokens < 2:
            return None
        span = _since(self.first_token_seconds, self.last_token_seconds)
        return None if span is None else span / (self.answer_tokens - 1)


def _since(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


@dataclass(slots=True)
class StepTotals:
    """Sums over steps with rows; shares are weighted by the time of their steps."""

    steps: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    mixed_steps: int = 0
    rows: int = 0
    tokens: int = 0
    busy_seconds: float = 0.0
    longest_step_seconds: float = 0.0
    row_seconds: float = 0.0
    held_share_seconds: float = 0.0
    peak_held_share: float = 0.0

    def add(self, plan: StepPlan, seconds: float, held_share: float) -> None:
        """Count one step; `held_share` of the pages of the cache were held after it."""
        rows = plan.row_count
        tokens = plan.token_count
        # A prefill of a single token at its end counts as a decode: it is as large as one.
        decodes = len(plan.decodes) + sum(len(row.tokens) == 1 for row in plan.chunks)
        self.steps += 1
        self.prefill_steps += decodes == 0
        self.decode_steps += decodes == rows
        self.mixed_steps += 0 < decodes < rows
        self.rows += rows
        self.tokens += tokens
        self.busy_seconds += seconds
        self.longest_step_seconds = max(self.longest_step_seconds, seconds)
        self.row_seconds += rows * seconds
        self.held_share_seconds += held_share * seconds
        self.peak_held_share = max(self.peak_held_share, held_share)


class Recorder:
    """Fills in the records while a simulation runs."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.totals = StepTotals()
        self.ended = 0
        self._open: dict[str, Record] = {}

    def arrive(self, traced: TraceRequest, service_class: str) -> Record:
        """Begin the record of the next request."""
        record = Record(service_class, traced.prompt_tokens, traced.arrival_seconds)
        self._open[request_id(len(self.records))] = record
        self.records.append(record)
        return record

    def refuse(self, record: Record, outcome: Outcome, error: str, now: float) -> None:
        """End the record of the request that arrived last."""
        del self._open[request_id(len(self.records) - 1)]
        self._end(record, outcome, now)
        record.error = error

    def admit(self, plan: StepPlan, now: float) -> None:
        """Note who got a row for the first time."""
        for admission in plan.admissions:
            record = self._open[admission.request.id]
            if record.admitted_seconds is None:
                record.admitted_seconds = now

    def take(self, outputs: Iterable[EngineOutput], now: float) -> None:
        """Note the news of a step."""
        for output in outputs:
            record = self._open[output.request_id]
            if output.token_ids:
                _take_tokens(record, len(output.token_ids), now)
            record.cached_tokens = output.cached_tokens
            if output.finish_reason is not None:
                del self._open[output.request_id]
                self._end(record, _OUTCOMES.get(output.finish_reason, Outcome.FAILED), now)
                record.error = output.error

    def _end(self, record: Record, outcome: Outcome, now: float) -> None:
        record.outcome = outcome
        record.ended_seconds = now
        self.ended += 1


def _take_tokens(record: Record, count: int, now: float) -> None:
    if record.last_token_seconds is None:
        record.first_token_seconds = now
    else:
        record.gap_seconds.append(now - record.last_token_seconds)
    # Tokens that come in one step have no time between them.
    record.gap_seconds.extend([0.0] * (count - 1))
    record.last_token_seconds = now
    record.answer_tokens += count


_OUTCOMES = {
    FinishReason.STOP: Outcome.FINISHED,
    FinishReason.LENGTH: Outcome.FINISHED,
    FinishReason.TIMEOUT: Outcome.TIMED_OUT,
}
