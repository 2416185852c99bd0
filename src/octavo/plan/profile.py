"""A file that says how long steps take on one machine with one model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from octavo.core.errors import SettingsError
from octavo.schedule.cost import MOST_PROFILE_NUMBER, CostProfile

FORMAT = "octavo-profile-1"
_MAX_FILE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine was that a profile was measured on.

    `layer_token_bytes` is what a token takes in the KV cache of one layer, `kv_bytes` the whole
    cache. A page has `group_layers` layers (0: all of them) of one of `cache_groups`; all but the
    first keep `window_tokens` tokens.
    """

    threads: int
    context_tokens: int
    layers: int
    layer_token_bytes: int
    kv_bytes: int
    cache_groups: int = 1
    group_layers: int = 0
    window_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """A step cost fitted to `steps` measured steps, and its engine.

    `between_seconds` pass between two steps, where one follows the other; a calibration, which has
    nobody to talk to, leaves them in the constant. `cost.error` is the median, `p90_error` the 90th
    percentile of the errors of those steps, relative to their measured time; of what a server has
    learned both are the usual error of late. The file is also one of `schedule.cost.read_profile`.
    """

    cost: CostProfile
    p90_error: float
    steps: int
    engine: EngineFacts
    between_seconds: float = 0.0

    def to_json(self) -> str:
        """The content of a profile file."""
        more = {
            "between": self.between_seconds,
            "p90_error": self.p90_error,
            "steps": self.steps,
            "engine": asdict(self.engine),
        }
        return json.dumps({"format": FORMAT, **asdict(self.cost), **more}, indent=2) + "\n"


def read_profile(path: Path) -> Profile:
    """A profile file.

    Raises:
        SettingsError: it cannot be read or is no profile; the field names what is wrong.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"cannot be read: {error.strerror}", field=str(path)) from error
    if len(data) > _MAX_FILE_BYTES:
        raise SettingsError(f"is larger than {_MAX_FILE_BYTES} bytes", field=str(path))
    return parse_profile(data, str(path))


def default_profile() -> Profile:
    """The profile that comes with Octavo: SmolLM2-135M on a machine with two cores."""
    source = files("octavo.plan").joinpath("smollm2-135m.profile.json")
    return parse_profile(source.read_bytes(), source.name)


def parse_profile(data: bytes, source: str) -> Profile:
    """A profile from the bytes of its file.

    Raises:
        SettingsError: the bytes are no profile.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"is not JSON: {error}", field=source) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise SettingsError(
            f"is no profile of format {FORMAT}",
            field=source,
            remedy="write one with octavo plan calibrate or learn",
        )
    values = _Values(content, source)
    engine = values.section("engine")
    return Profile(
        cost=_cost(values),
        p90_error=values.number("p90_error"),
        steps=values.count("steps"),
        between_seconds=values.number("between", 0.0),
        engine=EngineFacts(
            **{each.name: engine.count(each.name, each.default) for each in fields(EngineFacts)}
        ),
    )


def _cost(values: _Values) -> CostProfile:
    cost = CostProfile(
        constant=values.number("constant"),
        token=values.number("token"),
        decode_row=values.number("decode_row"),
        past_token=values.number("past_token"),
        chunk_square=values.number("chunk_square"),
        error=values.number("error"),
        machine=values.text("machine"),
        model=values.text("model"),
    )
    if cost.constant + cost.token <= 0:
        raise values.wrong("constant", "must not be 0 together with token")
    return cost


class _Values:
    """Typed access to a JSON object; errors name the file and the dotted key."""

    def __init__(self, content: Mapping[str, Any], source: str, prefix: str = ""):
        self._content = content
        self._source = source
        self._prefix = prefix

    def wrong(self, name: str, message: str) -> SettingsError:
        return SettingsError(message, field=f"{self._source}: {self._prefix}{name}")

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

    def count(self, name: str, default: object = MISSING) -> int:
        """A whole number; `default` too may be missing, and may be given even if it is 0."""
        value = self._content.get(name, default)
        if type(value) is not int or not (value == default or 1 <= value <= 2**62):
            raise self.wrong(name, "must be a whole number of at least 1")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._content.get(name, default)
        if (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and 0 <= value <= MOST_PROFILE_NUMBER
        ):
            return float(value)
        raise self.wrong(name, f"must be a number from 0 to {MOST_PROFILE_NUMBER:g}")
