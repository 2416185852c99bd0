"""Numbers from records: percentiles, throughput, how exact the lengths were; table and JSON."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.serving.pace import Record


@dataclass(frozen=True, slots=True)
class Spread:
    """Of seconds; percentiles are interpolated linearly between the nearest ranks."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    largest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None if there are no values."""
        found = np.fromiter(values, dtype=np.float64)
        if not found.size:
            return None
        p50, p90, p99 = np.percentile(found, (50, 90, 99)).tolist()
        return cls(found.size, float(found.mean()), p50, p90, p99, float(found.max()))


@dataclass(frozen=True, slots=True)
class Summary:
    """One run. Latencies are those of whole answers only, and None where there were none.

    `ttft` from when the request was due to the first text; `tpot` the time from first to last text
    over the tokens between, one value a request; `gap` between events with text, of all requests;
    `longest_gap` one value a request; `end_to_end` until the answer's end. `late` is how long after
    its time the client sent a request. Output counts tokens of whole answers.
    """

    requests: int
    whole: int
    failures: dict[str, int]
    first_messages: dict[str, str]
    interrupted: bool
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    text_events: int
    output_tokens_per_second: float
    total_tokens_per_second: float
    requests_per_second: float
    ttft: Spread | None
    tpot: Spread | None
    gap: Spread | None
    longest_gap: Spread | None
    end_to_end: Spread | None
    late: Spread | None
    prompts_of_other_length: int
    largest_prompt_difference_tokens: int
    answers_of_other_length: int
    uncounted_answers: int
    textless_answers: int
    client_cpu_seconds: float
    client_cpu_share: float
    """Of one core, while the load ran."""


def summarise(
    records: Sequence[Record],
    *,
    seconds: float,
    client_cpu_seconds: float,
    interrupted: bool = False,
) -> Summary:
    whole = [record for record in records if record.answer.failure is None]
    failed = [record.answer.failure for record in records if record.answer.failure is not None]
    output_tokens = sum(map(output_tokens_of, whole))
    prompt_tokens = sum(record.answer.prompt_tokens or 0 for record in whole)
    seconds = max(seconds, 1e-9)
    differences = [
        abs(record.answer.prompt_tokens - record.job.prompt_tokens)
        for record in whole
        if record.answer.prompt_tokens is not None
    ]
    gaps = [gaps_of(record) for record in whole]
    return Summary(
        requests=len(records),
        whole=len(whole),
        failures=dict(Counter(failure.kind for failure in failed)),
        first_messages={failure.kind: failure.message for failure in reversed(failed)},
        interrupted=interrupted,
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(record.answer.cached_tokens or 0 for record in whole),
        output_tokens=output_tokens,
        text_events=sum(len(record.answer.text_seconds) for record in whole),
        output_tokens_per_second=output_tokens / seconds,
        total_tokens_per_second=(prompt_tokens + output_tokens) / seconds,
        requests_per_second=len(whole) / seconds,
        ttft=Spread.of(
            record.answer.text_seconds[0] - record.due_seconds
            for record in whole
            if record.answer.text_seconds
        ),
        tpot=Spread.of(each for each in map(tpot_of, whole) if each is not None),
        gap=Spread.of(gap for each in gaps for gap in each),
        longest_gap=Spread.of(max(each) for each in gaps if each),
        end_to_end=Spread.of(record.answer.end_seconds - record.due_seconds for record in whole),
        late=Spread.of(record.sent_seconds - record.due_seconds for record in records),
        prompts_of_other_length=sum(difference > 0 for difference in differences),
        largest_prompt_difference_tokens=max(differences, default=0),
        answers_of_other_length=sum(
            output_tokens_of(record) != record.job.output_tokens for record in whole
        ),
        uncounted_answers=sum(record.answer.output_tokens is None for record in whole),
        textless_answers=sum(not record.answer.text for record in whole),
        client_cpu_seconds=client_cpu_seconds,
        client_cpu_share=client_cpu_seconds / seconds,
    )


def output_tokens_of(record: Record) -> int:
    """As the server counts; the events with text if it does not."""
    counted = record.answer.output_tokens
    return len(record.answer.text_seconds) if counted is None else counted


def gaps_of(record: Record) -> list[float]:
    return [later - earlier for earlier, later in pairwise(record.answer.text_seconds)]


def tpot_of(record: Record) -> float | None:
    """None for an answer of one token, or one that came in one piece."""
    tokens, times = output_tokens_of(record), record.answer.text_seconds
    if tokens < 2 or len(times) < 2:
        return None
    return (times[-1] - times[0]) / (tokens - 1)


_ROWS = (
    ("TTFT", "ttft"),
    ("TPOT", "tpot"),
    ("gap", "gap"),
    ("longest gap", "longest_gap"),
    ("end to end", "end_to_end"),
)


def latency(summary: Summary, key: str, part: str) -> float | None:
    """One number of a spread, in milliseconds; None where nothing was measured."""
    spread: Spread | None = getattr(summary, key)
    return None if spread is None else 1000 * float(getattr(spread, part))


def table(summary: Summary) -> str:
    """For people."""
    lines = [
        f"{summary.whole} of {summary.requests} requests whole in {summary.seconds:.2f} s"
        + (" (interrupted)" if summary.interrupted else ""),
        f"{summary.output_tokens_per_second:.1f} output tokens/s, "
        f"{summary.total_tokens_per_second:.1f} tokens/s with prompts, "
        f"{summary.requests_per_second:.2f} requests/s",
        f"{summary.prompt_tokens} prompt tokens ({summary.cached_tokens} from the server's cache), "
        f"{summary.output_tokens} output tokens in {summary.text_events} events",
        f"lengths: {_exactness(summary)}",
    ]
    for kind, count in summary.failures.items():
        lines.append(f"failed: {count} x {kind}: {summary.first_messages[kind]}")
    lines.append(f"{'ms':<12}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'largest':>10}")
    for name, key in _ROWS:
        spread: Spread | None = getattr(summary, key)
        if spread is not None:
            values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.largest)
            lines.append(f"{name:<12}" + "".join(f"{1000 * value:10.1f}" for value in values))
    per_token = summary.client_cpu_seconds / max(summary.output_tokens, 1)
    lines.append(
        f"client: {summary.client_cpu_share:.1%} of one core, {1e6 * per_token:.0f} us a token"
        + (f", at most {1000 * summary.late.largest:.1f} ms late" if summary.late else "")
    )
    return "\n".join(lines)


def _exactness(summary: Summary) -> str:
    notes = []
    if summary.prompts_of_other_length:
        notes.append(
            f"{summary.prompts_of_other_length} prompts differ from what was wanted by up to "
            f"{summary.largest_prompt_difference_tokens} tokens"
        )
    if summary.answers_of_other_length:
        notes.append(f"{summary.answers_of_other_length} answers differ from what was wanted")
    if summary.uncounted_answers:
        notes.append(f"{summary.uncounted_answers} answers without usage, counted by events")
    if summary.textless_answers:
        notes.append(f"{summary.textless_answers} answers of control tokens only, without text")
    return "; ".join(notes) or "all as wanted"


def record_tree(record: Record) -> dict[str, Any]:
    """One request for JSON, without its text."""
    tree = asdict(record)
    del tree["answer"]["text"]
    return tree


def machine() -> dict[str, object]:
    """Where the client ran."""
    cpu = platform.processor() or platform.machine()
    description = Path("/proc/cpuinfo")
    if description.exists():
        for line in description.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {"cpu": cpu, "system": platform.platform(), "python": platform.python_version()}
