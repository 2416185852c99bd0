"""Sends jobs at their pace and hands over a record of each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from benchmarks.serving.answers import Answer
from benchmarks.serving.connection import Clock
from benchmarks.serving.load import Job


@dataclass(frozen=True, slots=True)
class Record:
    """A job and its answer; all times in seconds from the start of the run.

    `due_seconds` is when it should have been sent: what the client lost before `sent_seconds`
    counts as waiting, else a slow client would flatter the server.
    """

    job: Job
    due_seconds: float
    sent_seconds: float
    answer: Answer


Result = TypeVar("Result")
Send = Callable[[Job], Awaitable[Answer]]


async def drive(
    jobs: Sequence[Job],
    send: Send,
    *,
    at_once: int | None,
    clock: Clock,
    stop: asyncio.Event,
    on_record: Callable[[Record], None],
) -> float:
    """Send every job, `at_once` at a time, or each when it is due; returns the seconds it took.

    Once `stop` is set nothing more is sent, and the server is hung up on.
    """
    started = clock()

    async def one(job: Job, due_seconds: float) -> None:
        sent_seconds = clock() - started
        answer = await send(job)
        on_record(Record(job, due_seconds, sent_seconds, _since(answer, started)))

    async def closed_loop(waiting: list[Job]) -> None:
        while waiting:
            await one(waiting.pop(), clock() - started)

    async def open_loop() -> None:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                await asyncio.sleep(max(0.0, started + job.due_seconds - clock()))
                group.create_task(one(job, job.due_seconds))

    async def all_clients(count: int) -> None:
        waiting = list(reversed(jobs))
        async with asyncio.TaskGroup() as group:
            for _ in range(min(count, len(jobs))):
                group.create_task(closed_loop(waiting))

    await unless(stop, open_loop() if at_once is None else all_clients(at_once))
    return clock() - started


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """What `work` returns, or None if `stop` was set first; then the work is cancelled."""
    working = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopped.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)


def _since(answer: Answer, started: float) -> Answer:
    return replace(
        answer,
        text_seconds=tuple(seconds - started for seconds in answer.text_seconds),
        end_seconds=answer.end_seconds - started,
    )
