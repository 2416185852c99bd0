"""Recorded load: arrival times and token counts from CSV and JSONL files, without any text."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TextIO

from octavo.core.errors import InvalidRequest

BLOCK_TOKENS = 512
"""Prompt tokens that one id of `hash_ids` stands for in the Mooncake traces."""

MAX_REQUEST_TOKENS = 1 << 24
_MAX_NAME_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request.

    `arrival_seconds` counts from the first request of its trace. `block_ids` name consecutive
    blocks of `block_tokens` prompt tokens: equal leading ids in one `source` are equal leading
    text. `service_class` and `tenant` are None where the trace says nothing.
    """

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = 0
    service_class: str | None = None
    tenant: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class TraceScale:
    """What is done to a trace before it is replayed.

    Gaps between arrivals are multiplied by `gaps` (2 halves the load), token counts by `lengths`;
    a count that was not 0 stays at least 1. Blocks scale as the prompts do, rounded to whole
    tokens, so equal prefixes stay equal. Only the first `limit` requests of the file are read.
    """

    gaps: float = 1.0
    lengths: float = 1.0
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("gap scale", self.gaps), ("length scale", self.lengths)):
            if not (math.isfinite(value) and value > 0):
                raise InvalidRequest(f"must be a positive number, not {value}", field=name)
        if self.limit is not None and self.limit < 1:
            raise InvalidRequest(f"must be at least 1, not {self.limit}", field="limit")


def read_trace(
    path: Path,
    scale: TraceScale | None = None,
    *,
    service_class: str | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> list[TraceRequest]:
    """The requests of a trace file in order of arrival, the first one at 0 seconds.

    A `.csv` file has the columns of the Azure LLM inference traces: `TIMESTAMP` (a date and time,
    or seconds), `ContextTokens`, `GeneratedTokens`. A `.jsonl` file has the fields of the Mooncake
    traces: `timestamp` (milliseconds), `input_length`, `output_length`, and `hash_ids` if prompts
    share prefixes. Both may name a service class (`ServiceClass`, `service_class`) and a tenant
    (`Tenant`, `tenant`); `service_class` replaces the former for the whole file.

    Raises:
        InvalidRequest: the file cannot be read, a line is malformed (the field names it), or
            scaling makes a request too long.
    """
    scale = scale or TraceScale()
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidRequest(
            "is neither .csv nor .jsonl", field=str(path), remedy="name the file by its format"
        )
    try:
        # csv wants to see line ends itself; a byte order mark is no part of the first column.
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = list(islice(reader(file, path, block_tokens), scale.limit))
    except OSError as error:
        raise InvalidRequest(f"cannot be read: {error.strerror}", field=str(path)) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest("is not UTF-8", field=str(path)) from error
    if not found:
        raise InvalidRequest("has no requests", field=str(path))
    found.sort(key=lambda request: request.arrival_seconds)
    origin = found[0].arrival_seconds
    return [
        replace(
            _scaled(request, scale, origin),
            service_class=service_class or request.service_class,
            source=str(path),
        )
        for request in found
    ]


def merge(traces: Iterable[Iterable[TraceRequest]]) -> list[TraceRequest]:
    """Several traces that start at the same time, as one."""
    every = [request for trace in traces for request in trace]
    return sorted(every, key=lambda request: request.arrival_seconds)


def _scaled(request: TraceRequest, scale: TraceScale, origin_seconds: float) -> TraceRequest:
    prompt_tokens = _scaled_count(request.prompt_tokens, scale.lengths)
    block_tokens = _scaled_count(request.block_tokens, scale.lengths)
    if request.block_ids:
        prompt_tokens = min(prompt_tokens, len(request.block_ids) * block_tokens)
    return replace(
        request,
        arrival_seconds=(request.arrival_seconds - origin_seconds) * scale.gaps,
        prompt_tokens=prompt_tokens,
        output_tokens=_scaled_count(request.output_tokens, scale.lengths),
        block_tokens=block_tokens,
    )


def _scaled_count(tokens: int, factor: float) -> int:
    scaled = tokens * factor
    if scaled > MAX_REQUEST_TOKENS:
        raise InvalidRequest(
            f"makes {tokens} tokens more than {MAX_REQUEST_TOKENS}", field="length scale"
        )
    return max(round(scaled), 1) if tokens else 0


class _Line:
    """The fields of one line; what is wrong with one is said with the line's number."""

    def __init__(self, path: Path, number: int, fields: Mapping[str, object]):
        self._place = f"{path}, line {number}"
        self._fields = fields

    def wrong(self, message: str) -> InvalidRequest:
        return InvalidRequest(message, field=self._place)

    def __getitem__(self, name: str) -> object:
        if self._fields.get(name) is None:
            raise self.wrong(f"{name} is missing")
        return self._fields[name]

    def tokens(self, name: str, low: int) -> int:
        value = self[name]
        if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
            value = int(value)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not low <= value <= MAX_REQUEST_TOKENS:  # type: ignore[operator]
            raise self.wrong(
                f"{name} must be a whole number from {low} to {MAX_REQUEST_TOKENS}, "
                f"not {_shown(value)}"
            )
        return value  # type: ignore[return-value]

    def name(self, name: str) -> str | None:
        value = self._fields.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str) or len(value) > _MAX_NAME_CHARACTERS:
            raise self.wrong(
                f"{name} must be a name of at most {_MAX_NAME_CHARACTERS} characters, "
                f"not {_shown(value)}"
            )
        return value

    def block_ids(self, name: str, wanted: int) -> tuple[int, ...]:
        ids = self._fields.get(name)
        if ids is None:
            return ()
        if not isinstance(ids, list) or not all(type(one) is int for one in ids):
            raise self.wrong(f"{name} must be a list of whole numbers")
        if len(ids) != wanted:
            raise self.wrong(f"{name} has {len(ids)} ids where the prompt has {wanted} blocks")
        return tuple(ids)


