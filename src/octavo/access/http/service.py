"""What all routes share: the engine's client, the model's text side, limits."""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from starlette.requests import Request

from octavo.access.http.errors import unavailable
from octavo.core.clock import Clock, monotonic
from octavo.core.service_classes import BUILT_IN, Route, ServiceClass
from octavo.observe.prometheus import ServingMetrics
from octavo.text.templates import ChatTemplate
from octavo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from octavo.engine.client import AsyncEngineClient

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

BODIES_AT_ONCE = 8
"""Longest bodies that may be held at the same time, so that many connections are no way around
the limit of one."""
INLINE_CHARACTERS = 4096
"""Less text than this is tokenized faster than a thread is woken."""


def random_id() -> str:
    return secrets.token_hex(12)


@dataclass(slots=True)
class Service:
    """One served model. Belongs to the event loop; only `draining` and `held_body_bytes` change.

    `ping_seconds` is the longest silence of a stream, `body_seconds` the longest pause inside a
    request body.
    """

    client: AsyncEngineClient
    template: ChatTemplate
    model_names: tuple[str, ...]
    max_body_bytes: int
    metrics: ServingMetrics
    classes: tuple[ServiceClass, ...] = BUILT_IN
    routes: tuple[Route, ...] = ()
    clock: Clock = monotonic
    wall_clock: Callable[[], float] = time.time
    draw_id: Callable[[], str] = random_id
    ping_seconds: float = 5.0
    body_seconds: float = 30.0
    started_seconds: float = field(default_factory=time.time)
    draining: bool = False
    held_body_bytes: int = 0
    """Of all requests that are being read."""
    executor: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="tokenize")
    )

    @property
    def model_name(self) -> str:
        """The name that answers and `/v1/models` give; others in `model_names` are accepted too."""
        return self.model_names[0]

    @property
    def tokenizer(self) -> Tokenizer:
        return self.client.tokenizer

    @property
    def fingerprint(self) -> str | None:
        """What answers give as `system_fingerprint`: equal ones compute the same bits."""
        facts = self.client.facts
        return None if facts is None else f"fp_{facts.bits_fingerprint[:16]}"

    def class_named(self, name: str) -> ServiceClass:
        return next(each for each in self.classes if each.name == name)

    def unready_reason(self) -> str | None:
        """Why no request should be sent here now; None if one may."""
        return "the server is shutting down" if self.draining else self.client.unready_reason()

    def check_ready(self) -> None:
        """Raises `ApiError` 503 if there is no engine, or the server drains."""
        if self.draining:
            raise unavailable("the server is shutting down", code="shutting_down", close=True)
        if self.client.facts is None:
            raise unavailable(self.client.unready_reason() or "the engine is starting")

    async def run(
        self,
        size: int,
        function: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **options: _Arguments.kwargs,
    ) -> _Result:
        """Call a function whose time grows with `size` characters; in a thread if that is much."""
        if size <= INLINE_CHARACTERS:
            return function(*arguments, **options)
        call = functools.partial(function, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self.executor, call)

    def close(self) -> None:
        """End the threads; work that is queued is dropped."""
        self.executor.shutdown(wait=False, cancel_futures=True)


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
