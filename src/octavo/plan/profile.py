"""How long steps take on one machine with one model, as a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from octavo.core.errors import InvalidRequest
from octavo.plan.shape import StepShape

FORMAT = "octavo-profile-1"
_MAX_FILE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: a constant, and so much for each unit of its shape."""

    constant_seconds: float
    token_seconds: float
    sampled_row_seconds: float
    past_pair_seconds: float
    chunk_pair_seconds: float

    def predict(self, shape: StepShape) -> float:
        """Seconds that a step of this shape takes."""
        return (
            self.constant_seconds
            + self.token_seconds * shape.tokens
            + self.sampled_row_seconds * shape.sampled_rows
            + self.past_pair_seconds * shape.past_pairs
            + self.chunk_pair_seconds * shape.chunk_pairs
        )


@dataclass(frozen=True, slots=True)
class FitError:
    """How far the cost is from the steps it was fitted to, relative to the measured time."""

    median_relative: float
    p90_relative: float
    steps: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A step cost, where it was measured, and what the engine made of the memory there.

    `layer_token_bytes` is what one token takes in the KV cache of one layer.
    """

    machine: str
    model: str
    threads: int
    context_tokens: int
    layers: int
    layer_token_bytes: int
    kv_bytes: int
    cost: StepCost
    error: FitError

    def to_json(self) -> str:
        """The content of a profile file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"


def read_profile(path: Path) -> Profile:
    """A profile file.

    Raises:
        InvalidRequest: it cannot be read or is no profile; the field names what is wrong.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"cannot be read: {error.strerror}", field=str(path)) from error
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidRequest(f"is larger than {_MAX_FILE_BYTES} bytes", field=str(path))
    return parse_profile(data, str(path))


def default_profile() -> Profile:
    """The profile that comes with Octavo: SmolLM2-135M on a machine with two cores."""
    source = files("octavo.plan").joinpath("smollm2-135m.profile.json")
    return parse_profile(source.read_bytes(), source.name)


def parse_profile(data: bytes, source: str) -> Profile:
    """A profile from the bytes of its file.

    Raises:
        InvalidRequest: the bytes are no profile.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is not JSON: {error}", field=source) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidRequest(
            f"is no profile of format {FORMAT}",
            field=source,
            remedy="write one with octavo plan calibrate",
        )
    values = _Values(content, source)
    return Profile(
        machine=values.text("machine"),
        model=values.text("model"),
        threads=values.count("threads"),
        context_tokens=values.count("context_tokens"),
        layers=values.count("layers"),
        layer_token_bytes=values.count("layer_token_bytes"),
        kv_bytes=values.count("kv_bytes"),
        cost=_cost(values.section("cost")),
        error=_error(values.section("error")),
    )


def _cost(values: _Values) -> StepCost:
    cost = StepCost(**{item.name: values.number(item.name) for item in fields(StepCost)})
    if cost.constant_seconds + cost.token_seconds <= 0:
        raise values.wrong("constant_seconds", "must not be 0 together with token_seconds")
    return cost


def _error(values: _Values) -> FitError:
    return FitError(
        values.number("median_relative"), values.number("p90_relative"), values.count("steps")
    )


class _Values:
    """Typed access to a JSON object; errors name the file and the dotted key."""

    def __init__(self, content: Mapping[str, Any], source: str, prefix: str = ""):
        self._content = content
        self._source = source
        self._prefix = prefix

    def wrong(self, name: str, message: str) -> InvalidRequest:
        return InvalidRequest(message, field=f"{self._source}: {self._prefix}{name}")

    def section(self, name: str) -> _Values:
        value = self._content.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "must be an object")
        return _Values(value, self._source, f"{name}.")

    def text(self, name: str) -> str:
        value = self._content.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "must be text")
        return value

    def count(self, name: str) -> int:
        value = self._content.get(name)
        if type(value) is not int or not 1 <= value <= 2**62:
            raise self.wrong(name, "must be a whole number of at least 1")
        return value

    def number(self, name: str) -> float:
        value = self._content.get(name)
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise self.wrong(name, "must be a number of at least 0")
        return float(value)
