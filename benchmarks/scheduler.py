"""Time of plan + commit + on_result with many rows running and many more requests waiting.

python benchmarks/scheduler.py [--rows 1000] [--waiting 100 1000 10000 100000] [--json FILE]

Batch requests fill all rows and the queue. Every second step 2 % of the rows in realtime requests
arrive and take their rows by preemption; each ends five steps later, and batch requests come back
in the step between. On average 1 % of the rows finish, arrive and are preempted in each step. Pages
have the size that Octavo chooses by itself, prompts all lengths from 16 to 47 tokens. The
model is a stand-in that answers at once. The collector is set up as in the process of an engine.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from octavo.core.ids import RequestId
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.service_classes import ServiceClass
from octavo.core.settings import AUTO_PAGE_TOKENS
from octavo.engine import garbage
from octavo.plan.statistics import percentile
from octavo.schedule.cost import CostProfile
from octavo.schedule.plan import RowResult, StepPlan, StepResult
from octavo.schedule.scheduler import Scheduler
from octavo.schedule.sequence import DEADLINE_STEP_SECONDS

SHORTEST_PROMPT_TOKENS = 16
LONGEST_PROMPT_TOKENS = 47
REALTIME_TOKENS = 5
CLASSES = (
    ServiceClass("realtime", first_token_seconds=0.5, inter_token_seconds=0.05, weight=3),
    ServiceClass("batch", weight=1),
)
# Every row fits into every step: what is measured is the scheduler with all rows at work.
COST = CostProfile(constant=1e-3, token=1e-6, decode_row=1e-6, past_token=1e-12, chunk_square=1e-12)
STEP_SECONDS = 0.004


@dataclass(frozen=True)
class Measurement:
    """Microseconds of a step's calls; the middle three numbers are shares of the rows a step."""

    waiting: int
    rows: float
    finished: float
    arrived: float
    preempted: float
    wall_p50: float
    wall_p99: float
    processor_p50: float
    processor_p99: float
    add_p50: float


@dataclass(frozen=True, slots=True)
class Spent:
    """Wall seconds, and processor seconds of this thread."""

    wall: float
    processor: float

    @staticmethod
    def now() -> Spent:
        return Spent(time.perf_counter(), time.thread_time())

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall + other.wall, self.processor + other.processor)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall - other.wall, self.processor - other.processor)


