"""The fields of a request: taken one by one, so that every other one can be named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from octavo.access.http.errors import ApiError, invalid
from octavo.access.http.service import Service
from octavo.core.errors import ModelNotFound
from octavo.core.sampling import as_integer

_STREAM_OPTIONS = {"include_usage", "include_obfuscation"}
"""The second pads events against eavesdroppers; events of this server never leave the machine."""
WARNING_HEADER = "x-octavo-warning"

LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
"""Fields of the reference API that mean nothing to an answer here; accepted in silence."""

_HARMLESS: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}
"""Values of fields that are not supported which ask for nothing; so are null, false and empty."""

UNSUPPORTED = (
    *_HARMLESS,
    "audio",
    "bad_words",
    "functions",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "json_schema",
    "prediction",
    "prompt_embeds",
    "reasoning_effort",
    "store",
    "structured_outputs",
    "suffix",
    "tools",
    "use_beam_search",
    "verbosity",
    "web_search_options",
)


class Fields:
    """The fields of one request body; `ignored` lists those that nobody knew."""

    def __init__(self, tree: Mapping[str, Any]):
        self._left = dict(tree)
        self._ignored_inside: list[str] = []

    def take(self, name: str, default: object = None) -> Any:
        """The value of a field; null counts as absent."""
        value = self._left.pop(name, None)
        return default if value is None else value

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise invalid("must be true or false", name)
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Raises InvalidRequest if it is not an integer in [low, high]; 3.0 is one."""
        value = self.take(name)
        return None if value is None else as_integer(value, name, low, high)

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise invalid("must be text", name)
        return value

    def refuse_unsupported(self) -> None:
        """Fields that would change the answer and cannot: 400, if they ask for something."""
        if (label := self.take("user")) is not None and not isinstance(label, str):
            raise invalid("must be text", "user")
        for name in LABELS:
            self._left.pop(name, None)
        for name in UNSUPPORTED:
            value = self._left.pop(name, None)
            if value in (None, False, "", [], {}) or value in _HARMLESS.get(name, ()):
                continue
            raise invalid("is not supported by this server (leave it out)", name)

    def ignore_inside(self, name: str, members: Iterable[str]) -> None:
        """Note members of an object-valued field that nobody knew."""
        self._ignored_inside += [f"{name}.{member}" for member in members]

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of the fields that are left, the caller's own words."""
        return (*self._left, *self._ignored_inside)


def warning_headers(ignored: tuple[str, ...]) -> dict[str, str]:
    """A header that names the fields that had no effect; none if there are none."""
    if not ignored:
        return {}
    shown = ", ".join(ascii(name[:40])[1:-1] for name in ignored[:16])
    more = f" and {len(ignored) - 16} more" if len(ignored) > 16 else ""
    return {WARNING_HEADER: f"ignored unknown fields: {shown}{more}"}


def check_model(fields: Fields, service: Service) -> None:
    """Take `model`: absent means the served one.

    Raises:
        ApiError: 404 for another model.
    """
    name = fields.text("model")
    if name is not None and name not in service.model_names:
        raise ApiError.of(
            ModelNotFound(
                f"no model {name[:100]!r} here",
                field="model",
                remedy=f"use {service.model_name!r}, or leave it out",
            )
        )


def take_stream(fields: Fields) -> tuple[bool, bool]:
    """`stream`, and whether its end tells the usage."""
    stream = fields.boolean("stream")
    options = fields.take("stream_options")
    if options is None:
        return stream, False
    if not isinstance(options, dict):
        raise invalid("must be an object", "stream_options")
    if not stream:
        raise invalid("goes with stream: true only", "stream_options")
    usage = options.get("include_usage")
    if usage is not None and not isinstance(usage, bool):
        raise invalid("must be true or false", "stream_options.include_usage")
    fields.ignore_inside("stream_options", options.keys() - _STREAM_OPTIONS)
    return stream, bool(usage)
