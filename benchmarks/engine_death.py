"""Kills the engine with SIGKILL under load and times what its clients and operators see.

python -m benchmarks.engine_death [MODEL] [--clients 16] [--json FILE] [--set key=value ...]

Half of the clients stream. Exit status 1 if a client got no error, if one got it later than two
seconds after the kill, if readiness did not turn false, or if the service did not come back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.serving.answers import Answer, ask
from benchmarks.serving.connection import (
    ExchangeError,
    Target,
    WholeBody,
    ask_json,
    exchange,
)
from benchmarks.serving.processes import RunningServer, StartError, octavo_server

ERROR_SECONDS = 2.0
PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.01
_clock = time.perf_counter


@dataclass(frozen=True, slots=True)
class Death:
    """Seconds count from the kill; None for what never came."""

    clients: int
    streamed_clients: int
    errors: dict[str, int]
    whole_answers: int
    first_error_seconds: float | None
    last_error_seconds: float | None
    unready_seconds: float | None
    ready_again_seconds: float | None
    first_answer_seconds: float | None

    @property
    def kept(self) -> bool:
        """The server did what it promises."""
        return (
            self.whole_answers == 0
            and self.last_error_seconds is not None
            and self.last_error_seconds <= ERROR_SECONDS
            and self.unready_seconds is not None
            and self.first_answer_seconds is not None
        )


def body_of(number: int, tokens: int) -> dict[str, object]:
    """Even clients stream."""
    body: dict[str, object] = {
        "prompt": f"{number} is the number of this story. Once upon a time",
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    return body | ({"stream": True} if number % 2 == 0 else {})


async def complete(target: Target, body: dict[str, object]) -> Answer:
    return await ask(target, "completions", body, clock=_clock, timeout_seconds=PATIENCE_SECONDS)


async def status_of_ready(target: Target) -> int:
    status, _ = await ask_json(
        target, "GET", "/health/ready", clock=_clock, timeout_seconds=PATIENCE_SECONDS
    )
    return status


async def open_calls(target: Target) -> int:
    """Requests that the server has and has not answered."""
    page = WholeBody()
    await exchange(
        target, "GET", "/metrics", None, page, clock=_clock, timeout_seconds=PATIENCE_SECONDS
    )
    for line in page.body.decode().splitlines():
        if line.startswith("octavo_open_calls"):
            return int(float(line.rpartition(" ")[2]))
    return 0


async def seconds_until_status(target: Target, wanted: int, since: float) -> float | None:
    while _clock() - since < PATIENCE_SECONDS:
        if await status_of_ready(target) == wanted:
            return _clock() - since
        await asyncio.sleep(_POLL_SECONDS)
    return None


async def kill_under_load(server: RunningServer, clients: int, tokens: int) -> Death:
    """One engine's death."""
    target = Target.parse(server.url)
    (engine,) = server.children()
    asked = [
        asyncio.create_task(complete(target, body_of(each, tokens))) for each in range(clients)
    ]
    while await open_calls(target) < clients:
        if any(each.done() for each in asked):
            raise StartError("an answer ended before all clients had asked: raise --tokens")
        await asyncio.sleep(_POLL_SECONDS)
    killed = _clock()
    os.kill(engine, signal.SIGKILL)
    unready_seconds = await seconds_until_status(target, 503, killed)
    answers = await asyncio.gather(*asked)
    ready_again_seconds = await seconds_until_status(target, 200, killed)
    first = await complete(target, body_of(0, 1))
    ends = [each.end_seconds - killed for each in answers if each.failure is not None]
    errors = Counter(each.failure.kind for each in answers if each.failure is not None)
    return Death(
        clients=clients,
        streamed_clients=(clients + 1) // 2,
        errors=dict(errors),
        whole_answers=clients - len(ends),
        first_error_seconds=min(ends, default=None),
        last_error_seconds=max(ends, default=None),
        unready_seconds=unready_seconds,
        ready_again_seconds=ready_again_seconds,
        first_answer_seconds=None if first.failure else first.end_seconds - killed,
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1500, help="that each client asks for")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args(arguments)
    try:
        with octavo_server(options.model, options.set) as server:
            death = asyncio.run(kill_under_load(server, options.clients, options.tokens))
    except (StartError, ExchangeError) as error:
        print(error, file=sys.stderr)
        return 1
    tree = {**asdict(death), "kept": death.kept}
    for name, value in tree.items():
        shown = f"{value:.3f}" if isinstance(value, float) else value
        print(f"{name.replace('_', ' '):<22} {shown}")
    if options.json:
        options.json.write_text(json.dumps(tree, indent=2) + "\n")
    return 0 if death.kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
