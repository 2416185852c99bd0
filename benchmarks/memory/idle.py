"""An idle server's memory, and the first burst after it: `octavo serve` as it is, over HTTP.

Two bursts of unique prompts, then nothing until the engine has given its memory back, then two
bursts more. Memory is what the kernel says the engine process holds for itself and its share of
what it shares (PSS). The rest of the burst counts from the first request to the last answer.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from benchmarks.memory.table import Rows
from benchmarks.serving.answers import ask
from benchmarks.serving.connection import Target, WholeBody, exchange
from benchmarks.serving.processes import RunningServer, StartError, octavo_server

from octavo.observe.process_memory import proportional_bytes

_clock = time.perf_counter
_PATIENCE_SECONDS = 300.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--answer-tokens", type=int, default=32)
    parser.add_argument("--idle-seconds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def measure(options: argparse.Namespace) -> Rows:
    flags = [*options.set, f"memory.idle_release_seconds={options.idle_seconds}"]
    with octavo_server(options.model, flags) as server:
        return asyncio.run(_measure(server, options))


async def _measure(server: RunningServer, options: argparse.Namespace) -> Rows:
    (engine,) = server.children()
    target = Target.parse(server.url)
    rows = []

    async def note(moment: str, tokens_per_second: float) -> None:
        samples = await metrics(target)
        rows.append(
            {
                "moment": moment,
                "engine_mb": proportional_bytes(Path(f"/proc/{engine}")) / 2**20,
                "weights_mb": samples['part="weights"'] / 2**20,
                "ledger_mb": sum(samples[name] for name in samples if name.startswith("part="))
                / 2**20,
                "kv_backed_mb": samples["octavo_kv_backed_bytes"] / 2**20,
                "tokens_per_second": tokens_per_second,
            }
        )

    await note("started", 0.0)
    await note("warm-up burst", await burst(target, options, 1))
    await note("normal burst", await burst(target, options, 2))
    started = _clock()
    while (await metrics(target))["octavo_kv_backed_bytes"] > 0:
        if _clock() - started > options.idle_seconds + _PATIENCE_SECONDS:
            raise StartError("the engine did not give its memory back")
        await asyncio.sleep(0.2)
    await note("idle", 0.0)
    await note("burst after idle", await burst(target, options, 3))
    await note("next burst", await burst(target, options, 4))
    return rows


async def metrics(target: Target) -> dict[str, float]:
    """Samples by name without labels, and by the label `part` where there is one."""
    page = WholeBody()
    await exchange(
        target, "GET", "/metrics", None, page, clock=_clock, timeout_seconds=_PATIENCE_SECONDS
    )
    samples = {}
    for line in page.body.decode().splitlines():
        name, _, value = line.rpartition(" ")
        if not line.startswith("#"):
            samples[name.partition("{")[0]] = float(value)
            samples |= {
                label: float(value) for label in name.strip("}").split(",") if 'part="' in label
            }
    return samples


async def burst(target: Target, options: argparse.Namespace, salt: int) -> float:
    """All requests at once; answer tokens a second."""

    async def one(number: int) -> int:
        body = {
            "prompt": [10 + (salt * 1009 + number * 31 + place) % 997 for place in range(size)],
            "max_tokens": options.answer_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        answer = await ask(
            target, "completions", body, clock=_clock, timeout_seconds=_PATIENCE_SECONDS
        )
        if answer.failure is not None:
            raise StartError(f"a request failed: {answer.failure}")
        return options.answer_tokens

    size = options.prompt_tokens
    started = _clock()
    tokens = await asyncio.gather(*(one(number) for number in range(options.requests)))
    return sum(tokens) / (_clock() - started)
