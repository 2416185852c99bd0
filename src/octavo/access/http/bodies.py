"""From the bytes of a request to a JSON object, whatever the bytes are."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from octavo.access.http.errors import ApiError, invalid, unavailable
from octavo.access.http.service import BODIES_AT_ONCE, Service
from octavo.core.errors import InvalidRequest
from octavo.text.checks import check_text

MAX_SHOWN = 200
_HALF_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_NO_NUMBER = re.compile(rb"NaN|Infinity|\d[eE]\+?\d{2}|\d{300}")


async def read_object(request: Request, service: Service) -> dict[str, Any]:
    """The JSON object in the body.

    Raises:
        ApiError: 415 not declared as JSON, 413 too long, 408 too slow, 400 not a JSON object, 503
            too many long bodies at the same time.
        ClientDisconnect: the client has left.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # What a web page may send to a local server without being asked must not reach the model.
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(
            415,
            f"the body is declared as {media_type[:MAX_SHOWN] or 'nothing'}"
            " (send the header Content-Type: application/json)",
            code="unsupported_media_type",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(
            415,
            f"the body is declared as {encoding[:MAX_SHOWN]} (send it as it is)",
            code="unsupported_encoding",
        )
    body = await _read(request, service)
    tree = await service.run(len(body) // 8, decode, body)
    if not isinstance(tree, dict):
        raise invalid(f"the body must be a JSON object, not {_kind(tree)}")
    return tree


def decode(body: bytes) -> object:
    """The value of a JSON text (RFC 8259; of a name given twice the last counts).

    Raises:
        ApiError: 400 with the place of the fault.
    """
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise invalid("the body nests too deep", code="invalid_json") from None
    except (msgspec.MsgspecError, ValueError) as error:
        _refuse_field_at_fault(body)
        raise invalid(f"the body is not JSON: {error}", code="invalid_json") from None


def _refuse_field_at_fault(body: bytes) -> None:
    """Name the field with half of a surrogate pair, or with a number that is none.

    Python's own parser takes both, and NaN and Infinity as other programs write them.
    """
    if not _HALF_ESCAPE.search(body) and not _NO_NUMBER.search(body):
        return
    try:
        for field, value in _leaves(json.loads(body), ""):
            if isinstance(value, str):
                check_text(value, field)
            elif isinstance(value, float) and not math.isfinite(value):
                raise invalid("must be a finite number", field)
    except InvalidRequest as error:
        raise ApiError.of(error) from None
    except (ValueError, RecursionError):
        return


def _leaves(value: object, place: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield place or "the name of a field", name
            shown = name[:MAX_SHOWN].encode("utf-8", "replace").decode()
            yield from _leaves(item, f"{place}.{shown}" if place else shown)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{place}[{index}]")
    else:
        yield place or "the body", value


async def _read(request: Request, service: Service) -> bytes:
    limit = service.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
        raise _too_long(limit)
    chunks: list[bytes] = []
    try:
        return await _collect(request, service, chunks)
    finally:
        service.held_body_bytes -= sum(map(len, chunks))


async def _collect(request: Request, service: Service, chunks: list[bytes]) -> bytes:
    limit = service.max_body_bytes
    size = 0
    while True:
        try:
            message = await asyncio.wait_for(request.receive(), service.body_seconds)
        except TimeoutError:
            raise ApiError(
                408,
                f"the body did not go on for {service.body_seconds:g} s",
                code="body_timeout",
                headers={"connection": "close"},
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_long(limit)
        chunks.append(chunk)
        service.held_body_bytes += len(chunk)
        if service.held_body_bytes > BODIES_AT_ONCE * limit:
            raise unavailable("too many long requests at once", code="too_many_bodies", close=True)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_long(limit: int) -> ApiError:
    return ApiError(
        413,
        f"the body has more than {limit} bytes (send less, or raise server.max_body_bytes)",
        code="body_too_large",
    )


def _kind(value: object) -> str:
    names = {list: "an array", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
