"""The simulator beside the real server: the same requests on both, percentiles and their ratios."""

from __future__ import annotations

import argparse
import statistics
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from benchmarks.promises.loads import crowd, mix, open_loop, shared_prefix
from benchmarks.promises.sides import octavo
from benchmarks.serving.connection import Target
from benchmarks.serving.load import Job, Timetable
from benchmarks.serving.measure import Options
from benchmarks.serving.report import Spread, tpot_of
from benchmarks.serving.run import run

from octavo.core.settings import Settings
from octavo.core.settings_load import load_settings
from octavo.plan.learned import learned_profile
from octavo.plan.profile import Profile, default_profile, read_profile
from octavo.plan.records import Record
from octavo.plan.setup import build_scheduler, plan_cache
from octavo.plan.simulator import SimulatedClock, Simulation
from octavo.plan.traces import TraceRequest

LOADS: dict[str, Callable[[int], Timetable]] = {
    "mix": lambda seed: mix(seed),
    "open loop": lambda seed: open_loop(seed=seed),
    "shared prefix": lambda seed: shared_prefix(seed=seed),
}
CALIBRATION_LOAD = crowd(1.0, 60.0, seed=9)
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


def measure_reality(options: argparse.Namespace) -> dict[str, object]:
    """Print how far the simulator is from the server; the numbers."""
    flags = [f"compute.threads={options.threads}", *options.set]
    settings = load_settings(environment={}, flags=flags).settings
    profile = _learned(options) if options.profile is None else read_profile(options.profile)
    figures: list[Figure] = []
    print(profile.to_json())
    print(f"{'load':<16}{'figure':<18}{'measured':>10}{'simulated':>11}{'ratio':>7}")
    for name, make in LOADS.items():
        real: list[dict[str, Spread]] = []
        simulated: list[dict[str, Spread]] = []
        for seed in range(options.runs):
            load = make(seed)
            real.append(_measured(options, load, f"{name} {seed + 1}"))
            simulated.append(simulate(settings, profile, load))
        for figure in _figures(name, real, simulated):
            figures.append(figure)
            print(
                f"{figure.load:<16}{figure.figure:<18}{1000 * figure.measured:>7.0f} ms"
                f"{1000 * figure.simulated:>8.0f} ms{figure.ratio:>7.2f}",
                flush=True,
            )
    return {"reality": [asdict(figure) for figure in figures]}


def _learned(options: argparse.Namespace) -> Profile:
    """What a server learns from a load that is none of those compared here."""
    texts: list[str] = []
    is_over = threading.Event()

    def watch(url: str) -> None:
        while not is_over.wait(_SAMPLE_SECONDS):
            with suppress(OSError), urllib.request.urlopen(f"{url}/metrics") as answer:
                texts.append(answer.read().decode())

    with octavo(options) as server:
        watcher = threading.Thread(target=watch, args=(server.url,))
        watcher.start()
        try:
            run(Target.parse(server.url), CALIBRATION_LOAD, Options(), name="calibration")
        finally:
            is_over.set()
            watcher.join()
    return learned_profile(texts[_SETTLED_SAMPLES:], default_profile())


def _measured(options: argparse.Namespace, load: Timetable, name: str) -> dict[str, Spread]:
    with octavo(options) as server:
        records = run(Target.parse(server.url), load, Options(), name=name).records
    whole = [each for each in records if each.answer.failure is None and each.answer.text_seconds]
    return _known(
        TTFT=Spread.of(each.answer.text_seconds[0] - each.due_seconds for each in whole),
        TPOT=Spread.of(each for each in map(tpot_of, whole) if each is not None),
        **{"end to end": Spread.of(each.answer.end_seconds - each.due_seconds for each in whole)},
    )


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


def _figures(
    load: str, real: list[dict[str, Spread]], simulated: list[dict[str, Spread]]
) -> list[Figure]:
    found = []
    for figure in real[0]:
        for percentile in _PERCENTILES:
            measured, guessed = (
                statistics.mean(getattr(each[figure], percentile) for each in side)
                for side in (real, simulated)
            )
            ratio = guessed / max(measured, 1e-9)
            found.append(Figure(load, f"{figure} {percentile}", measured, guessed, ratio))
    return found
