"""Runs loads on OpenVINO GenAI in this process, for whoever connects.

`openvino_engine.py` starts it with the Python of the peer's environment, where there is nothing of
Octavo. It says `ready at HOST:PORT` on standard output, takes one connection, and then a line of
JSON a load:

    {"at_once": 32, "jobs": [{"number": 0, "prompt": [ids], "output_tokens": 16}, ...]}

Each answer goes back as a line when it is whole, the last one followed by an empty object. All
times are readings of the monotonic clock, which is one for all processes of a machine.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino
import openvino_genai

BLOCK_TOKENS = 32


@dataclass(slots=True)
class Running:
    """A request in the pipeline; `text_seconds` has a reading for each step that brought tokens."""

    job: dict[str, Any]
    handle: openvino_genai.GenerationHandle
    sent_seconds: float
    text_seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def take(self, seconds: float) -> bool:
        """Read what the last step brought; true once the answer is whole."""
        # Asked first: what a step brings and that it was the last become visible together.
        whole = self.handle.get_status() != openvino_genai.GenerationStatus.RUNNING
        before = len(self.tokens)
        while self.handle.can_read():
            for output in self.handle.read().values():
                self.tokens += output.generated_ids
        if len(self.tokens) > before:
            self.text_seconds.append(seconds)
        return whole


def open_pipeline(options: argparse.Namespace) -> openvino_genai.ContinuousBatchingPipeline:
    config = openvino_genai.SchedulerConfig()
    # A request holds its last block only in part.
    config.num_kv_blocks = -(-options.kv_tokens // BLOCK_TOKENS) + options.rows
    config.max_num_seqs = options.rows
    config.enable_prefix_caching = True
    if options.step_tokens is not None:
        config.max_num_batched_tokens = options.step_tokens
    return openvino_genai.ContinuousBatchingPipeline(
        options.model, config, "CPU", {"INFERENCE_NUM_THREADS": options.threads}
    )


def answers(
    pipeline: openvino_genai.ContinuousBatchingPipeline,
    jobs: Sequence[dict[str, Any]],
    at_once: int,
    first_id: int,
) -> Iterator[Running]:
    """A closed loop of `at_once` clients; each answer as soon as it is whole."""
    waiting = deque(jobs)
    running: list[Running] = []
    while waiting or running:
        while waiting and len(running) < at_once:
            job = waiting.popleft()
            sent_seconds = time.monotonic()
            prompt = openvino.Tensor(np.array([job["prompt"]], dtype=np.int64))
            handle = pipeline.add_request(first_id + job["number"], prompt, exactly(job))
            running.append(Running(job, handle, sent_seconds))
        pipeline.step()
        seconds = time.monotonic()
        still_running = []
        for each in running:
            if each.take(seconds):
                yield each
            else:
                still_running.append(each)
        running = still_running


def exactly(job: dict[str, Any]) -> openvino_genai.GenerationConfig:
    """The most likely tokens, as many as wanted."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = job["output_tokens"]
    config.ignore_eos = True
    config.do_sample = False
    return config


def tree_of(whole: Running, tokenizer: openvino_genai.Tokenizer) -> dict[str, Any]:
    return {
        "number": whole.job["number"],
        "sent_seconds": whole.sent_seconds,
        "text_seconds": whole.text_seconds,
        "output_tokens": len(whole.tokens),
        "status": whole.handle.get_status().name,
        "text": tokenizer.decode(whole.tokens) if whole.tokens else "",
    }


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True, help="most requests at a time")
    parser.add_argument("--kv-tokens", type=int, required=True, help="that the KV cache holds")
    parser.add_argument("--step-tokens", type=int, help="most of a step, instead of the default")
    options = parser.parse_args(arguments)
    pipeline = open_pipeline(options)
    tokenizer = pipeline.get_tokenizer()
    first_id = 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        print(f"ready at {host}:{port}", flush=True)
        connection, _ = server.accept()
    with connection, connection.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            load = json.loads(line)
            for whole in answers(pipeline, load["jobs"], load["at_once"], first_id):
                print(json.dumps(tree_of(whole, tokenizer)), file=lines, flush=True)
            print("{}", file=lines, flush=True)
            first_id += len(load["jobs"])


if __name__ == "__main__":
    main(sys.argv[1:])
