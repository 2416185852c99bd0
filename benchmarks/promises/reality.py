"""The simulator beside the real server: the same requests on both, percentiles and their ratios."""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from benchmarks.promises.loads import mix, open_loop, shared_prefix, varied
from benchmarks.promises.sides import octavo
from benchmarks.serving.company import Company
from benchmarks.serving.connection import Target
from benchmarks.serving.load import Job, Timetable
from benchmarks.serving.measure import Options
from benchmarks.serving.report import Spread, tpot_of
from benchmarks.serving.run import run

from octavo.core.settings import Settings
from octavo.core.settings_load import load_settings
from octavo.plan.learned import learned_profile, step_seconds
from octavo.plan.profile import Profile, default_profile, read_profile
from octavo.plan.records import Record
from octavo.plan.setup import build_scheduler, plan_cache
from octavo.plan.simulator import SimulatedClock, Simulation
from octavo.plan.traces import TraceRequest
from octavo.schedule.cost import FEATURES

LOADS: dict[str, Callable[[int], Timetable]] = {
    "mix": lambda seed: mix(seed),
    "open loop": lambda seed: open_loop(seed=seed),
    "shared prefix": lambda seed: shared_prefix(seed=seed),
}
CALIBRATION_LOAD = varied(seed=1009)
_SAMPLE_SECONDS = 2.0
_SETTLED_SAMPLES = 5
_BLOCK_TOKENS = 32
_PERCENTILES = ("p50", "p90")


@dataclass(frozen=True, slots=True)
class Figure:
    """Mean over the runs of one percentile, in seconds; `ratio` is simulated ÷ measured."""

    load: str
    figure: str
    measured: float
    simulated: float
    ratio: float


@dataclass(frozen=True, slots=True)
class _Side:
    """What one run found, measured or simulated; `step_seconds` is the time of all steps."""

    step_seconds: float
    spreads: dict[str, Spread]


@dataclass(frozen=True, slots=True)
class _Run:
    """A load on a server, its profile before it, and texts of /metrics before and after it."""

    name: str
    load: Timetable
    profile: Profile
    before: str
    after: str
    spreads: dict[str, Spread]


def measure_reality(options: argparse.Namespace) -> dict[str, object]:
    """Print how far the simulator is from the server; the numbers."""
    flags = [f"compute.threads={options.threads}", *options.set]
    settings = load_settings(environment={}, flags=flags).settings
    given = None if options.profile is None else read_profile(options.profile)
    runs = [
        _measured(options, given, make(seed), f"{name} {seed + 1}", name)
        for name, make in LOADS.items()
        for seed in range(options.runs)
    ]
    after = given
    if after is None:
        with octavo(options) as server:
            after = _learned(server.url)
    figures: list[Figure] = []
    profiles: list[Profile] = []
    print(f"{'load':<16}{'figure':<18}{'measured':>12}{'simulated':>12}{'ratio':>7}")
    afters = [*(each.profile for each in runs[1:]), after]
    for name in LOADS:
        measured: list[_Side] = []
        simulated: list[_Side] = []
        for each, following in zip(runs, afters, strict=True):
            if each.name != name:
                continue
            profile = mean_profile(each.profile, following)
            profiles.append(profile)
            seconds, predicted_seconds = step_seconds(profile.cost, each.before, each.after)
            measured.append(_Side(seconds, each.spreads))
            simulated.append(_Side(predicted_seconds, simulate(settings, profile, each.load)))
        for figure in _figures(name, measured, simulated):
            figures.append(figure)
            print(
                f"{figure.load:<16}{figure.figure:<18}{1000 * figure.measured:>9.0f} ms"
                f"{1000 * figure.simulated:>9.0f} ms{figure.ratio:>7.2f}",
                flush=True,
            )
    return {
        "reality": [asdict(figure) for figure in figures],
        "profiles": [asdict(profile) for profile in profiles],
    }


def mean_profile(one: Profile, other: Profile) -> Profile:
    """The mean of two profiles of one model: the machine may have changed its speed in between."""
    costs = {name: _mean(one.cost, other.cost, name) for name in (*FEATURES, "error")}
    return replace(
        one,
        cost=replace(one.cost, **costs),
        p90_error=_mean(one, other, "p90_error"),
        between_seconds=_mean(one, other, "between_seconds"),
    )


def _mean(one: object, other: object, name: str) -> float:
    return statistics.mean((getattr(one, name), getattr(other, name)))


