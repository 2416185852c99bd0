"""Three times what a server can do: who is served, who is sent away, and who comes back in time."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.promises.loads import crowd
from benchmarks.promises.report import ClassResult, kept, results_of, table
from benchmarks.promises.sides import octavo, promises_of
from benchmarks.serving.company import Company
from benchmarks.serving.connection import Target
from benchmarks.serving.load import Job
from benchmarks.serving.measure import Options, prepare
from benchmarks.serving.pace import Record
from benchmarks.serving.run import run

from octavo.core.service_classes import ServiceClass
from octavo.observe.process_memory import resident_bytes

_REFUSED = "HTTP 429"
_MOST_RETRIES = 1
_CACHE = "memory.kv_bytes=384MB"
"""A cache that this load has written to everywhere before half of it is over: a larger one still
grows into what it was given, which says nothing about leaks. The caller's own setting goes first.
"""


@dataclass(frozen=True, slots=True)
class Overload:
    """One run beyond capacity; rates in requests a second.

    `records` are of first attempts, `retries` of those that came back when they were told to.
    """

    rate: float
    seconds: float
    records: tuple[Record, ...]
    retries: tuple[Record, ...]

    @property
    def refused(self) -> int:
        return sum(_is_refused(record) for record in self.records)

    @property
    def retries_admitted(self) -> float:
        """Share of the retries that were not refused again."""
        count = len(self.retries)
        return 1.0 if not count else sum(not _is_refused(each) for each in self.retries) / count

    def goodput(self, promises: Sequence[ServiceClass]) -> float:
        """Requests a second that met both targets, retries included."""
        return _goodput([*self.records, *self.retries], promises, self.seconds)


def measure_overload(options: argparse.Namespace) -> dict[str, object]:
    """Find the capacity, go beyond it, print what became of whom; the numbers."""
    promises = promises_of(options)
    options.set = [_CACHE, *options.set]
    with octavo(options) as server:
        target = Target.parse(server.url)
        capacity, capacity_goodput = options.capacity, options.capacity
        if capacity is None:
            capacity, capacity_goodput = find_capacity(target, options)
        rate = options.times * capacity
        processes = [server.process_id, *server.children()]
        memory = [_memory_bytes(processes)]
        company = Company(processes)

        async def watched() -> Overload:
            async with asyncio.TaskGroup() as group:
                load = group.create_task(overload(target, rate, options.seconds, options.seed))
                await asyncio.sleep(options.seconds / 2)
                memory.append(_memory_bytes(processes))
            return load.result()

        found = asyncio.run(watched())
        memory.append(_memory_bytes(processes))
        others_seconds = company.seconds()
    results = results_of(found.records, promises)
    goodput = found.goodput(promises)
    print(f"\n{rate:.2f} requests/s for {found.seconds:.0f} s\n{table(results)}")
    print(
        f"{found.refused} of {len(found.records)} refused, {found.retries_admitted:.1%} of "
        f"{len(found.retries)} retries at the told time admitted\n"
        f"goodput {goodput:.2f} requests/s, {goodput / capacity_goodput:.1%} of the "
        f"{capacity_goodput:.2f} at capacity\n"
        "memory before, after half of the time and at the end: "
        + ", ".join(f"{each / 2**20:.0f} MB" for each in memory)
        + f"\nothers took {others_seconds:.1f} s of CPU time"
    )
    return {
        "overload": {
            "capacity": capacity,
            "capacity_goodput": capacity_goodput,
            "rate": rate,
            "seconds": found.seconds,
            "classes": [asdict(one) for one in results],
            "refused": found.refused,
            "retries": len(found.retries),
            "retries_admitted": found.retries_admitted,
            "goodput": goodput,
            "memory_bytes": memory,
            "others_cpu_seconds": others_seconds,
        }
    }


def find_capacity(target: Target, options: argparse.Namespace) -> tuple[float, float]:
    """The highest rate at which 99 % of realtime and 95 % of the others keep both targets.

    Halves the interval between a rate that holds and one that does not; also the goodput there.
    """
    promises = promises_of(options)
    low, high, goodput = 0.0, options.highest_rate, 0.0
    for step in range(options.probes):
        rate = (low + high) / 2 if step else high / 2
        load = crowd(rate, options.probe_seconds, seed=1000 + step)
        measurement = run(target, load, Options(warmup_requests=0), name=f"{rate:.2f}/s")
        results = results_of(measurement.records, promises)
        holds = all(_holds(one) for one in results)
        print(f"{rate:.2f} requests/s: targets {'hold' if holds else 'do not hold'}", flush=True)
        print(table(results), flush=True)
        if holds:
            low = rate
            goodput = _goodput(measurement.records, promises, options.probe_seconds)
        else:
            high = rate
    if not low:
        raise ValueError(f"the targets do not even hold at {high:.2f} requests a second")
    return low, goodput


async def overload(target: Target, rate: float, seconds: float, seed: int) -> Overload:
    """Send at that rate, whatever comes of it; who is refused comes back once, when told to.

    Requests would rather be refused at once than be late (`on_miss: refuse`).
    """
    load = crowd(rate, seconds, seed=seed)
    options = Options(warmup_requests=0, extra={"on_miss": "refuse"})
    clock = time.perf_counter
    prepared = await prepare(target, load, options, clock)
    records: list[Record] = []
    retries: list[Record] = []
    started = clock()

    async def send(job: Job, due_seconds: float, attempt: int) -> None:
        sent_seconds = clock() - started
        answer = await prepared.send(job, prepared.prompts[job.number])
        answer = replace(
            answer,
            text_seconds=tuple(each - started for each in answer.text_seconds),
            end_seconds=answer.end_seconds - started,
        )
        (retries if attempt else records).append(Record(job, due_seconds, sent_seconds, answer))
        wait = None if answer.failure is None else answer.failure.retry_after_seconds
        # Who would come back after the end would find an empty house.
        if wait is not None and attempt < _MOST_RETRIES and clock() - started + wait < seconds:
            await asyncio.sleep(wait)
            await send(job, clock() - started, attempt + 1)

    async with asyncio.TaskGroup() as group:
        for job in prepared.jobs:
            await asyncio.sleep(max(0.0, started + job.due_seconds - clock()))
            group.create_task(send(job, job.due_seconds, 0))
    return Overload(rate, seconds, tuple(records), tuple(retries))


def _holds(one: ClassResult) -> bool:
    return one.kept_both >= (0.99 if one.name == "realtime" else 0.95)


def _goodput(records: Sequence[Record], promises: Sequence[ServiceClass], seconds: float) -> float:
    known = {each.name: each for each in promises}
    return (
        sum(all(kept(each, known[each.job.service_class or "standard"])) for each in records)
        / seconds
    )


def _is_refused(record: Record) -> bool:
    return record.answer.failure is not None and record.answer.failure.kind == _REFUSED


def _memory_bytes(process_ids: list[int]) -> int:
    return sum(resident_bytes(Path(f"/proc/{each}")) for each in process_ids)
