"""One measurement: find the model, make the prompts, warm up, run the load, sum up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.serving.answers import Answer, ask
from benchmarks.serving.connection import Clock, ExchangeError, Target, ask_json
from benchmarks.serving.load import Job, Load, Timetable
from benchmarks.serving.pace import Record, drive, unless
from benchmarks.serving.prompts import Prompt, PromptError, PromptMaker, find_tokenize
from benchmarks.serving.report import Summary, summarise

_WARM_UP_NUMBER = 1_000_000_000
_PREFIX_NUMBER = 2_000_000_000
ROUTES = {"completions": "completions", "chat": "chat/completions"}


class MeasurementError(Exception):
    """The server cannot be measured as asked; the message says why and what to do."""


class InterruptedEarly(MeasurementError):
    """Stopped before the load began."""


@dataclass(frozen=True, slots=True)
class Options:
    """How requests look.

    `as_ids` None: token ids where the route takes them and a tokenizer is there. With `exact_ends`
    the answers have exactly the wanted length, by `ignore_eos` and `min_tokens`; without, at most.
    `extra` are further fields of the body; one that is None takes a field out.
    """

    route: str = "completions"
    model: str | None = None
    as_ids: bool | None = None
    exact_ends: bool = True
    streamed: bool = True
    temperature: float = 0.0
    tokenizer_file: Path | None = None
    warmup_requests: int = 2
    timeout_seconds: float = 600.0
    extra: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a run found. `as_ids`: prompts were token ids."""

    model: str
    as_ids: bool
    summary: Summary
    records: tuple[Record, ...]


def body_of(
    options: Options,
    model: str,
    prompt: Prompt,
    output_tokens: int,
    service_class: str | None = None,
) -> dict[str, object]:
    """The body of one request."""
    body: dict[str, object] = {"model": model, "max_tokens": output_tokens}
    if service_class is not None:
        body["service_class"] = service_class
    if options.route == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    body["temperature"] = options.temperature
    if options.exact_ends:
        body |= {"ignore_eos": True, "min_tokens": output_tokens}
    if options.streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return {name: value for name, value in (body | options.extra).items() if value is not None}


async def measure(
    target: Target,
    load: Load | Timetable,
    options: Options,
    *,
    stop: asyncio.Event,
    on_record: Callable[[Record], None],
    clock: Clock = time.perf_counter,
    cpu_clock: Clock = time.process_time,
) -> Measurement:
    """Run the load once. If `stop` is set meanwhile, the summary is of what had an answer by then.

    Raises:
        MeasurementError: no server, no model, no prompts of that length, or the warm-up failed.
    """
    prepared = await unless(stop, prepare(target, load, options, clock))
    if prepared is None:
        raise InterruptedEarly("interrupted before the load began")
    records: list[Record] = []

    def keep(record: Record) -> None:
        records.append(record)
        on_record(record)

    async def send(job: Job) -> Answer:
        return await prepared.send(job, prepared.prompts[job.number])

    cpu_seconds = cpu_clock()
    seconds = await drive(
        prepared.jobs, send, at_once=load.at_once, clock=clock, stop=stop, on_record=keep
    )
    summary = summarise(
        records,
        seconds=seconds,
        client_cpu_seconds=cpu_clock() - cpu_seconds,
        interrupted=stop.is_set(),
    )
    ordered = tuple(sorted(records, key=lambda record: record.job.number))
    return Measurement(prepared.model, prepared.as_ids, summary, ordered)


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that costs time before the load, done."""

    model: str
    as_ids: bool
    jobs: list[Job]
    prompts: dict[int, Prompt]
    """By the number of the job."""
    send: Callable[[Job, Prompt], Awaitable[Answer]]


async def prepare(
    target: Target, load: Load | Timetable, options: Options, clock: Clock
) -> Prepared:
    """Do all that costs time before the load: find the model, make the prompts, warm up.

    Raises:
        MeasurementError: no server, no model, no prompts of that length, or the warm-up failed.
    """

    async def send(job: Job, prompt: Prompt) -> Answer:
        return await ask(
            target,
            ROUTES[options.route],
            body_of(options, model, prompt, job.output_tokens, job.service_class),
            clock=clock,
            timeout_seconds=options.timeout_seconds,
        )

    try:
        model = options.model or await first_model(target, clock)
        maker = await prompt_maker(target, options, model, load.seed, clock)
        jobs = load.jobs()
        prompts = {job.number: await prompt_of(maker, load.seed, job) for job in jobs}
        for number, job in enumerate(jobs[: options.warmup_requests]):
            prompt = await maker.make(load.seed, _WARM_UP_NUMBER + number, job.prompt_tokens)
            answer = await send(job, prompt)
            if answer.failure is not None:
                raise PromptError(
                    f"a first request failed: {answer.failure.kind}: {answer.failure.message}"
                )
    except (ExchangeError, PromptError) as error:
        raise MeasurementError(f"{target.url}: {error}") from error
    return Prepared(model, maker.as_ids, jobs, prompts, send)


async def prompt_of(maker: PromptMaker, seed: int, job: Job) -> Prompt:
    """The prompt of a job, with the prefix that it shares with others.

    Raises:
        PromptError: it can't be made so long, or a shared prefix is wanted without token ids.
    """
    own = await maker.make(seed, job.number, job.prompt_tokens - job.prefix_tokens)
    if not job.prefix_tokens:
        return own
    shared = await maker.make(seed, _PREFIX_NUMBER + job.prefix, job.prefix_tokens)
    if isinstance(shared, list) and isinstance(own, list):
        return shared + own
    raise PromptError("prompts that begin alike need token ids: give a tokenizer file")


async def first_model(target: Target, clock: Clock) -> str:
    """The first of the server's models."""
    status, found = await ask_json(target, "GET", "/v1/models", clock=clock)
    try:
        return str(found["data"][0]["id"])  # type: ignore[index]
    except (TypeError, KeyError, IndexError):
        raise MeasurementError(
            f"{target.url}/v1/models answered with status {status} and no model: name one"
        ) from None


async def prompt_maker(
    target: Target, options: Options, model: str, seed: int, clock: Clock
) -> PromptMaker:
    """A maker that is calibrated for this server and route."""

    async def probe(text: str) -> int | None:
        plain = replace(options, streamed=False, exact_ends=False)
        body = body_of(plain, model, text, 1)
        answer = await ask(
            target,
            ROUTES[options.route],
            body,
            clock=clock,
            timeout_seconds=options.timeout_seconds,
        )
        if answer.failure is not None:
            raise PromptError(f"a short request failed: {answer.failure.message}")
        return answer.prompt_tokens

    tokenize = await find_tokenize(target, model, options.tokenizer_file, clock)
    as_ids = options.as_ids
    if as_ids is None:
        as_ids = options.route == "completions" and tokenize is not None
    maker = PromptMaker(tokenize, probe, as_ids=as_ids)
    await maker.calibrate(seed)
    return maker
