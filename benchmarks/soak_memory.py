"""Mixed load for a long time: memory stays flat, pages add up, no descriptor leaks, no bit changes.

python benchmarks/soak_memory.py [--seconds 1800] [--model NAME] [--json FILE] [--set key=value ...]

The KV cache is far smaller than the demand, so that requests are preempted and pages go to the disk
and back; a part of the requests is cancelled at any time, as when a client disconnects. A request
that is repeated throughout must always get the same log-probabilities.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import struct
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tqdm import tqdm

from octavo import LLM, SamplingParams
from octavo.core.settings_load import load_settings
from octavo.engine.handle import Handle
from octavo.observe.process_memory import resident_bytes

AT_A_TIME = 12
CANCELLED_SHARE = 0.2
CACHE_SHARE = 0.3
"""KV cache ÷ what the requests at a time need."""
AUDIT_STEPS = 50
GROWTH_BYTES = 16 << 20
GROWTH_DESCRIPTORS = 4
"""Files that the tier may still add within its limit."""
CLASSES = ("realtime", "standard", "batch")


@dataclass
class Soak:
    """What was seen; `problems` is empty if all is well."""

    seconds: float = 0.0
    finished: int = 0
    cancelled: int = 0
    steps: int = 0
    preemptions: int = 0
    written_pages: int = 0
    loaded_pages: int = 0
    probes: int = 0
    resident_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Load:
    """Requests that come and go on one model."""

    def __init__(self, llm: LLM, prefix_tokens: int):
        self._llm = llm
        self._rng = random.Random(11)
        self._prefix_tokens = prefix_tokens
        self._prefixes = [self._tokens(prefix_tokens) for _ in range(6)]
        self._probe = self._tokens(prefix_tokens // 2)
        self._expected: bytes | None = None
        self._open: dict[Handle, float] = {}
        self.soak = Soak()

    def run(self, seconds: float) -> Soak:
        """Keep the engine busy; look at its pages now and then."""
        began = sampled = probed = time.monotonic()
        client, soak = self._llm.client, self.soak
        with tqdm(total=round(seconds), unit="s", desc="soak") as bar:
            while (now := time.monotonic()) - began < seconds:
                while len(self._open) < AT_A_TIME:
                    self._submit(now, is_probe=now - probed > 1.0)
                    probed = now if now - probed > 1.0 else probed
                client.pump()
                soak.steps += 1
                self._collect(now)
                if soak.steps % AUDIT_STEPS == 0:
                    soak.problems += self._llm.assembly.engine.scheduler.audit()
                if now - sampled >= 1.0:
                    sampled = now
                    soak.resident_bytes.append(resident_bytes())
                    soak.descriptors.append(len(os.listdir("/proc/self/fd")))
                    bar.update(round(now - began) - bar.n)
        self._end(time.monotonic() - began)
        return soak

    def _tokens(self, count: int) -> list[int]:
        size = self._llm.client.limits.vocabulary_size
        return [self._rng.randrange(size // 4, size // 2) for _ in range(count)]

    def _submit(self, now: float, *, is_probe: bool) -> None:
        rng, client = self._rng, self._llm.client
        if is_probe:
            prompt, ends = self._probe, float("inf")
            params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
        else:
            prefix = rng.choice(self._prefixes)[: rng.randrange(self._prefix_tokens) + 1]
            prompt = prefix + self._tokens(rng.randrange(1, 40))
            params = SamplingParams(max_tokens=rng.randrange(1, 64), seed=rng.randrange(1 << 30))
            is_cancelled = rng.random() < CANCELLED_SHARE
            ends = now + rng.random() if is_cancelled else float("inf")
        prepared = client.prepare(prompt, params)
        self._open[client.submit(prepared, service_class=rng.choice(CLASSES))] = ends

    def _collect(self, now: float) -> None:
        for handle, ends in list(self._open.items()):
            handle.take()
            if handle.done:
                del self._open[handle]
                self._take(handle)
            elif now >= ends:
                del self._open[handle]
                self._llm.client.cancel(handle)
                self.soak.cancelled += 1

    def _take(self, handle: Handle) -> None:
        output = handle.result()
        answer = output.outputs[0]
        self.soak.finished += 1
        if answer.error is not None:
            self.soak.problems.append(f"a request failed: {answer.error}")
        if answer.logprobs is None:
            return
        self.soak.probes += 1
        bits = b"".join(struct.pack("<id", each.token_id, each.logprob) for each in answer.logprobs)
        self._expected = self._expected or bits
        if bits != self._expected:
            cached = output.usage.cached_tokens
            self.soak.problems.append(f"other bits after {cached} cached tokens")

    def _end(self, seconds: float) -> None:
        soak, engine = self.soak, self._llm.assembly.engine
        for handle in self._open:
            self._llm.client.cancel(handle)
        self._llm.client.pump()
        soak.seconds = seconds
        soak.preemptions = engine.scheduler.counters.preemptions
        if engine.swapper is not None:
            soak.written_pages = engine.swapper.counters.written_pages
            soak.loaded_pages = engine.swapper.counters.loaded_pages
        soak.problems += engine.scheduler.audit()
        held = engine.scheduler.cache.pool.held_count
        if held:
            soak.problems.append(f"{held} pages are held when nobody is there")
        self._judge_growth()

    def _judge_growth(self) -> None:
        """The last quarter against the second one; the first one is for warming up."""
        for name, samples, most in (
            ("bytes of memory", self.soak.resident_bytes, GROWTH_BYTES),
            ("descriptors", self.soak.descriptors, GROWTH_DESCRIPTORS),
        ):
            quarter = len(samples) // 4
            if quarter:
                before = statistics.median(samples[quarter : 2 * quarter])
                growth = statistics.median(samples[-quarter:]) - before
                if growth > most:
                    self.soak.problems.append(f"{growth:.0f} {name} more than at the beginning")


def main() -> int:
    """Soak one engine; status 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prefix-tokens", type=int, default=512)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    arguments = parser.parse_args()
    flags = [f"model={arguments.model}", *arguments.settings]
    with LLM(settings=load_settings(flags=(*flags, "memory.kv_bytes=64MB")).settings) as llm:
        capacity = llm.assembly.capacity
        token_bytes = capacity.kv_bytes // (capacity.pages * capacity.page_tokens)
    kv_bytes = int(AT_A_TIME * (arguments.prefix_tokens + 104) * token_bytes * CACHE_SHARE)
    with tempfile.TemporaryDirectory() as folder:
        flags += [f"memory.kv_bytes={kv_bytes}", f"memory.swap_dir={folder}"]
        flags += ["memory.swap_space=256MB"]
        with LLM(settings=load_settings(flags=flags).settings) as llm:
            soak = Load(llm, arguments.prefix_tokens).run(arguments.seconds)
    print(
        f"{soak.seconds:.0f} s, {soak.steps} steps: {soak.finished} finished, {soak.cancelled} "
        f"cancelled, {soak.preemptions} preemptions, {soak.written_pages} pages written, "
        f"{soak.loaded_pages} loaded, {soak.probes} probes, "
        f"{max(soak.resident_bytes, default=0) / 2**20:.0f} MB at most"
    )
    for problem in dict.fromkeys(soak.problems):
        print(f"problem: {problem}")
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(soak), indent=2))
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
