"""Clients: prompts in, streamed text out. `Client` has its engine in process.

What talks to an engine in another process (`AsyncEngineClient` and what belongs to it) is offered
here too, loaded when it is first asked for, so that only programs that need it load ZeroMQ.
"""

from __future__ import annotations

import importlib
import itertools
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from octavo.core.clock import Clock, monotonic
from octavo.core.errors import EngineError
from octavo.core.ids import RequestId
from octavo.core.output import EngineOutput
from octavo.core.request import FinishReason
from octavo.core.sampling import SamplingParams
from octavo.engine.handle import Handle
from octavo.engine.idle import IdleRest
from octavo.engine.outputs import Alternative, Completion, Delta, LogprobEntry, RequestOutput, Usage
from octavo.engine.prompts import Limits, Prepared, prepare, requests_of
from octavo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from octavo.engine.calls import AsyncCall
    from octavo.engine.engine import Engine
    from octavo.engine.messages import EngineFacts
    from octavo.engine.remote import AsyncEngineClient

__all__ = [
    "Alternative",
    "AsyncCall",
    "AsyncEngineClient",
    "Client",
    "Completion",
    "Delta",
    "EngineFacts",
    "Handle",
    "Limits",
    "LogprobEntry",
    "Prepared",
    "Prompt",
    "RequestOutput",
    "Stream",
    "Usage",
    "prepare",
    "random_seed",
]

_LATE = {
    "AsyncCall": "octavo.engine.calls",
    "AsyncEngineClient": "octavo.engine.remote",
    "EngineFacts": "octavo.engine.messages",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)


Prompt = str | Sequence[int]


def random_seed() -> int:
    """A seed nobody can guess."""
    return secrets.randbits(64)


class Client:
    """Joins text and engine.

    Nothing is computed in the background: `pump` makes one engine step, and whoever waits for an
    answer pumps. So many streams work in one thread, each moving all of them. Every method may be
    called from any thread; one lock makes a step exclusive, and a thread that waits for it finds
    what the other's step brought.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        limits: Limits,
        *,
        clock: Clock = monotonic,
        draw_seed: Callable[[], int] = random_seed,
    ):
        self.tokenizer = tokenizer
        self.limits = limits
        self._engine = engine
        self._clock = clock
        self._draw_seed = draw_seed
        self._numbers = itertools.count()
        self._live: dict[RequestId, tuple[Handle, int]] = {}
        self._abandoned: deque[Handle] = deque()
        self._lock = threading.RLock()
        self._idle = IdleRest(engine, self._lock)
        self._is_closed = False

    def prepare(self, prompt: Prompt, params: SamplingParams, *, field: str = "prompt") -> Prepared:
        """Check a call without starting it; raises what `prompts.prepare` raises."""
        return prepare(prompt, params, tokenizer=self.tokenizer, limits=self.limits, field=field)

    def submit(
        self,
        prepared: Prepared,
        *,
        service_class: str = "standard",
        cache_salt: bytes = b"",
    ) -> Handle:
        """Hand a checked call to the engine.

        With `n` > 1 the choices share the pages of the prompt: the first computes them, the others
        wait for them.

        Raises:
            InvalidRequest: the call can never fit the KV cache.
            EngineError: the client is closed.
        """
        with self._lock:
            if self._is_closed:
                raise EngineError("the model is closed", remedy="open it again")
            requests = requests_of(
                prepared,
                call=f"call-{next(self._numbers)}",
                seed=self._draw_seed(),
                arrival_seconds=self._clock(),
                service_class=service_class,
                cache_salt=cache_salt,
            )
            handle = Handle(prepared, requests, self.tokenizer, requests[0].arrival_seconds)
            for index, request in enumerate(requests):
                self._engine.add(request)
                self._live[request.id] = (handle, index)
        return handle

    def pump(self) -> list[Handle]:
        """Make one engine step; returns the calls that have new deltas."""
        with self._lock:
            while self._abandoned:
                self.cancel(self._abandoned.popleft())
            news: dict[int, Handle] = {}
            for output in self._engine.step():
                handle = self._deliver(output)
                if handle is not None:
                    news[id(handle)] = handle
            if not self._engine.has_work:
                self._idle.work_ended()
            return list(news.values())

    @property
    def has_work(self) -> bool:
        with self._lock:
            return bool(self._live)

    def cancel(self, handle: Handle) -> None:
        """End every unfinished choice; its pages are free after the next step at the latest."""
        with self._lock:
            for answer in handle.answers:
                if self._live.pop(answer.request.id, None) is not None:
                    self._engine.cancel(answer.request.id)
                    output = EngineOutput(answer.request.id, finish_reason=FinishReason.CANCELLED)
                    self._accept(handle, answer.index, output)

    def abandon(self, handle: Handle) -> None:
        """Cancel before the next step; unlike `cancel` safe inside a step and without the lock."""
        self._abandoned.append(handle)

    def next_delta(self, handle: Handle) -> Delta | None:
        """Wait for the next delta of a call, making steps; None once all have been taken."""
        while True:
            with self._lock:
                delta = handle.take_one()
                if delta is not None or handle.done:
                    return delta
                self.pump()

    def stream(self, prompt: Prompt, params: SamplingParams) -> Stream:
        """Start a call at once and iterate over its deltas."""
        return Stream(self, self.submit(self.prepare(prompt, params)))

    def complete(
        self,
        calls: Sequence[Prepared],
        *,
        on_finished: Callable[[], object] | None = None,
    ) -> list[RequestOutput]:
        """Run calls to their ends, as many at a time as the engine takes; answers in order.

        `on_finished` is called once a call, in order. If anything is raised, an interrupt too, all
        of them are cancelled.
        """
        handles: list[Handle] = []
        try:
            handles += [self.submit(call) for call in calls]
            for handle in handles:
                while self.next_delta(handle) is not None:
                    pass
                if on_finished is not None:
                    on_finished()
            return [handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                self.cancel(handle)
            raise

    def close(self) -> None:
        """Cancel everything and close the engine; safe to call twice."""
        self._idle.close()
        with self._lock:
            for handle, _ in list(self._live.values()):
                self.cancel(handle)
            self._is_closed = True
            self._engine.close()

    def _deliver(self, output: EngineOutput) -> Handle | None:
        live = self._live.get(output.request_id)
        if live is None:
            return None
        handle, index = live
        has_news = self._accept(handle, index, output)
        answer = handle.answers[index]
        if answer.finish_reason is not None:
            del self._live[output.request_id]
            if output.finish_reason is None:
                self._engine.finish(output.request_id)
        return handle if has_news else None

    def _accept(self, handle: Handle, index: int, output: EngineOutput) -> bool:
        """True if there is a new delta."""
        delta = handle.accept(index, output, self._clock())
        if delta is not None:
            handle.put(delta)
        return delta is not None


class Stream(Iterator[Delta]):
    """Deltas of one call. Closing it early, also by dropping it, cancels the call."""

    def __init__(self, client: Client, handle: Handle):
        self._client = client
        self.handle = handle

    def __next__(self) -> Delta:
        delta = self._client.next_delta(self.handle)
        if delta is None:
            raise StopIteration
        return delta

    def result(self) -> RequestOutput:
        """The whole answer; runs the call to its end first."""
        while self._client.next_delta(self.handle) is not None:
            pass
        return self.handle.result()

    def close(self) -> None:
        if not self.handle.done:
            self._client.cancel(self.handle)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A finaliser may run in the middle of a step of this very thread.
        if hasattr(self, "handle") and not self.handle.done:
            self._client.abandon(self.handle)
