"""What a simulation says about promises: a value for machines and a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octavo.plan.records import Outcome, Record, StepTotals
from octavo.plan.statistics import Spread, spread
from octavo.schedule.counters import SchedulerCounters


@dataclass(frozen=True, slots=True)
class Targets:
    """What a class promises, in seconds; None promises nothing."""

    first_token_seconds: float | None = None
    token_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ClassReport:
    """One service class.

    Attainments are shares of all offered requests: one that was refused or failed missed. A
    request kept the inter-token target if its mean time between tokens did. `goodput` counts the
    requests that kept both targets, per second of the whole run. `gap_seconds` are all times
    between two tokens of one answer, `token_seconds` their means by request.
    """

    name: str
    offered: int
    outcomes: Mapping[str, int]
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    queue_seconds: Spread
    first_token_seconds: Spread
    token_seconds: Spread
    gap_seconds: Spread
    targets: Targets
    first_token_attainment: float | None
    token_attainment: float | None
    goodput_per_second: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a replay found; the same trace and settings give the same report."""

    span_seconds: float
    classes: tuple[ClassReport, ...]
    steps: Mapping[str, float]
    utilisation: Mapping[str, float]
    cache: Mapping[str, float]
    preemptions: int

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        return asdict(self)


def make_report(
    records: Sequence[Record],
    totals: StepTotals,
    counters: SchedulerCounters,
    *,
    targets: Mapping[str, Targets],
    max_rows: int,
    token_budget: int,
) -> Report:
    """Sum a simulation up, strictest classes as `targets` lists them first."""
    span_seconds = max((record.ended_seconds or 0.0 for record in records), default=0.0)
    seen = {record.service_class: None for record in records}
    names = [*(name for name in targets if name in seen), *sorted(seen.keys() - targets.keys())]
    busy = totals.busy_seconds
    prompt_tokens = sum(record.prompt_tokens for record in records)
    cached_tokens = sum(record.cached_tokens for record in records)
    return Report(
        span_seconds=span_seconds,
        classes=tuple(
            _class_report(
                name,
                [record for record in records if record.service_class == name],
                targets.get(name, Targets()),
                span_seconds,
            )
            for name in names
        ),
        steps={
            "total": totals.steps,
            "prefill_only": totals.prefill_steps,
            "decode_only": totals.decode_steps,
            "mixed": totals.mixed_steps,
            "longest_seconds": totals.longest_step_seconds,
            "mean_seconds": _share(busy, totals.steps),
            "mean_rows": _share(totals.rows, totals.steps),
            "computed_tokens": totals.tokens,
        },
        utilisation={
            "busy": _share(busy, span_seconds),
            "rows": _share(totals.row_seconds, busy * max_rows),
            "token_budget": _share(totals.tokens, totals.steps * token_budget),
            "pages_held": _share(totals.held_share_seconds, busy),
            "pages_held_peak": totals.peak_held_share,
        },
        cache={
            "hit_share": _share(cached_tokens, prompt_tokens),
            "hit_pages": counters.hit_pages,
            "evicted_pages": counters.evicted_pages,
            "prefix_waits": counters.prefix_waits,
        },
        preemptions=counters.preemptions,
    )


def _class_report(
    name: str, records: Sequence[Record], targets: Targets, span_seconds: float
) -> ClassReport:
    ended = [record.outcome for record in records]
    first = [_kept_first_token(record, targets) for record in records]
    later = [_kept_token(record, targets) for record in records]
    return ClassReport(
        name=name,
        offered=len(records),
        outcomes={outcome.value: ended.count(outcome) for outcome in Outcome},
        prompt_tokens=sum(record.prompt_tokens for record in records),
        cached_tokens=sum(record.cached_tokens for record in records),
        answer_tokens=sum(record.answer_tokens for record in records),
        queue_seconds=_spread_known(record.queue_seconds for record in records),
        first_token_seconds=_spread_known(record.time_to_first_token_seconds for record in records),
        token_seconds=_spread_known(record.seconds_per_token for record in records),
        gap_seconds=spread(gap for record in records for gap in record.gap_seconds),
        targets=targets,
        first_token_attainment=(
            None if targets.first_token_seconds is None else _share(sum(first), len(records))
        ),
        token_attainment=(
            None if targets.token_seconds is None else _share(sum(later), len(records))
        ),
        goodput_per_second=_share(
            sum(a and b for a, b in zip(first, later, strict=True)), span_seconds
        ),
    )


