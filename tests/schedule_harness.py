"""A fake executor that knows what every page holds, and a driver for the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from octavo.core.ids import RequestId
from octavo.core.output import EngineOutput, TokenLogprob
from octavo.core.request import FinishReason, Request
from octavo.core.sampling import SamplingParams
from octavo.schedule.plan import RowPlan, RowResult, StepPlan, StepResult
from octavo.schedule.scheduler import Scheduler

VOCABULARY = 11
_MASK = 2**61 - 1


def request(
    name: str,
    prompt: Iterable[int],
    *,
    max_new_tokens: int = 4,
    seed: int = 0,
    stop_ids: Iterable[int] = (),
    salt: bytes = b"",
    service_class: str = "standard",
    tenant: str = "anonymous",
    **params: object,
) -> Request:
    """A request with greedy defaults."""
    return Request(
        id=RequestId(name),
        prompt=tuple(prompt),
        params=SamplingParams(max_tokens=max_new_tokens, **params),  # type: ignore[arg-type]
        seed=seed,
        max_new_tokens=max_new_tokens,
        stop_ids=frozenset(stop_ids),
        cache_salt=salt,
        service_class=service_class,
        tenant=tenant,
    )


def content(before: int, token: int) -> int:
    """What a cache position holds: a digest of the whole sequence up to it."""
    return (before * 1_000_003 + token * 7919 + 12345) & _MASK


def next_token(digest: int, seed: int) -> int:
    return (digest * 2_654_435_761 + seed * 97) % 1_000_033 % VOCABULARY


def score(digest: int, target: int) -> TokenLogprob:
    return TokenLogprob(target, -float((digest + target) % 1009))


@dataclass(frozen=True)
class Answer:
    """All the news of one request."""

    tokens: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None


def alone(asked: Request, limit_tokens: int) -> Answer:
    """What a request must answer, whatever else runs."""
    digest = 0
    scores: list[TokenLogprob | None] = [None]
    for place, token in enumerate(asked.prompt):
        digest = content(digest, token)
        if place + 1 < len(asked.prompt):
            scores.append(score(digest, asked.prompt[place + 1]))
    wants_scores = asked.params.prompt_logprobs is not None
    tokens: list[int] = []
    reason = FinishReason.LENGTH
    while len(tokens) < asked.max_new_tokens and len(asked.prompt) + len(tokens) < limit_tokens:
        tokens.append(next_token(digest, asked.seed))
        if tokens[-1] in asked.stop_ids and len(tokens) > asked.params.min_tokens:
            reason = FinishReason.STOP
            break
        digest = content(digest, tokens[-1])
    return Answer(tuple(tokens), tuple(scores) if wants_scores else None, reason)


@dataclass
class _Row:
    request: Request
    tokens: list[int]
    is_padded: bool = False
    table: list[int] = field(default_factory=list)


class PageModel:
    """Executes plans on remembered page contents; asserts whatever a real executor relies on."""

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.rows: dict[int, _Row] = {}
        self.written: dict[tuple[int, int], int] = {}

    def execute(self, plan: StepPlan, *, errors: dict[str, str] | None = None) -> StepResult:
        for row in plan.closed_rows:
            del self.rows[row]
        for preemption in plan.preemptions:
            assert self.rows.pop(preemption.row).request.id == preemption.request_id
        for admission in plan.admissions:
            assert admission.row not in self.rows
            known = [*admission.request.prompt, *admission.generated]
            self.rows[admission.row] = _Row(admission.request, known, admission.padding > 0)
        sources, targets = {each for each, _ in plan.copies}, {each for _, each in plan.copies}
        assert len(targets) == len(plan.copies)
        assert not sources & targets
        for source, target in plan.copies:
            for slot in range(self.scheduler.page_tokens):
                self.written.pop((target, slot), None)
                if (source, slot) in self.written:
                    self.written[target, slot] = self.written[source, slot]
        assert len({row.row for row in plan.rows}) == len(plan.rows)
        results = []
        for row in plan.rows:
            error = (errors or {}).get(row.request_id)
            results.append(
                RowResult(row.row, row.request_id, error=error) if error else self._run(row)
            )
        return StepResult(plan.number, tuple(results), elapsed_seconds=0.0)

    def _run(self, plan: RowPlan) -> RowResult:
        row = self.rows[plan.row]
        page_tokens, groups = self.scheduler.page_tokens, self.scheduler.layout.groups
        assert row.request.id == plan.request_id
        assert plan.table_start == len(row.table) / groups
        row.table.extend(plan.new_pages)
        blocks = len(row.table) // groups
        end = plan.start + len(plan.tokens)
        if plan.is_padding:
            for position in range(plan.start, end):
                for page in self._pages(row, position):
                    self.written.pop((page, position % page_tokens), None)
            return RowResult(plan.row, plan.request_id)
        assert row.tokens[plan.start : end] == list(plan.tokens)
        assert len(plan.tokens) > 0
        assert end <= blocks * page_tokens
        if self.scheduler.is_contiguous:
            assert row.table == list(range(row.table[0], row.table[0] + len(row.table)))
        else:
            assert row.is_padded or (blocks - 1) * page_tokens < end
        digest = self._read(row, plan.start)
        scores = []
        for position in range(plan.start, end):
            digest = content(digest, row.tokens[position])
            for group, page in enumerate(self._pages(row, position)):
                assert self.scheduler.cache.pool.refs[page] == 1, "a shared page was written to"
                self.written[page, position % page_tokens] = digest + group
            if plan.score_prompt and position + 1 < len(row.request.prompt):
                scores.append(score(digest, row.request.prompt[position + 1]))
        tokens: tuple[int, ...] = ()
        if plan.wants_token:
            assert end == len(row.tokens)
            tokens = (next_token(digest, row.request.seed),)
            row.tokens.extend(tokens)
        return RowResult(plan.row, plan.request_id, tokens, None, tuple(scores))

    def _read(self, row: _Row, end: int) -> int:
        """Every earlier position must hold this very sequence, in each group that sees it."""
        digest = 0
        layout = self.scheduler.layout
        for position in range(end):
            digest = content(digest, row.tokens[position])
            for group, page in enumerate(self._pages(row, position)):
                if group == 0 or position > end - layout.window_tokens:
                    known = self.written.get((page, position % layout.page_tokens))
                    assert known == digest + group, f"position {position} of {row.request.id}"
        return digest

    def _pages(self, row: _Row, position: int) -> list[int]:
        layout = self.scheduler.layout
        start = position // layout.page_tokens * layout.groups
        return row.table[start : start + layout.groups]


class Driver:
    """A scheduler with its executor; collects answers and checks every step."""

    def __init__(self, **settings: object):
        settings.setdefault("max_context", 10_000)
        settings.setdefault("clock", lambda: self.now_seconds)
        self.now_seconds = 100.0
        self.step_seconds: Callable[[StepPlan], float] = lambda plan: 0.0
        """Measured time of a step; the clock goes on by it."""
        self.events: list[object] = []
        self.scheduler = Scheduler(emit=self.events.append, **settings)  # type: ignore[arg-type]
        self.model = PageModel(self.scheduler)
        self.answers: dict[str, Answer] = {}
        self.outputs: list[EngineOutput] = []
        self.plans: list[StepPlan] = []

    def add(self, *requests: Request) -> None:
        """Requests arrive a second apart, so that their deadlines keep them in order."""
        for asked in requests:
            self.now_seconds += 1.0
            self.scheduler.add(asked)

    def step(self, *, errors: dict[str, str] | None = None) -> StepPlan:
        plan = self.scheduler.plan()
        assert plan == self.scheduler.plan(), "planning changed something"
        for admission in plan.admissions:
            known = self.answers.get(admission.request.id, Answer())
            assert admission.generated == known.tokens, "tokens were lost"
        self.scheduler.commit(plan)
        result = self.model.execute(plan, errors=errors)
        seconds = self.step_seconds(plan)
        self.now_seconds += seconds
        result = StepResult(result.number, result.rows, seconds)
        for output in self.scheduler.on_result(result):
            self._take(output)
        self.plans.append(plan)
        return plan

    def wait(self, seconds: float) -> None:
        self.now_seconds += seconds

    def run(self, *, most_steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        for _ in range(most_steps):
            if not self.scheduler.has_work:
                self.step()  # announces the last closed rows
                return
            assert not self.step().is_empty
        raise AssertionError(f"not done after {most_steps} steps")

    def _take(self, output: EngineOutput) -> None:
        self.outputs.append(output)
        known = self.answers.get(output.request_id, Answer())
        assert known.finish_reason is None, "news after the end"
        assert known.prompt_logprobs is None or output.prompt_logprobs is None
        self.answers[output.request_id] = Answer(
            known.tokens + output.token_ids,
            output.prompt_logprobs or known.prompt_logprobs,
            output.finish_reason,
        )


def driver(**changes: object) -> Driver:
    """A small scheduler, with `changes` of its limits."""
    return Driver(**{"pages": 64, "page_tokens": 4, "token_budget": 32, "max_rows": 8, **changes})


def lengths(plan: StepPlan) -> dict[str, int]:
    """How many tokens of each request a plan computes."""
    return {row.request_id: len(row.tokens) for row in plan.rows}


def check_alone(driven: Driver, *requests: Request) -> None:
    """Everybody has the answer that it would have alone."""
    for asked in requests:
        assert driven.answers[asked.id] == alone(asked, driven.scheduler.limit_tokens)
