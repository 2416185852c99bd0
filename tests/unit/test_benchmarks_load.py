"""What the load generator sends and when: lengths, arrivals, loops, prompts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from benchmarks.serving.answers import Answer
from benchmarks.serving.load import Job, Lengths, Load
from benchmarks.serving.measure import prompt_of
from benchmarks.serving.pace import Record, drive
from benchmarks.serving.prompts import PromptError, PromptMaker
from hypothesis import given, settings
from hypothesis import strategies as st

FIXED = Lengths(8, 8)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("128", Lengths(128, 128)),
        ("32-512", Lengths(32, 512)),
        ("lognormal:200,0.8,16-1024", Lengths(16, 1024, 200, 0.8)),
    ],
)
def test_lengths_are_read_and_written_alike(text: str, found: Lengths) -> None:
    assert Lengths.parse(text) == found
    assert str(found) == text


@pytest.mark.parametrize("text", ["", "0", "9-3", "-4", "1e3", "lognormal:5,1,8-16", "lognormal:8"])
def test_lengths_without_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Lengths.parse(text)


@given(st.integers(1, 50), st.integers(0, 500), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_lengths_stay_inside(low: int, span: int, seed: int) -> None:
    for lengths in (Lengths(low, low + span), Lengths(low, low + span, low + span // 2, 0.7)):
        chance = random.Random(seed)
        assert all(low <= lengths.draw(chance) <= low + span for _ in range(20))


def test_both_ends_of_a_range_are_drawn() -> None:
    chance = random.Random(1)
    assert {Lengths(3, 5).draw(chance) for _ in range(200)} == {3, 4, 5}


def test_a_seed_gives_the_same_jobs_at_any_pace() -> None:
    load = Load(50, Lengths(32, 512), Lengths(16, 192), at_once=32, seed=4)
    jobs = load.jobs()
    assert jobs == load.jobs()
    assert {job.due_seconds for job in jobs} == {0.0}
    assert jobs != replace(load, seed=5).jobs()
    paced = replace(load, at_once=None, rate=2.0).jobs()
    assert [replace(job, due_seconds=0.0) for job in paced] == jobs


def test_arrivals_are_a_poisson_process() -> None:
    due = [job.due_seconds for job in Load(4001, FIXED, FIXED, rate=20.0, seed=2).jobs()]
    assert due[0] == 0
    assert due == sorted(due)
    gaps = [later - earlier for earlier, later in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 20, rel=0.05)
    # An exponential distribution has its standard deviation equal to its mean.
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize("pace", [{}, {"at_once": 2, "rate": 1.0}, {"at_once": 0}, {"rate": 0.0}])
def test_a_load_has_exactly_one_pace(pace: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Load(4, FIXED, FIXED, **pace)


def run_load(
    load: Load, send: Callable[[Job], Coroutine[Any, Any, Answer]], stop: asyncio.Event
) -> Coroutine[Any, Any, list[Record]]:
    async def driven() -> list[Record]:
        records: list[Record] = []
        await drive(
            load.jobs(),
            send,
            at_once=load.at_once,
            clock=time.perf_counter,
            stop=stop,
            on_record=records.append,
        )
        return records

    return driven()


def test_a_closed_loop_keeps_its_number_busy() -> None:
    async def driven() -> tuple[list[Record], list[int]]:
        busy = 0
        seen: list[int] = []

        async def send(job: Job) -> Answer:
            nonlocal busy
            busy += 1
            seen.append(busy)
            await asyncio.sleep(0.001 * (job.number % 3))
            busy -= 1
            return Answer((), time.perf_counter())

        load = Load(20, FIXED, FIXED, at_once=4)
        return await run_load(load, send, asyncio.Event()), seen

    records, seen = asyncio.run(driven())
    assert sorted(record.job.number for record in records) == list(range(20))
    assert max(seen) == 4
    assert seen[4:17] == [4] * 13


def test_an_open_loop_waits_for_nobody() -> None:
    async def driven() -> list[Record]:
        everyone = asyncio.Event()
        open_requests = 0

        async def send(job: Job) -> Answer:
            nonlocal open_requests
            open_requests += 1
            if open_requests == 10:
                everyone.set()
            await everyone.wait()
            return Answer((), time.perf_counter())

        return await run_load(Load(10, FIXED, FIXED, rate=500.0), send, asyncio.Event())

    records = asyncio.run(driven())
    assert len(records) == 10
    assert all(record.sent_seconds >= record.due_seconds for record in records)
    assert all(record.due_seconds == record.job.due_seconds for record in records)


@pytest.mark.parametrize("pace", [{"at_once": 3}, {"rate": 1000.0}])
def test_a_stop_hangs_up_on_what_is_open(pace: dict[str, Any]) -> None:
    async def driven() -> tuple[list[Record], int]:
        stop = asyncio.Event()
        cancelled = 0

        async def send(job: Job) -> Answer:
            nonlocal cancelled
            if job.number == 0:
                return Answer((), time.perf_counter())
            if job.number == 2:
                stop.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled += 1
            raise AssertionError

        return await run_load(Load(3, FIXED, FIXED, **pace), send, stop), cancelled

    records, cancelled = asyncio.run(driven())
    assert [record.job.number for record in records] == [0]
    assert cancelled == 2


async def thirds(text: str) -> list[int]:
    """A vocabulary of at most three characters a token."""
    return [len(text[start : start + 3]) for start in range(0, len(text), 3)]


async def letters(text: str) -> list[int]:
    """A vocabulary of a token a letter."""
    return list(map(ord, text))


def maker(*, tokenize: Any = thirds, as_ids: bool = False, added: int = 5) -> PromptMaker:
    async def probe(text: str) -> int | None:
        return len(await thirds(text)) + added

    return PromptMaker(tokenize, probe, as_ids=as_ids)


async def made(prompts: PromptMaker, tokens: int, number: int = 0) -> Any:
    await prompts.calibrate(seed=1)
    return await prompts.make(1, number, tokens)


@pytest.mark.parametrize("tokens", [1, 2, 31, 512])
def test_ids_have_exactly_the_wanted_length(tokens: int) -> None:
    assert len(asyncio.run(made(maker(as_ids=True), tokens))) == tokens


@pytest.mark.parametrize("tokens", [6, 7, 40, 77, 512])
def test_text_is_cut_where_the_server_counts_as_many(tokens: int) -> None:
    assert len(asyncio.run(thirds(asyncio.run(made(maker(), tokens))))) == tokens - 5


@pytest.mark.parametrize("tokens", [40, 77, 512])
def test_text_without_a_tokenizer_comes_near(tokens: int) -> None:
    text = asyncio.run(made(maker(tokenize=None), tokens))
    assert len(text) / 3 + 5 == pytest.approx(tokens, rel=0.15)


def test_prompts_differ_from_the_beginning_and_come_again() -> None:
    prompts = [asyncio.run(made(maker(), 60, number)) for number in range(20)]
    assert len({prompt[:24] for prompt in prompts}) == 20
    assert asyncio.run(made(maker(), 60, 3)) == prompts[3]


def test_prompts_of_a_load_with_a_prefix_share_that_and_no_more() -> None:
    load = Load(4, Lengths(8, 8), Lengths(3, 3), at_once=2, prefix_tokens=24)
    assert load.slot_tokens == 256
    assert replace(load, prefix_tokens=240).slot_tokens == 512
    ids = maker(tokenize=letters, as_ids=True)
    prompts = [asyncio.run(prompt_of(ids, load.seed, job)) for job in load.jobs()]
    assert {len(prompt) for prompt in prompts} == {32}
    assert len({tuple(prompt[:24]) for prompt in prompts}) == 1
    assert len({tuple(prompt[24:]) for prompt in prompts}) == 4


def test_a_prompt_shorter_than_what_the_server_adds_is_refused() -> None:
    with pytest.raises(PromptError, match="adds 5"):
        asyncio.run(made(maker(), 5))


def test_ids_need_a_tokenizer() -> None:
    with pytest.raises(PromptError, match="tokenizer"):
        maker(tokenize=None, as_ids=True)


def test_a_server_that_counts_nothing_needs_a_tokenizer() -> None:
    async def silent(text: str) -> int | None:
        return None

    with pytest.raises(PromptError, match="tokenizer file"):
        asyncio.run(PromptMaker(None, silent, as_ids=False).calibrate(1))
