"""What is sent to see whether promises are kept: who comes when, with how much."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from benchmarks.serving.load import Job, Timetable


def mix(seed: int = 0) -> Timetable:
    """Long analyses come first, ordinary requests next, people who wait for every word last."""
    jobs = [
        *_row("batch", 3, 2048, 256, start=0.0, gap=0.05),
        *_row("standard", 8, 512, 128, start=0.2, gap=0.05),
        *_row("realtime", 22, 64, 64, start=0.65, gap=0.062),
    ]
    return _numbered(jobs, seed)


LONG_PROMPT_SECONDS = 3.0
"""When the long prompt of `long_prompt` comes."""


def long_prompt(streams: int = 8, prompt_tokens: int = 4000, seed: int = 0) -> Timetable:
    """A long prompt beside streams that are being read; they last for as long as it may take."""
    jobs = [
        *_row("realtime", streams, 64, 384, start=0.0, gap=0.1),
        *_row("batch", 1, prompt_tokens, 16, start=LONG_PROMPT_SECONDS, gap=0.0),
    ]
    return _numbered(jobs, seed)


def crowd(rate: float, seconds: float, *, realtime_share: float = 0.2, seed: int = 0) -> Timetable:
    """Poisson arrivals of short realtime requests and longer standard ones."""
    chance = random.Random(f"crowd {seed}")
    jobs: list[Job] = []
    due = chance.expovariate(rate)
    while due < seconds:
        if chance.random() < realtime_share:
            sizes = ("realtime", chance.randint(32, 96), chance.randint(16, 48))
        else:
            sizes = ("standard", chance.randint(64, 320), chance.randint(32, 96))
        jobs.append(_job(*sizes, due))
        due += chance.expovariate(rate)
    return _numbered(jobs or [_job("realtime", 64, 32, 0.0)], seed)


def open_loop(requests: int = 40, rate: float = 1.0, seed: int = 0) -> Timetable:
    """Poisson arrivals of ordinary requests."""
    chance = random.Random(f"open loop {seed}")
    jobs, due = [], 0.0
    for _ in range(requests):
        jobs.append(_job("standard", chance.randint(32, 512), chance.randint(16, 128), due))
        due += chance.expovariate(rate)
    return _numbered(jobs, seed)


def varied(
    rate: float = 1.0,
    seconds: float = 40.0,
    *,
    longest_prompt: int = 1500,
    longest_answer: int = 128,
    seed: int = 0,
) -> Timetable:
    """Poisson arrivals of requests of very different lengths, each power of two as often."""
    chance = random.Random(f"varied {seed}")
    jobs: list[Job] = []
    due = 0.0
    while due < seconds:
        prompt, output = (
            round(math.exp(chance.uniform(math.log(least), math.log(most))))
            for least, most in ((16, longest_prompt), (8, longest_answer))
        )
        jobs.append(_job("standard", prompt, output, due))
        due += chance.expovariate(rate)
    return _numbered(jobs, seed)


def shared_prefix(
    requests: int = 40, rate: float = 1.2, groups: int = 4, seed: int = 0
) -> Timetable:
    """The same with prompts of which each group begins with the same 512 tokens."""
    chance = random.Random(f"shared prefix {seed}")
    jobs, due = [], 0.0
    for _ in range(requests):
        group = chance.randrange(groups)
        own, output = chance.randint(32, 256), chance.randint(16, 96)
        jobs.append(Job(0, 512 + own, output, due, "standard", group, 512))
        due += chance.expovariate(rate)
    return _numbered(jobs, seed)


def _row(
    service_class: str, count: int, prompt: int, output: int, *, start: float, gap: float
) -> Iterator[Job]:
    for number in range(count):
        yield _job(service_class, prompt, output, start + number * gap)


def _job(service_class: str, prompt: int, output: int, due: float) -> Job:
    return Job(0, prompt, output, due, service_class)


def _numbered(jobs: list[Job], seed: int) -> Timetable:
    """Each job with a number of its own, by which its prompt is made."""
    ordered = sorted(jobs, key=lambda job: job.due_seconds)
    planned = (
        Job(
            number,
            job.prompt_tokens,
            job.output_tokens,
            job.due_seconds,
            job.service_class,
            job.prefix,
            job.prefix_tokens,
        )
        for number, job in enumerate(ordered)
    )
    return Timetable(tuple(planned), seed)
