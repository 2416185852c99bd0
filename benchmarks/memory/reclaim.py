"""Lazy against eager reclaim: the same requests on the real engine, under both policies.

Requests come one after another in rounds, a prompt each of --prompts different ones, so that a page
is wanted again after its last holder left. Eager reclaim frees pages, and gives their memory back
to the system, as soon as nobody holds them. Order of the policies alternates; sums over all rounds.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from benchmarks.memory.table import Rows

from octavo import LLM, SamplingParams
from octavo.core.settings_load import load_settings


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--answer-tokens", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


@dataclass(slots=True)
class Spent:
    """What one policy cost."""

    requests: int = 0
    seconds: float = 0.0
    native_seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0


def measure(options: argparse.Namespace) -> Rows:
    rows = []
    for policy in ("lazy", "eager"):
        settings = load_settings(flags=[*options.set, f"memory.reclaim={policy}"]).settings
        with LLM(options.model, settings=settings) as llm:
            spent = run(llm, options)
            elastic = llm.assembly.engine.elastic
            released_bytes = 0 if elastic is None else elastic.released_bytes
        rows.append(
            {
                "reclaim": policy,
                "hit_percent": 100 * spent.cached_tokens / spent.prompt_tokens,
                "milliseconds_a_request": 1000 * spent.seconds / spent.requests,
                "outside_kernels_ms": 1000
                * (spent.seconds - spent.native_seconds)
                / spent.requests,
                "released_mb": released_bytes / 2**20,
            }
        )
    return rows


def run(llm: LLM, options: argparse.Namespace) -> Spent:
    """Every prompt once a round; the first round, in which nothing can hit, counts as well."""
    params = SamplingParams(max_tokens=options.answer_tokens, temperature=0.0, ignore_eos=True)
    native = llm.assembly.engine.metrics.native_seconds
    llm.generate([[5, 6, 7]], params)
    spent = Spent()
    began = native.value
    for _ in range(options.rounds):
        for number in range(options.prompts):
            prompt = [10 + number + place % 97 for place in range(options.prompt_tokens)]
            started = time.perf_counter()
            (answer,) = llm.generate([prompt], params)
            spent.seconds += time.perf_counter() - started
            spent.requests += 1
            spent.prompt_tokens += answer.usage.prompt_tokens
            spent.cached_tokens += answer.usage.cached_tokens
    spent.native_seconds = native.value - began
    return spent
