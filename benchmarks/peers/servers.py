"""Engines that are servers with the OpenAI API: Octavo, llama.cpp, vLLM."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peers.engine import Budget
from benchmarks.serving.answers import ask
from benchmarks.serving.connection import ExchangeError, Target
from benchmarks.serving.load import Load
from benchmarks.serving.measure import (
    ROUTES,
    MeasurementError,
    Options,
    body_of,
    first_model,
)
from benchmarks.serving.processes import (
    RunningServer,
    free_port,
    llama_cpp_server,
    octavo_server,
    running_server,
    when_healthy,
)
from benchmarks.serving.report import Summary
from benchmarks.serving.run import run

from octavo.compute.models.registry import load_program
from octavo.core.gguf import GgufFile

_FIRST_TOKENS = 4
_FP16_BYTES = 2
_GIB = 2**30
_VLLM_START_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class RunningHttp:
    """A server that answers; prompts are token ids by `tokenizer_file`."""

    server: RunningServer
    options: Options

    @property
    def process_id(self) -> int:
        return self.server.process_id

    def first_token_seconds(self, prompt: list[int]) -> float:
        return asyncio.run(self._first_token_seconds(prompt))

    async def _first_token_seconds(self, prompt: list[int]) -> float:
        target, clock = Target.parse(self.server.url), time.monotonic
        try:
            model = await first_model(target, clock)
        except ExchangeError as error:
            raise MeasurementError(f"{target.url}: {error}") from error
        answer = await ask(
            target,
            ROUTES[self.options.route],
            body_of(self.options, model, prompt, _FIRST_TOKENS),
            clock=clock,
            timeout_seconds=self.options.timeout_seconds,
        )
        if answer.failure is not None or not answer.text_seconds:
            raise MeasurementError(f"{target.url}: no first token: {answer.failure}")
        return answer.text_seconds[0]

    def measure(self, load: Load, *, warmup_requests: int, label: str) -> Summary:
        target = Target.parse(self.server.url)
        options = replace(self.options, warmup_requests=warmup_requests)
        return run(target, load, options, name=label).summary


def with_ids(tokenizer_file: Path) -> Options:
    """Requests of exact lengths both ways."""
    return Options(as_ids=True, tokenizer_file=tokenizer_file)


@contextmanager
def octavo(model_file: Path, settings: Sequence[str], budget: Budget) -> Iterator[RunningHttp]:
    """Octavo with `settings` on top of the budget."""
    given = [
        f"compute.threads={budget.threads}",
        f"memory.kv_bytes={budget.kv_tokens * token_bytes(model_file)}",
        *settings,
    ]
    with octavo_server(str(model_file), given) as server:
        yield RunningHttp(server, with_ids(model_file))


def token_bytes(model_file: Path) -> int:
    """What a token takes in a KV cache of 16-bit floats, all layers together."""
    with GgufFile.open(model_file) as opened:
        kv = load_program(opened).kv
    return kv.layers * 2 * kv.kv_heads * kv.head_dim * _FP16_BYTES


@contextmanager
def llama_cpp(
    python: Path, weights: Path, tokenizer_file: Path, budget: Budget
) -> Iterator[RunningHttp]:
    with llama_cpp_server(
        python,
        weights,
        threads=budget.threads,
        slots=budget.rows,
        slot_tokens=budget.row_tokens,
    ) as server:
        yield RunningHttp(server, with_ids(tokenizer_file))


@contextmanager
def vllm(
    python: Path, model_folder: Path, tokenizer_file: Path, budget: Budget
) -> Iterator[RunningHttp]:
    """vLLM for CPUs in float32, which is its fast type where there is no bfloat16.

    It binds a thread to each of the first `threads` cores this process may use.
    """
    port = free_port()
    kv_bytes = 2 * budget.kv_tokens * token_bytes(tokenizer_file)
    arguments = {
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": "float32",
        "--max-model-len": budget.row_tokens,
        "--max-num-seqs": budget.rows,
    }
    flat = [str(part) for pair in arguments.items() for part in pair]
    cores = sorted(os.sched_getaffinity(0))[: budget.threads]
    with running_server(
        (str(python.with_name("vllm")), "serve", str(model_folder), *flat),
        when_healthy(f"http://127.0.0.1:{port}"),
        variables={
            "VLLM_CPU_KVCACHE_SPACE": str(-(-kv_bytes // _GIB)),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        },
        start_seconds=_VLLM_START_SECONDS,
    ) as server:
        yield RunningHttp(server, with_ids(tokenizer_file))