def _spread_known(values: Any) -> Spread:
    return spread(value for value in values if value is not None)


def _kept_first_token(record: Record, targets: Targets) -> bool:
    if record.outcome is not Outcome.FINISHED:
        return False
    taken = record.time_to_first_token_seconds
    wanted = targets.first_token_seconds
    return wanted is None or taken is None or taken <= wanted


def _kept_token(record: Record, targets: Targets) -> bool:
    if record.outcome is not Outcome.FINISHED:
        return False
    taken, wanted = record.seconds_per_token, targets.token_seconds
    return wanted is None or taken is None or taken <= wanted


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def format_report(report: Report) -> str:
    """The report as lines of at most 100 characters."""
    lines = []
    for one in report.classes:
        lines += [*_class_lines(one), ""]
    steps, used, cache = report.steps, report.utilisation, report.cache
    lines += [
        f"span         {report.span_seconds:.1f} s, busy {used['busy']:.1%}",
        f"steps        {steps['total']:.0f}: {steps['prefill_only']:.0f} prefill only, "
        f"{steps['decode_only']:.0f} decode only, {steps['mixed']:.0f} mixed",
        f"step         mean {_milliseconds(steps['mean_seconds'])}, "
        f"longest {_milliseconds(steps['longest_seconds'])}, {steps['mean_rows']:.1f} rows",
        f"fullness     rows {used['rows']:.1%}, token budget {used['token_budget']:.1%}, "
        f"pages held {used['pages_held']:.1%} (peak {used['pages_held_peak']:.1%})",
        f"tokens       {steps['computed_tokens']:.0f} computed, "
        f"{cache['hit_share']:.1%} of the prompts from the cache",
        f"cache        {cache['hit_pages']:.0f} pages reused, "
        f"{cache['evicted_pages']:.0f} evicted, {cache['prefix_waits']:.0f} waits for a prefix",
        f"preemptions  {report.preemptions}",
    ]
    return "\n".join(lines)


def _class_lines(one: ClassReport) -> list[str]:
    ended = ", ".join(f"{count} {name}" for name, count in one.outcomes.items() if count)
    lines = [
        f"{one.name}: {one.offered} requests ({ended}), {one.prompt_tokens} prompt tokens "
        f"({one.cached_tokens} cached), {one.answer_tokens} answered",
        f"  {'':14}{'p50':>10}{'p90':>10}{'p99':>10}{'longest':>10}  {'target':>10}{'kept':>8}",
    ]
    rows = (
        ("queue", one.queue_seconds, None, None),
        (
            "TTFT",
            one.first_token_seconds,
            one.targets.first_token_seconds,
            one.first_token_attainment,
        ),
        ("TPOT", one.token_seconds, one.targets.token_seconds, one.token_attainment),
        ("inter-token", one.gap_seconds, None, None),
    )
    for title, found, target, kept in rows:
        cells = "".join(
            f"{_milliseconds(value):>10}"
            for value in (found.p50, found.p90, found.p99, found.longest)
        )
        promise = (
            "" if target is None or kept is None else (f"  {_milliseconds(target):>10}{kept:>8.1%}")
        )
        lines.append(f"  {title:14}{cells}{promise}".rstrip())
    lines.append(f"  goodput       {one.goodput_per_second:.3f} requests/s")
    return lines


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"
