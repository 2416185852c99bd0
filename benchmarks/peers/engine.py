"""What the comparison needs of an engine, and the prompts that all engines get."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.serving.load import Load
from benchmarks.serving.measure import prompt_of
from benchmarks.serving.prompts import PromptMaker, open_tokenizer
from benchmarks.serving.report import Summary


@dataclass(frozen=True, slots=True)
class Budget:
    """What each engine may use: `rows` requests at a time, cache for `row_tokens` of each."""

    threads: int
    rows: int
    row_tokens: int

    @property
    def kv_tokens(self) -> int:
        """Each engine holds as many tokens, in its own format."""
        return self.rows * self.row_tokens

    @classmethod
    def of(cls, load: Load, threads: int) -> Budget:
        return cls(threads, load.at_once or 1, load.slot_tokens)


class RunningEngine(Protocol):
    """An engine that has loaded its model."""

    @property
    def process_id(self) -> int:
        """The process that started all others of the engine."""

    def first_token_seconds(self, prompt: list[int]) -> float:
        """Ask for a few tokens; when the first came, by the machine's monotonic clock.

        Raises:
            MeasurementError: none came.
        """

    def measure(self, load: Load, *, warmup_requests: int, label: str) -> Summary:
        """Run the load once, with a progress bar.

        Raises:
            MeasurementError: it cannot be run.
        """


@dataclass(frozen=True, slots=True)
class Engine:
    """`version` of the package, `weights` it is given, and how it is started.

    `start` raises StartError if it does not come up.
    """

    name: str
    version: str
    weights: Path
    start: Callable[[Budget], AbstractContextManager[RunningEngine]]


def id_maker(model_file: Path) -> PromptMaker:
    """Prompts as token ids in the vocabulary of `model_file`, without asking any server."""
    encode = open_tokenizer(model_file)

    async def tokenize(text: str) -> list[int]:
        return encode(text)

    async def no_probe(text: str) -> int | None:
        return None

    return PromptMaker(tokenize, no_probe, as_ids=True)


async def prompts_of(maker: PromptMaker, load: Load) -> list[list[int]]:
    """One prompt a job, the same as the load generator sends to a server."""
    made = [await prompt_of(maker, load.seed, job) for job in load.jobs()]
    return [prompt for prompt in made if isinstance(prompt, list)]
