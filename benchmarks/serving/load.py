"""What is sent and when: lengths, arrivals, everything from one seed."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

_NUMBER = re.compile(r"(\d+)")
_RANGE = re.compile(r"(\d+)-(\d+)")
_LOGNORMAL = re.compile(r"lognormal:(\d+),([0-9.]+),(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts from `low` to `high`, both included.

    Uniform, or log-normal around `median` with the standard deviation `sigma` of the logarithm,
    drawn again until it falls inside.
    """

    low: int
    high: int
    median: int | None = None
    sigma: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """`128`, `32-512` or `lognormal:MEDIAN,SIGMA,LOW-HIGH`.

        Raises:
            ValueError: it is none of them, or leaves nothing to draw.
        """
        if match := _NUMBER.fullmatch(text):
            low = high = int(match[1])
            found = cls(low, high)
        elif match := _RANGE.fullmatch(text):
            found = cls(int(match[1]), int(match[2]))
        elif match := _LOGNORMAL.fullmatch(text):
            found = cls(int(match[3]), int(match[4]), int(match[1]), float(match[2]))
        else:
            raise ValueError(
                f"{text!r} is no length (write 128, 32-512 or lognormal:200,0.8,16-1024)"
            )
        if not 1 <= found.low <= found.high:
            raise ValueError(f"the length {text!r} must go from at least 1 upwards")
        if found.median is not None and not found.low <= found.median <= found.high:
            raise ValueError(f"the median of {text!r} lies outside its range")
        return found

    def __str__(self) -> str:
        span = str(self.low) if self.low == self.high else f"{self.low}-{self.high}"
        return span if self.median is None else f"lognormal:{self.median},{self.sigma:g},{span}"

    def draw(self, chance: random.Random) -> int:
        if self.median is None:
            return chance.randint(self.low, self.high)
        while True:
            drawn = round(chance.lognormvariate(math.log(self.median), self.sigma))
            if self.low <= drawn <= self.high:
                return drawn


@dataclass(frozen=True, slots=True)
class Job:
    """One request to send. `due_seconds` counts from the start; 0 throughout in a closed loop.

    Jobs of one `prefix` begin with the same `prefix_tokens` tokens.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    due_seconds: float
    service_class: str | None = None
    prefix: int = 0
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of `at_once` clients, or arrivals at `rate` a second, whichever is given.

    Before its own `prompt`, every request has the same `prefix_tokens` tokens.
    """

    requests: int
    prompt: Lengths
    output: Lengths
    at_once: int | None = None
    rate: float | None = None
    seed: int = 0
    prefix_tokens: int = 0

    def __post_init__(self) -> None:
        if (self.at_once is None) == (self.rate is None):
            raise ValueError("give either how many at once or a rate")
        if self.requests < 1 or (self.at_once is not None and self.at_once < 1):
            raise ValueError("requests and how many at once must be at least 1")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError("the rate must be a number of requests per second above 0")

    def __str__(self) -> str:
        pace = f"{self.at_once} at once" if self.rate is None else f"{self.rate:g} a second"
        shared = f"{self.prefix_tokens} shared and " if self.prefix_tokens else ""
        return (
            f"{self.requests} requests, prompts of {shared}{self.prompt} tokens, "
            f"answers of {self.output}, {pace}, seed {self.seed}"
        )

    @property
    def slot_tokens(self) -> int:
        """Cache that one request may need, in whole multiples of 256."""
        longest = self.prefix_tokens + self.prompt.high + self.output.high
        return -(-(longest + 16) // 256) * 256

    def jobs(self) -> list[Job]:
        """The same jobs each time. Lengths do not depend on the pace."""
        lengths = random.Random(f"lengths {self.seed}")
        arrivals = self._arrivals(random.Random(f"arrivals {self.seed}"))
        return [
            Job(
                number,
                self.prefix_tokens + self.prompt.draw(lengths),
                self.output.draw(lengths),
                next(arrivals),
                prefix_tokens=self.prefix_tokens,
            )
            for number in range(self.requests)
        ]

    def _arrivals(self, chance: random.Random) -> Iterator[float]:
        """Times of a Poisson process, the first at 0."""
        due_seconds = 0.0
        while True:
            yield due_seconds
            if self.rate is not None:
                due_seconds += chance.expovariate(self.rate)


@dataclass(frozen=True, slots=True)
class Timetable:
    """An open loop of jobs at given times."""

    planned: tuple[Job, ...]
    seed: int = 0
    at_once: int | None = None

    def jobs(self) -> list[Job]:
        """The jobs, first come first."""
        return sorted(self.planned, key=lambda job: job.due_seconds)

    @property
    def requests(self) -> int:
        return len(self.planned)


LOADS = {
    "crowd": Load(64, Lengths(32, 512), Lengths(16, 192), at_once=32),
    "one": Load(8, Lengths(128, 128), Lengths(128, 128), at_once=1),
}
"""Loads with names, the same for everybody who compares."""