def _read_csv(file: TextIO, path: Path, block_tokens: int) -> Iterator[TraceRequest]:
    rows = csv.reader(file)
    header: list[str] | None = None
    try:
        for fields in rows:
            if not fields:
                continue
            if header is None:
                header = [name.strip() for name in fields]
                _check_header(header, path)
                continue
            line = _Line(path, rows.line_num, dict(zip(header, fields, strict=False)))
            if len(fields) != len(header):
                raise line.wrong(f"has {len(fields)} fields, the header has {len(header)}")
            yield TraceRequest(
                arrival_seconds=_date_or_seconds(line, str(line["TIMESTAMP"])),
                prompt_tokens=line.tokens("ContextTokens", 1),
                output_tokens=line.tokens("GeneratedTokens", 0),
                service_class=line.name("ServiceClass"),
                tenant=line.name("Tenant"),
            )
    except csv.Error as error:
        raise InvalidRequest(str(error), field=f"{path}, line {rows.line_num}") from error


def _check_header(header: list[str], path: Path) -> None:
    missing = [
        name for name in ("TIMESTAMP", "ContextTokens", "GeneratedTokens") if name not in header
    ]
    if missing:
        raise InvalidRequest(
            f"lacks the column {missing[0]}",
            field=f"{path}, line 1",
            remedy="the columns are TIMESTAMP, ContextTokens, GeneratedTokens",
        )


def _date_or_seconds(line: _Line, text: str) -> float:
    try:
        return _finite(float(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise line.wrong(
            f"TIMESTAMP must be a date and time or seconds, not {_shown(text)}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def _read_jsonl(file: TextIO, path: Path, block_tokens: int) -> Iterator[TraceRequest]:
    for number, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"is not JSON: {error}", field=f"{path}, line {number}") from error
        if not isinstance(fields, dict):
            raise InvalidRequest("is not a JSON object", field=f"{path}, line {number}")
        line = _Line(path, number, fields)
        prompt_tokens = line.tokens("input_length", 1)
        yield TraceRequest(
            arrival_seconds=_milliseconds(line) / 1000,
            prompt_tokens=prompt_tokens,
            output_tokens=line.tokens("output_length", 0),
            block_ids=line.block_ids("hash_ids", -(-prompt_tokens // block_tokens)),
            block_tokens=block_tokens,
            service_class=line.name("service_class"),
            tenant=line.name("tenant"),
        )


def _milliseconds(line: _Line) -> float:
    value = line["timestamp"]
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _finite(float(value))
    except (ValueError, OverflowError):
        pass
    raise line.wrong(f"timestamp must be a number of milliseconds, not {_shown(value)}")


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(number)
    return number


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_READERS: dict[str, Callable[[TextIO, Path, int], Iterator[TraceRequest]]] = {
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
}