class Load:
    """A scheduler under a steady load, on a clock of its own."""

    def __init__(self, rows: int, waiting: int, steps: int):
        self._requests = 0
        # A step of deadlines apart, so that they are admitted in order, not the shortest first.
        self._now = DEADLINE_STEP_SECONDS * (rows + waiting)
        self._rows = rows
        pages_per_row = -(-(LONGEST_PROMPT_TOKENS + steps) // AUTO_PAGE_TOKENS) + 4
        self.scheduler = Scheduler(
            pages=2 * rows * pages_per_row,
            page_tokens=AUTO_PAGE_TOKENS,
            token_budget=4 * rows,
            max_rows=rows,
            max_context=1 << 20,
            clock=lambda: self._now,
            classes=CLASSES,
            max_step_seconds=0.1,
            profile=COST,
        )
        self.add_seconds: list[float] = []
        for number in range(rows + waiting):
            self._add("batch", 1 << 19, DEADLINE_STEP_SECONDS * number)

    def arrive(self, step: int) -> None:
        """The realtime requests of this step."""
        if step % 2:
            for _ in range(2 * self._rows // 100):
                self._add("realtime", REALTIME_TOKENS, self._now)

    def _add(self, service_class: str, new_tokens: int, arrival_seconds: float) -> None:
        self._requests += 1
        lengths = LONGEST_PROMPT_TOKENS - SHORTEST_PROMPT_TOKENS + 1
        prompt_tokens = SHORTEST_PROMPT_TOKENS + self._requests % lengths
        request = Request(
            id=RequestId(str(self._requests)),
            prompt=(self._requests,) * prompt_tokens,
            params=SamplingParams(max_tokens=new_tokens),
            seed=0,
            max_new_tokens=new_tokens,
            arrival_seconds=arrival_seconds,
            service_class=service_class,
        )
        started = time.perf_counter()
        self.scheduler.add(request)
        self.add_seconds.append(time.perf_counter() - started)

    def step(self) -> tuple[StepPlan, Spent]:
        """One step, and what its calls took."""
        scheduler = self.scheduler
        began = Spent.now()
        plan = scheduler.plan()
        scheduler.commit(plan)
        planned = Spent.now() - began
        rows = tuple(
            RowResult(row.row, row.request_id, (7,) if row.wants_token else ())
            for row in plan.chunks
        )
        decoded = (7,) * len(plan.decodes)
        self._now += STEP_SECONDS
        result = StepResult(plan.number, rows, STEP_SECONDS, decoded=decoded)
        began = Spent.now()
        scheduler.on_result(result)
        return plan, planned + (Spent.now() - began)


def measure(rows: int, waiting: int, steps: int, warm_up: int) -> Measurement:
    load = Load(rows, waiting, warm_up + steps)
    # The first steps compute the prompts of all rows.
    for number in range(warm_up):
        load.arrive(number)
        load.step()
    garbage.settle()
    load.add_seconds.clear()
    before = asdict(load.scheduler.counters)
    spent: list[Spent] = []
    row_count = 0
    for number in range(warm_up, warm_up + steps):
        load.arrive(number)
        plan, step_spent = load.step()
        spent.append(step_spent)
        row_count += plan.row_count
    gc.unfreeze()
    after = asdict(load.scheduler.counters)
    share = 1 / (steps * rows)
    wall = [each.wall * 1e6 for each in spent]
    processor = [each.processor * 1e6 for each in spent]
    return Measurement(
        waiting=waiting,
        rows=row_count / steps,
        finished=(after["finished"] - before["finished"]) * share,
        arrived=len(load.add_seconds) * share,
        preempted=(after["preemptions"] - before["preemptions"]) * share,
        wall_p50=percentile(wall, 50),
        wall_p99=percentile(wall, 99),
        processor_p50=percentile(processor, 50),
        processor_p99=percentile(processor, 99),
        add_p50=percentile((each * 1e6 for each in load.add_seconds), 50),
    )


def table(measurements: list[Measurement]) -> str:
    lines = [
        f"{'waiting':>8} {'rows':>7} {'finish':>7} {'arrive':>7} {'preempt':>7}   "
        f"{'wall p50':>9} {'p99':>9}   {'cpu p50':>9} {'p99':>9}   {'add p50':>8}"
    ]
    lines += map(table_row, measurements)
    first, last = measurements[0], measurements[-1]
    if last.waiting > first.waiting:
        lines.append(
            f"{last.waiting // first.waiting} times as many waiting: "
            f"{last.processor_p50 / first.processor_p50:.2f} times the processor time (median)"
        )
    return "\n".join(lines)


def table_row(one: Measurement) -> str:
    times = (one.wall_p50, one.wall_p99, one.processor_p50, one.processor_p99)
    cells = [f"{microseconds / 1e3:>6.2f} ms" for microseconds in times]
    return (
        f"{one.waiting:>8} {one.rows:>7.0f} {one.finished:>7.2%} {one.arrived:>7.2%} "
        f"{one.preempted:>7.2%}   {cells[0]} {cells[1]}   {cells[2]} {cells[3]}   "
        f"{one.add_p50:>5.1f} us"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--waiting", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warm-up", type=int, default=60)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    if min(options.rows, options.steps, options.warm_up, *options.waiting) < 1:
        parser.error("all numbers must be at least 1")
    measurements = [
        measure(options.rows, waiting, options.steps, options.warm_up)
        for waiting in tqdm(options.waiting, unit="load", file=sys.stderr)
    ]
    print(table(measurements))
    if options.json:
        facts = {"python": platform.python_version(), "machine": platform.machine()}
        numbers = [asdict(one) for one in measurements]
        options.json.write_text(json.dumps({**facts, "loads": numbers}, indent=2) + "\n")


if __name__ == "__main__":
    main()
