"""OpenVINO GenAI, which is no server: a worker process in its environment runs the loads."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from benchmarks.peers.engine import Budget, prompts_of
from benchmarks.serving.answers import Answer, Failure
from benchmarks.serving.load import Job, Load
from benchmarks.serving.measure import MeasurementError
from benchmarks.serving.pace import Record
from benchmarks.serving.processes import RunningServer, ready_line, running_server
from benchmarks.serving.prompts import PromptMaker
from benchmarks.serving.report import Summary, summarise
from tqdm import tqdm

WORKER = Path(__file__).with_name("openvino_worker.py")
_FIRST_TOKENS = 4
_ANSWER_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class RunningOpenVino:
    """The worker, and the connection that loads and answers travel on."""

    server: RunningServer
    lines: TextIO
    maker: PromptMaker

    @property
    def process_id(self) -> int:
        return self.server.process_id

    def first_token_seconds(self, prompt: list[int]) -> float:
        job = Job(0, len(prompt), _FIRST_TOKENS, 0.0)
        (tree,) = self._answers([job], [prompt], at_once=1)
        if not tree["text_seconds"]:
            raise MeasurementError(f"no first token: the request is {tree['status']}")
        return float(tree["text_seconds"][0])

    def measure(self, load: Load, *, warmup_requests: int, label: str) -> Summary:
        if load.at_once is None:
            raise MeasurementError("the worker of OpenVINO GenAI runs closed loops only")
        if warmup_requests:
            # Prompts of another seed, so that none of the load is in a cache.
            warmup = replace(load, requests=warmup_requests, seed=-1 - load.seed)
            list(self._answers(warmup.jobs(), self._prompts(warmup), at_once=1))
        jobs = load.jobs()
        trees = []
        with tqdm(
            total=len(jobs), unit="request", desc=label, file=sys.stderr, disable=None
        ) as bar:
            for tree in self._answers(jobs, self._prompts(load), at_once=load.at_once):
                trees.append(tree)
                bar.update()
        return summary_of(jobs, trees)

    def _prompts(self, load: Load) -> list[list[int]]:
        return asyncio.run(prompts_of(self.maker, load))

    def _answers(
        self, jobs: Sequence[Job], prompts: Sequence[list[int]], *, at_once: int
    ) -> Iterator[dict[str, Any]]:
        asked = [
            {"number": job.number, "prompt": prompt, "output_tokens": job.output_tokens}
            for job, prompt in zip(jobs, prompts, strict=True)
        ]
        try:
            print(json.dumps({"at_once": at_once, "jobs": asked}), file=self.lines, flush=True)
            for line in self.lines:
                tree = json.loads(line)
                if not tree:
                    return
                yield tree
        except OSError as error:
            raise MeasurementError(f"the worker of OpenVINO GenAI is silent: {error}") from error
        raise MeasurementError("the worker of OpenVINO GenAI ended")


def summary_of(jobs: Sequence[Job], trees: Sequence[dict[str, Any]]) -> Summary:
    """The same numbers as for a server. The run begins when the first request is handed over; each
    is due when it is, and the client is the worker itself, so that it costs nothing."""
    started = min(tree["sent_seconds"] for tree in trees)
    records = [record_of(jobs[tree["number"]], tree, started) for tree in trees]
    ended = max(record.answer.end_seconds for record in records)
    return summarise(records, seconds=ended, client_cpu_seconds=0.0)


def record_of(job: Job, tree: dict[str, Any], started: float) -> Record:
    """An answer of the worker as one of the load generator; times from the start of the run."""
    sent_seconds = tree["sent_seconds"] - started
    times = tuple(each - started for each in tree["text_seconds"])
    failure = None
    if tree["status"] != "FINISHED":
        failure = Failure(tree["status"].lower(), "the pipeline did not finish the request")
    answer = Answer(
        times,
        times[-1] if times else sent_seconds,
        text=tree["text"],
        prompt_tokens=job.prompt_tokens,
        output_tokens=tree["output_tokens"],
        finish_reason="length" if failure is None else None,
        failure=failure,
    )
    return Record(job, sent_seconds, sent_seconds, answer)


@contextmanager
def openvino(
    python: Path, weights: Path, maker: PromptMaker, step_tokens: int | None, budget: Budget
) -> Iterator[RunningOpenVino]:
    """`step_tokens`: most tokens it computes in a step, None for its own default."""
    arguments: dict[str, Path | int] = {
        "--model": weights,
        "--threads": budget.threads,
        "--rows": budget.rows,
        "--kv-tokens": budget.kv_tokens,
    }
    if step_tokens is not None:
        arguments["--step-tokens"] = step_tokens
    flat = [str(part) for pair in arguments.items() for part in pair]
    with running_server((str(python), str(WORKER), *flat), ready_line) as server:
        host, _, port = server.url.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS) as connection,
            connection.makefile("rw", encoding="utf-8") as lines,
        ):
            yield RunningOpenVino(server, lines, maker)
