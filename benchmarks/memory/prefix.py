"""A long prefix that all requests share, on the real engine: time to the first token, and in all.

First one request at a time, prompts that the cache does not know beside the same again with another
tail (medians of --repeats). Then --requests requests with one prefix that is new, --at-once of them
at a time, each with a tail of its own: the seconds until the last answer, and how many prompt
tokens were computed (the prefix once, every tail).
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from statistics import median

from benchmarks.memory.table import Rows

from octavo import LLM, SamplingParams
from octavo.core.settings_load import load_settings
from octavo.engine.client import Handle


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prefix-tokens", type=int, default=1024)
    parser.add_argument("--tail-tokens", type=int, default=32)
    parser.add_argument("--answer-tokens", type=int, default=32)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def measure(options: argparse.Namespace) -> Rows:
    settings = load_settings(flags=options.set).settings
    with LLM(options.model, settings=settings) as llm:
        llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4, ignore_eos=True))
        numbers = range(1, options.repeats + 1)
        misses = [first_token_seconds(llm, prompt(options, number, 0)) for number in numbers]
        hits = [first_token_seconds(llm, prompt(options, number, 1)) for number in numbers]
        seconds, computed_tokens = serve(llm, options)
    miss, hit = median(misses), median(hits)
    figures: list[tuple[str, float]] = [
        ("first token of a miss, ms", 1000 * miss),
        ("first token of a hit, ms", 1000 * hit),
        ("a hit takes, percent of a miss", 100 * hit / miss),
        (f"{options.requests} requests, {options.at_once} at a time, s", seconds),
        ("prompt tokens computed for them", computed_tokens),
        ("of which the prefix once and each tail", least_tokens(options)),
    ]
    return [{"what": name, "figure": float(value)} for name, value in figures]


def prompt(options: argparse.Namespace, salt: int, tail: int) -> list[int]:
    """Prefixes of different salts differ from their first token on, as do tails."""
    prefix = [10 + (salt * 1009 + place * 31) % 997 for place in range(options.prefix_tokens)]
    return prefix + [10 + (tail * 101 + place * 7) % 997 for place in range(options.tail_tokens)]


def least_tokens(options: argparse.Namespace) -> int:
    return int(options.prefix_tokens + options.requests * options.tail_tokens)


def first_token_seconds(llm: LLM, token_ids: list[int]) -> float:
    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    (answer,) = llm.generate([token_ids], params)
    seconds = answer.timing.first_token_seconds
    assert seconds is not None, "an answer has a first token"
    return seconds


def serve(llm: LLM, options: argparse.Namespace) -> tuple[float, int]:
    """Seconds until the last answer, and prompt tokens that were computed."""
    client = llm.client
    params = SamplingParams(max_tokens=options.answer_tokens, temperature=0.0, ignore_eos=True)
    coming = deque(
        client.prepare(prompt(options, 0, number), params) for number in range(options.requests)
    )
    running: list[Handle] = []
    cached_tokens = 0
    started = time.perf_counter()
    while coming or running:
        while coming and len(running) < options.at_once:
            running.append(client.submit(coming.popleft()))
        client.pump()
        for handle in [handle for handle in running if handle.done]:
            running.remove(handle)
            cached_tokens += handle.result().usage.cached_tokens
    seconds = time.perf_counter() - started
    prompt_tokens = options.requests * (options.prefix_tokens + options.tail_tokens)
    return seconds, prompt_tokens - cached_tokens
