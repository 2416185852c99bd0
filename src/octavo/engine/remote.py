"""An engine in another process, for asyncio programs: prompts in, streamed text out."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Sequence

from octavo.core.clock import Clock, monotonic
from octavo.core.errors import EngineError, OctavoError, Overloaded
from octavo.core.ids import RequestId
from octavo.core.request import ANONYMOUS, FinishReason
from octavo.core.sampling import SamplingParams
from octavo.core.service_classes import ServiceClass
from octavo.engine.calls import QUEUE_LIMIT, WHOLE_LIMIT, AsyncCall
from octavo.engine.connection import Connection
from octavo.engine.handle import Handle
from octavo.engine.messages import (
    Cancel,
    Closing,
    Dropped,
    EngineFacts,
    Finish,
    FromEngine,
    Outputs,
    Ready,
    Refused,
    Submit,
    Taken,
    ToEngine,
    error_of,
)
from octavo.engine.prompts import Limits, Prepared, prepare, requests_of
from octavo.observe.calls import CallObserver
from octavo.observe.stats import EngineStats
from octavo.text.tokenizer import Tokenizer

logger = logging.getLogger("octavo")

PING_SECONDS = 1.0
RETRY_SECONDS = 0.05
_STARTING = "the engine is starting"
_LOST = "the engine ended unexpectedly"


def _random_seed() -> int:
    return secrets.randbits(64)


class AsyncEngineClient:
    """Talks to the engine at `address`, whichever process that is at the time.

    Everything happens in the event loop that `start` was called in; only `prepare` may be called
    from any thread. When the engine ends, every open call ends at once with an `EngineError`, and
    the client connects again by itself as soon as an engine is there. Nothing here ever waits for
    the engine to read.

    `ready_seconds` is how long the engine may be silent before it counts as not ready: it answers
    between two steps, so this is longer than a step takes.
    """

    def __init__(
        self,
        address: str,
        tokenizer: Tokenizer,
        *,
        ready_seconds: float = 15.0,
        observer: CallObserver | None = None,
        clock: Clock = monotonic,
        draw_seed: Callable[[], int] = _random_seed,
    ):
        self.address = address
        self.tokenizer = tokenizer
        self.facts: EngineFacts | None = None
        """What the engine is; stays while it is restarted, None before the first has started."""
        self.stats: EngineStats | None = None
        """The engine's newest numbers, None until the first have come."""
        self._ready_seconds = ready_seconds
        self._observer = observer or CallObserver()
        self._clock = clock
        self._draw_seed = draw_seed
        self._numbers = itertools.count()
        self._turned_away: dict[str, int] = {}
        self._live: dict[RequestId, tuple[AsyncCall, int]] = {}
        self._untold: list[ToEngine] = []
        self._news: dict[AsyncCall, None] = {}
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._heard_seconds = 0.0
        self._absence = _STARTING
        self._task: asyncio.Task[None] | None = None

    # The life of the client

    def start(self) -> None:
        """Begin to connect, in the running event loop."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait_ready(self, timeout_seconds: float) -> EngineFacts:
        """Wait until an engine answers.

        Raises:
            EngineError: none did in time.
        """
        try:
            await asyncio.wait_for(self._connected.wait(), timeout_seconds)
        except TimeoutError:
            raise EngineError(
                f"no engine answered within {timeout_seconds:g} s: {self._absence}"
            ) from None
        assert self.facts is not None
        return self.facts

    async def close(self) -> None:
        """Cancel every open call and leave the engine; safe to call twice."""
        for call in self._open_calls():
            self.cancel(call)
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # What an application asks

    def unready_reason(self) -> str | None:
        """Why the engine cannot be relied on now; None if it can.

        It can if it has answered within `ready_seconds`, which it does after each step and, when
        idle, when asked.
        """
        if self._connection is None:
            return self._absence
        silent_seconds = self._clock() - self._heard_seconds
        if silent_seconds > self._ready_seconds:
            return f"the engine has not answered for {silent_seconds:.0f} s"
        return None

    @property
    def limits(self) -> Limits:
        """What the engine serves.

        Raises:
            EngineError: no engine has started yet.
        """
        if self.facts is None:
            raise EngineError(self._absence, remedy="try again in a moment")
        return Limits(self.facts.context_tokens, self.facts.vocabulary_size)

    @property
    def open_calls(self) -> int:
        return len(self._open_calls())

    def prepare(
        self, prompt: str | Sequence[int], params: SamplingParams, *, field: str = "prompt"
    ) -> Prepared:
        """Check a call without starting it; may be called from any thread.

        Raises:
            InvalidRequest, PromptTooLong: as `prompts.prepare`.
            EngineError: no engine has started yet.
        """
        return prepare(prompt, params, tokenizer=self.tokenizer, limits=self.limits, field=field)

    def submit(
        self,
        prepared: Prepared,
        *,
        service_class: str = "standard",
        timeout_seconds: float | None = None,
        queue_timeout_seconds: float | None = None,
        arrival_seconds: float | None = None,
        cache_salt: bytes = b"",
        tenant: str = ANONYMOUS,
        on_miss: str | None = None,
    ) -> AsyncCall:
        """Hand a checked call to the engine; returns at once.

        `timeout_seconds` counts from the arrival, queue included; then every unfinished choice ends
        with `FinishReason.TIMEOUT` and keeps the text it has. So it does after
        `queue_timeout_seconds` if no choice has got a row by then. `arrival_seconds` is when the
        request came in, on the client's clock (default: now); times are measured from it.

        Raises:
            EngineError: there is no engine now, or it does not keep up.
        """
        connection = self._connection
        if connection is None:
            raise EngineError(self._absence, remedy="try again in a moment")
        arrival = self._clock() if arrival_seconds is None else arrival_seconds
        requests = requests_of(
            prepared,
            call=f"call-{next(self._numbers)}",
            seed=self._draw_seed(),
            arrival_seconds=arrival,
            service_class=service_class,
            cache_salt=cache_salt,
            tenant=tenant,
            on_miss=on_miss,
        )
        if not connection.send(Submit(tuple(requests))):
            raise EngineError(
                "the engine does not take requests as fast as they come",
                remedy="try again in a moment",
            )
        handle = Handle(prepared, requests, self.tokenizer, arrival)
        call = AsyncCall(handle, service_class, self.cancel, self._observer)
        for index, request in enumerate(requests):
            self._live[request.id] = (call, index)
        for limit, seconds in (
            (QUEUE_LIMIT, queue_timeout_seconds),
            (WHOLE_LIMIT, timeout_seconds),
        ):
            if seconds is not None:
                rest = max(arrival + seconds - self._clock(), 0.0)
                call.timers[limit] = asyncio.get_running_loop().call_later(
                    rest, self._expire, call, limit, seconds
                )
        return call

    def check_room(self, service_class: ServiceClass) -> None:
        """Refuse early what the engine is sure to refuse: so many requests of the class wait.

        Goes by the engine's newest numbers, so it is for requests that cost much to prepare.

        Raises:
            Overloaded: the queue is full.
        """
        most, stats = service_class.queue_requests, self.stats
        if most is None or stats is None:
            return
        for each in stats.classes:
            if each.name == service_class.name and each.waiting >= most:
                # Who comes after this one is told to come later.
                earlier = self._turned_away.get(each.name, 0)
                self._turned_away[each.name] = earlier + 1
                wait_seconds = each.wait_seconds * (earlier + 1) / max(each.waiting, 1)
                raise Overloaded(
                    f"class {each.name} is overloaded: {each.waiting} requests wait already",
                    retry_after_seconds=max(wait_seconds, 1.0),
                    service_class=each.name,
                )

    def cancel(self, call: AsyncCall) -> None:
        """End every unfinished choice of a call with `FinishReason.CANCELLED`."""
        self._end(call, FinishReason.CANCELLED)

    # What goes on behind

    async def _run(self) -> None:
        while True:
            connection = Connection(self.address)
            try:
                await connection.serve(
                    self._receive, caught_up=self._hand_on, ping_seconds=PING_SECONDS
                )
            except Exception as error:
                # Whatever is wrong with one connection, the next engine gets another chance.
                logger.exception("the connection to the engine is given up")
                self._absence = f"what the engine sent could not be taken: {error}"
            finally:
                connection.close()
                self._disconnected()
            await asyncio.sleep(RETRY_SECONDS)

    def _receive(self, connection: Connection, message: FromEngine) -> None:
        self._heard_seconds = self._clock()
        match message:
            case Outputs():
                self._deliver(message, self._heard_seconds)
            case Taken(request_ids, service_class):
                call = self._call_of(request_ids)
                if call is not None:
                    call.note_taken(service_class)
            case EngineStats():
                self.stats = message
                self._turned_away.clear()
                self._observer.engine_stats(message)
            case Ready(facts):
                self.facts = facts
                self._connection = connection
                self._absence = _STARTING
                self._connected.set()
            case Refused(request_ids, problem):
                call = self._call_of(request_ids)
                if call is not None:
                    self._fail(call, error_of(problem))
            case Dropped(reason):
                self._absence = f"the engine has dropped this frontend: {reason}"
                connection.end()
            case Closing(reason):
                self._absence = reason
                connection.end()
        while self._untold and connection.send(self._untold[0]):
            del self._untold[0]

    def _call_of(self, request_ids: tuple[RequestId, ...]) -> AsyncCall | None:
        """The call of these requests, if any of them still lives."""
        return next((self._live[each][0] for each in request_ids if each in self._live), None)

    def _deliver(self, message: Outputs, now_seconds: float) -> None:
        for started in message.started:
            if started.request_id in self._live:
                self._live[started.request_id][0].note_start(started.queue_seconds)
        enough: list[RequestId] = []
        for output in message.outputs:
            live = self._live.get(output.request_id)
            if live is None:
                continue
            call, index = live
            if call.accept(index, output, now_seconds):
                self._news[call] = None
            if call.handle.answers[index].finish_reason is not None:
                del self._live[output.request_id]
                if output.finish_reason is None:
                    enough.append(output.request_id)
        if enough:
            self._tell(Finish(tuple(enough)))

    def _hand_on(self) -> None:
        """Give readers what has come, merged if that was more than one message."""
        for call in self._news:
            call.hand_on()
        self._news.clear()

    def _disconnected(self) -> None:
        if self._connection is None:
            return
        self._connection = None
        self._connected.clear()
        self._untold.clear()
        reason = _LOST if self._absence == _STARTING else self._absence
        for call in self._open_calls():
            self._fail(call, EngineError(reason, remedy="send the request again in a moment"))
        self._absence = _STARTING

    def _expire(self, call: AsyncCall, limit: str, seconds: float) -> None:
        call.expired = (limit, seconds)
        self._end(call, FinishReason.TIMEOUT)

    def _end(self, call: AsyncCall, reason: FinishReason) -> None:
        unfinished = self._forget(call)
        if unfinished:
            self._tell(Cancel(unfinished))
        call.end(reason, self._clock())

    def _fail(self, call: AsyncCall, error: OctavoError) -> None:
        self._forget(call)
        call.fail(error, self._clock())

    def _forget(self, call: AsyncCall) -> tuple[RequestId, ...]:
        """Take a call off the list of the living; the requests that were on it."""
        ids = (answer.request.id for answer in call.handle.answers)
        return tuple(each for each in ids if self._live.pop(each, None) is not None)

    def _tell(self, message: ToEngine) -> None:
        """Send what must not get lost; in order, later if the engine does not read now."""
        if self._connection is not None and (self._untold or not self._connection.send(message)):
            self._untold.append(message)

    def _open_calls(self) -> list[AsyncCall]:
        return list(dict.fromkeys(call for call, _ in self._live.values()))
