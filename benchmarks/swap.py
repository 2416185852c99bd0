"""The KV cache on disk: a restart, and contexts that are more than the memory, revisited at random.

python benchmarks/swap.py [--model NAME] [--swap-dir FOLDER] [--json FILE] [--set key=value ...]

Every answer is compared by the bits of its log-probabilities with that of an engine that computed
everything.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from octavo import LLM, SamplingParams
from octavo.core.settings import Settings
from octavo.core.settings_load import load_settings

PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=5)
CHANGES = ("compute.activations=fp32", "memory.kv_format=fp32", "memory.block_size=64tok")
SWAP_SPACE = "16GB"

Bits = list[tuple[int, bytes]]


@dataclass(frozen=True)
class Restart:
    """A prompt before a restart and after it; `others_cached` are tokens after changed settings."""

    prompt_tokens: int
    cold_seconds: float
    warm_seconds: float
    warm_cached_tokens: int
    same_bits: bool
    others_cached: dict[str, int]


@dataclass(frozen=True)
class Capacity:
    """Random visits to contexts of `demand` × the KV cache, with the disk and without."""

    contexts: int
    context_tokens: int
    demand: float
    visits: int
    disk_seconds: float
    recompute_seconds: float
    disk_cached_share: float
    recompute_cached_share: float
    same_bits: bool

    @property
    def speedup(self) -> float:
        return self.recompute_seconds / self.disk_seconds


def ask(llm: LLM, prompt: Sequence[int]) -> tuple[float, int, Bits]:
    """Seconds to the first token, cached tokens, bits of the answer."""
    output = llm.generate([list(prompt)], PARAMS)[0]
    entries = output.outputs[0].logprobs or ()
    bits = [
        (entry.token_id, struct.pack("<6d", entry.logprob, *(each.logprob for each in entry.top)))
        for entry in entries
    ]
    return output.timing.first_token_seconds or 0.0, output.usage.cached_tokens, bits


def random_prompt(rng: random.Random, tokens: int) -> list[int]:
    return [rng.randrange(1000, 30_000) for _ in range(tokens)]


def settings_of(arguments: argparse.Namespace, *more: str) -> Settings:
    flags = (f"model={arguments.model}", *arguments.settings, *more)
    return load_settings(flags=flags).settings


def measure_restart(arguments: argparse.Namespace, folder: str) -> Restart:
    """Ask, close, open, ask; then with settings that change what is cached."""
    prompt = random_prompt(random.Random(1), arguments.prompt_tokens)
    swap = (f"memory.swap_space={SWAP_SPACE}", f"memory.swap_dir={folder}")
    answers = []
    for _ in tqdm(range(2), desc="restart"):
        with LLM(settings=settings_of(arguments, *swap)) as llm:
            ask(llm, prompt[:40])
            answers.append(ask(llm, prompt))
    (cold_seconds, _, cold_bits), (warm_seconds, cached, warm_bits) = answers
    others = {}
    for change in CHANGES:
        with LLM(settings=settings_of(arguments, *swap, change)) as llm:
            others[change] = ask(llm, prompt[:200])[1]
    return Restart(len(prompt), cold_seconds, warm_seconds, cached, cold_bits == warm_bits, others)


def measure_capacity(arguments: argparse.Namespace, folder: str) -> Capacity:
    """Visit every context once, then some at random, and take the time of these."""
    rng = random.Random(2)
    contexts = [random_prompt(rng, arguments.context_tokens) for _ in range(arguments.contexts)]
    order = [rng.randrange(len(contexts)) for _ in range(arguments.visits)]
    with LLM(settings=settings_of(arguments, "memory.kv_bytes=64MB")) as llm:
        capacity = llm.assembly.capacity
        page_bytes = capacity.kv_bytes // capacity.pages
        pages = -(-(arguments.context_tokens + PARAMS.max_tokens) // capacity.page_tokens)
    kv_bytes = int(page_bytes * pages * len(contexts) / arguments.demand)
    kv = f"memory.kv_bytes={kv_bytes}"
    swap = (f"memory.swap_space={SWAP_SPACE}", f"memory.swap_dir={folder}")
    runs = []
    for more in (swap, ()):
        with LLM(settings=settings_of(arguments, kv, *more)) as llm:
            for context in tqdm(contexts, desc="first visits"):
                ask(llm, context)
            began = time.perf_counter()
            answers = [ask(llm, contexts[number]) for number in tqdm(order, desc="revisits")]
            runs.append((time.perf_counter() - began, answers))
    (disk_seconds, disk), (recompute_seconds, recomputed) = runs
    tokens = arguments.context_tokens * arguments.visits
    return Capacity(
        contexts=len(contexts),
        context_tokens=arguments.context_tokens,
        demand=arguments.demand,
        visits=arguments.visits,
        disk_seconds=disk_seconds,
        recompute_seconds=recompute_seconds,
        disk_cached_share=sum(cached for _, cached, _ in disk) / tokens,
        recompute_cached_share=sum(cached for _, cached, _ in recomputed) / tokens,
        same_bits=[bits for *_, bits in disk] == [bits for *_, bits in recomputed],
    )


def show(restart: Restart, capacity: Capacity) -> str:
    share = restart.warm_seconds / restart.cold_seconds
    lines = [
        f"restart, {restart.prompt_tokens} tokens: first token {restart.cold_seconds:.2f} s cold, "
        f"{restart.warm_seconds:.3f} s after it ({share:.1%}), {restart.warm_cached_tokens} tokens "
        f"cached, bits {'the same' if restart.same_bits else 'DIFFERENT'}",
        *(f"  after {change}: {cached} cached" for change, cached in restart.others_cached.items()),
        f"{capacity.contexts} contexts of {capacity.context_tokens} tokens, {capacity.demand:g} x "
        f"the KV cache, {capacity.visits} visits: {capacity.disk_seconds:.1f} s with the disk "
        f"({capacity.disk_cached_share:.0%} cached), {capacity.recompute_seconds:.1f} s without "
        f"({capacity.recompute_cached_share:.0%}): {capacity.speedup:.1f} x, "
        f"bits {'the same' if capacity.same_bits else 'DIFFERENT'}",
    ]
    return "\n".join(lines)


def main() -> int:
    """Run both measurements; status 1 if an answer differs or a cache matched that must not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--contexts", type=int, default=24)
    parser.add_argument("--context-tokens", type=int, default=1024)
    parser.add_argument("--demand", type=float, default=4.0, help="contexts / KV cache")
    parser.add_argument("--visits", type=int, default=48)
    parser.add_argument("--swap-dir", type=Path, help="folder on the disk to be measured")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.swap_dir) as folder:
        restart = measure_restart(arguments, f"{folder}/restart")
        capacity = measure_capacity(arguments, f"{folder}/capacity")
    print(show(restart, capacity))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"restart": asdict(restart), "capacity": asdict(capacity)}, indent=2)
        )
    good = restart.same_bits and capacity.same_bits and not any(restart.others_cached.values())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
