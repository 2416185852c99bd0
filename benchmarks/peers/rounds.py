"""Every load on every engine in turn, each run in a fresh process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.peers.engine import Budget, Engine
from benchmarks.peers.memory import peak_memory
from benchmarks.serving.load import LOADS, Lengths, Load
from benchmarks.serving.measure import InterruptedEarly, MeasurementError
from benchmarks.serving.processes import StartError
from benchmarks.serving.report import Summary

OURS = "octavo"
PEER_LOADS: Mapping[str, Load] = {
    **LOADS,
    "long": Load(2, Lengths(4096, 4096), Lengths(4, 4), at_once=1),
    "prefix": Load(32, Lengths(32, 32), Lengths(32, 32), at_once=16, prefix_tokens=1024),
}
"""The named loads of the load generator, a prompt that only its time to first token is of, and one
long beginning that all prompts share."""


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one engine. `start_seconds` from the start of its process to its first token,
    `peak_bytes` of all its processes while the load ran."""

    round: int
    load: str
    engine: str
    start_seconds: float
    peak_bytes: int
    summary: Summary


@dataclass(frozen=True, slots=True)
class SetAside:
    """A peer that failed and is not asked again."""

    engine: str
    why: str


def alternate(
    engines: Sequence[Engine],
    loads: Mapping[str, Load],
    *,
    rounds: int,
    threads: int,
    first_prompt: list[int],
) -> Iterator[Run | SetAside]:
    """Rounds of every load on every engine; prompts are a round's own, and the same for all.

    `first_prompt` is what an engine is asked when it has just started.

    Raises:
        MeasurementError, StartError: Octavo itself cannot be measured.
        KeyboardInterrupt: the user stopped it; the run under way is lost.
    """
    left = list(engines)
    for number in range(rounds):
        for name, load in loads.items():
            # Whoever is first in one round is last in the next: machines warm up and slow down.
            for engine in left[:: -1 if number % 2 else 1]:
                label = f"{name} {number + 1} of {rounds}, {engine.name}"
                seeded = replace(load, seed=number)
                try:
                    start_seconds, peak_bytes, summary = run_once(
                        engine, seeded, Budget.of(load, threads), first_prompt, label
                    )
                except InterruptedEarly:
                    raise KeyboardInterrupt from None
                except (MeasurementError, StartError) as error:
                    if engine.name == OURS:
                        raise
                    left.remove(engine)
                    yield SetAside(engine.name, str(error))
                    continue
                if summary.interrupted:
                    raise KeyboardInterrupt
                yield Run(number, name, engine.name, start_seconds, peak_bytes, summary)


def run_once(
    engine: Engine, load: Load, budget: Budget, first_prompt: list[int], label: str
) -> tuple[float, int, Summary]:
    """Seconds to the first token, peak bytes, and what the load brought."""
    started = time.monotonic()
    with engine.start(budget) as running:
        start_seconds = running.first_token_seconds(first_prompt) - started
        with peak_memory(running.process_id) as peak:
            summary = running.measure(load, warmup_requests=1, label=label)
    return start_seconds, peak.bytes, summary
