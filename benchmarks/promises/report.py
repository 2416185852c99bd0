"""What each class got, beside what it was promised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.serving.pace import Record
from benchmarks.serving.report import Spread, gaps_of, tpot_of

from octavo.core.service_classes import BUILT_IN, ServiceClass


@dataclass(frozen=True, slots=True)
class ClassResult:
    """One class; times in seconds, of whole answers, None where there were none.

    `kept` are shares of all that were offered: of the first-token target, of the inter-token target
    (mean of an answer), of both; None where nothing is promised.
    """

    name: str
    offered: int
    whole: int
    ttft: Spread | None
    gap: Spread | None
    tpot: Spread | None
    end_to_end: Spread | None
    kept_first_token: float | None
    kept_inter_token: float | None
    kept_both: float


def results_of(
    records: Sequence[Record], promises: Iterable[ServiceClass] = BUILT_IN
) -> list[ClassResult]:
    """One result a class, in the order of the promises."""
    known = {each.name: each for each in promises}
    names = dict.fromkeys([*known, *(record.job.service_class or "" for record in records)])
    found = []
    for name in names:
        own = [record for record in records if (record.job.service_class or "") == name]
        if own:
            found.append(_result(name, own, known.get(name, ServiceClass(name or "none"))))
    return found


def kept(record: Record, promise: ServiceClass) -> tuple[bool, bool]:
    """Whether an answer met the first-token and the inter-token target; a failed one met none."""
    if record.answer.failure is not None or not record.answer.text_seconds:
        return False, False
    first = record.answer.text_seconds[0] - record.due_seconds
    return (
        _within(first, promise.first_token_seconds),
        _within(tpot_of(record) or 0.0, promise.inter_token_seconds),
    )


def _result(name: str, records: list[Record], promise: ServiceClass) -> ClassResult:
    whole = [record for record in records if record.answer.failure is None]
    answered = [record for record in whole if record.answer.text_seconds]
    both = [kept(record, promise) for record in records]
    count = len(records)
    first_share = sum(first for first, _ in both) / count
    rest_share = sum(rest for _, rest in both) / count
    return ClassResult(
        name=name,
        offered=count,
        whole=len(whole),
        ttft=Spread.of(each.answer.text_seconds[0] - each.due_seconds for each in answered),
        gap=Spread.of(gap for each in whole for gap in gaps_of(each)),
        tpot=Spread.of(each for each in map(tpot_of, whole) if each is not None),
        end_to_end=Spread.of(each.answer.end_seconds - each.due_seconds for each in whole),
        kept_first_token=None if promise.first_token_seconds is None else first_share,
        kept_inter_token=None if promise.inter_token_seconds is None else rest_share,
        kept_both=sum(all(each) for each in both) / count,
    )


def _within(seconds: float, target: float | None) -> bool:
    return target is None or seconds <= target


def table(results: Sequence[ClassResult]) -> str:
    """For people; milliseconds."""
    header = (
        f"{'class':<10}{'whole':>9}{'TTFT p50':>10}{'p99':>9}{'largest':>9}"
        f"{'gap p50':>9}{'p99':>8}{'largest':>9}{'end p50':>10}"
        f"{'kept TTFT':>11}{'TPOT':>7}{'both':>7}"
    )
    lines = [header]
    for one in results:
        cells = [
            _cell(one.ttft, "p50", 10),
            _cell(one.ttft, "p99", 9),
            _cell(one.ttft, "largest", 9),
            _cell(one.gap, "p50", 9),
            _cell(one.gap, "p99", 8),
            _cell(one.gap, "largest", 9),
            _cell(one.end_to_end, "p50", 10),
            _share(one.kept_first_token, 11),
            _share(one.kept_inter_token, 7),
            _share(one.kept_both, 7),
        ]
        lines.append(f"{one.name:<10}{f'{one.whole}/{one.offered}':>9}" + "".join(cells))
    return "\n".join(lines)


def _cell(spread: Spread | None, part: str, width: int) -> str:
    return f"{'-' if spread is None else f'{1000 * getattr(spread, part):.0f}':>{width}}"


def _share(share: float | None, width: int) -> str:
    return f"{'-' if share is None else f'{share:.0%}':>{width}}"