def _measured(
    options: argparse.Namespace, given: Profile | None, load: Timetable, title: str, name: str
) -> _Run:
    """A run, on a server that has just learned its step times where no profile is given.

    It learns them from a load that is none of those compared here.
    """
    with octavo(options) as server:
        target = Target.parse(server.url)
        profile = given or _learned(server.url)
        company = Company([server.process_id, *server.children()])
        before = _metrics(server.url)
        records = run(target, load, Options(), name=title).records
        print(f"{title}: others took {company.seconds():.1f} s of CPU time", file=sys.stderr)
        after = _metrics(server.url)
    whole = [each for each in records if each.answer.failure is None and each.answer.text_seconds]
    spreads = _known(
        TTFT=Spread.of(each.answer.text_seconds[0] - each.due_seconds for each in whole),
        TPOT=Spread.of(each for each in map(tpot_of, whole) if each is not None),
        **{"end to end": Spread.of(each.answer.end_seconds - each.due_seconds for each in whole)},
    )
    return _Run(name, load, profile, before, after, spreads)


def _learned(url: str) -> Profile:
    texts: list[str] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_SAMPLE_SECONDS):
            with suppress(OSError):
                texts.append(_metrics(url))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run(Target.parse(url), CALIBRATION_LOAD, Options(), name="calibration")
    finally:
        is_over.set()
        watcher.join()
    return learned_profile([*texts[_SETTLED_SAMPLES:], _metrics(url)], default_profile())


def _metrics(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text: str = answer.read().decode()
    return text


def simulate(settings: Settings, profile: Profile, load: Timetable) -> dict[str, Spread]:
    """The same load in the simulator."""
    clock = SimulatedClock()
    scheduler = build_scheduler(settings, plan_cache(settings, profile), profile.cost, clock)
    trace = [traced(job) for job in load.jobs()]
    simulation = Simulation(
        scheduler, profile.cost, clock, trace, between_seconds=profile.between_seconds
    )
    simulation.run()
    records = [each for each in simulation.records if each.first_token_seconds is not None]
    return _known(
        TTFT=_spread(records, lambda each: each.time_to_first_token_seconds),
        TPOT=_spread(records, lambda each: each.seconds_per_token),
        **{
            "end to end": _spread(
                records, lambda each: (each.ended_seconds or 0.0) - each.arrival_seconds
            )
        },
    )


def traced(job: Job) -> TraceRequest:
    """A job as a line of a trace; a shared beginning becomes blocks that others have too."""
    shared = job.prefix_tokens // _BLOCK_TOKENS
    blocks: tuple[int, ...] = ()
    if shared:
        own = -(-job.prompt_tokens // _BLOCK_TOKENS) - shared
        # Ids of the shared blocks by group, those of a request's own by its number.
        blocks = (
            *(1_000_000 * (1 + job.prefix) + block for block in range(shared)),
            *(-1_000 * (1 + job.number) - block for block in range(own)),
        )
    return TraceRequest(
        arrival_seconds=job.due_seconds,
        prompt_tokens=job.prompt_tokens,
        output_tokens=job.output_tokens,
        block_ids=blocks,
        block_tokens=_BLOCK_TOKENS if blocks else 0,
        service_class=job.service_class,
    )


def _spread(records: list[Record], value: Callable[[Record], float | None]) -> Spread | None:
    return Spread.of(found for found in map(value, records) if found is not None)


def _known(**spreads: Spread | None) -> dict[str, Spread]:
    return {name: spread for name, spread in spreads.items() if spread is not None}


def _figures(load: str, measured: list[_Side], simulated: list[_Side]) -> list[Figure]:
    """Of percentiles, and of the time that the same steps took and were to take."""
    found = [
        _figure(
            load,
            "all steps",
            (each.step_seconds for each in measured),
            (each.step_seconds for each in simulated),
        )
    ]
    for name in measured[0].spreads:
        for percentile in _PERCENTILES:
            sides = (
                [getattr(each.spreads[name], percentile) for each in side]
                for side in (measured, simulated)
            )
            found.append(_figure(load, f"{name} {percentile}", *sides))
    return found


def _figure(load: str, name: str, measured: Iterable[float], simulated: Iterable[float]) -> Figure:
    real, guessed = statistics.mean(measured), statistics.mean(simulated)
    return Figure(load, name, real, guessed, guessed / max(real, 1e-9))
