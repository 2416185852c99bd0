"""A call to an engine in another process, as an asyncio program sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from octavo.core.errors import EngineError, OctavoError, Overloaded
from octavo.core.output import EngineOutput
from octavo.core.request import FinishReason
from octavo.engine.handle import Handle
from octavo.engine.outputs import Delta, RequestOutput
from octavo.observe.calls import CallObserver

QUEUE_LIMIT = "queue_timeout_seconds"
WHOLE_LIMIT = "timeout_seconds"
_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)
MAX_WAITING_DELTAS = 32
"""Deltas that wait for a slow reader before they are merged into one a choice."""


def merged(deltas: list[Delta]) -> Delta:
    """One delta in place of several of the same choice; the last says how it ended."""
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        index=deltas[0].index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        finish_reason=deltas[-1].finish_reason,
        error=deltas[-1].error,
    )


class Inbox:
    """Deltas on their way to a reader; at most `MAX_WAITING_DELTAS` a choice, however slow it is.

    Nothing is lost: what waits too long is merged, so the size is bounded by the answer's.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[Delta]] = {}

    def __len__(self) -> int:
        return sum(len(deltas) for deltas in self._waiting.values())

    def put(self, delta: Delta) -> None:
        deltas = self._waiting.setdefault(delta.index, [])
        deltas.append(delta)
        if len(deltas) > MAX_WAITING_DELTAS:
            deltas[:] = [merged(deltas)]

    def take(self) -> Delta | None:
        """Everything that waits of the choice that has waited longest, as one delta."""
        if not self._waiting:
            return None
        index = next(iter(self._waiting))
        return merged(self._waiting.pop(index))

    def take_all(self) -> list[Delta]:
        """Everything that waits, one delta a choice."""
        deltas = list(map(merged, self._waiting.values()))
        self._waiting.clear()
        return deltas

    def clear(self) -> None:
        self._waiting.clear()


class AsyncCall(AsyncIterator[Delta]):
    """One call; iterate over its deltas, or wait for its `result`.

    Made by `AsyncEngineClient.submit` and used in its event loop, by one reader. Leaving
    `async with` cancels what has not finished. A reader that is slower than the engine gets fewer,
    longer deltas.
    """

    def __init__(
        self,
        handle: Handle,
        service_class: str,
        cancel: Callable[[AsyncCall], None],
        observer: CallObserver,
    ):
        self.handle = handle
        self.service_class = service_class
        """The class it runs in; the engine may have lowered it when it took the call."""
        self.is_taken = False
        self.expired: tuple[str, float] | None = None
        """Which limit of time ended it, and its seconds."""
        self.timers: dict[str, asyncio.TimerHandle] = {}
        """What ends the call when a limit of time is over; stopped when it ends before."""
        self.on_deltas: Callable[[list[Delta]], bool] | None = None
        """Asked to take what its reader waits for, one delta a choice; else the reader is woken.

        So no task needs to wake for a token. What is raised here is raised to the reader.
        """
        self.queue_seconds: float | None = None
        """From arrival to the first row of the first choice; None while it is queued."""
        self._asked_class = service_class
        self._cancel = cancel
        self._observer = observer
        self._token_seconds: list[float | None] = [None] * len(handle.answers)
        self._first_seconds: list[float | None] = [None] * len(handle.answers)
        self._inbox = Inbox()
        self._error: OctavoError | None = None
        self._defect: Exception | None = None
        self._reads_deltas = True
        self._waiter: asyncio.Future[None] | None = None
        observer.submitted(service_class, len(handle.prepared.token_ids))

    @property
    def done(self) -> bool:
        """Nothing more will come (deltas may still wait to be taken)."""
        return self.handle.done or self._error is not None

    @property
    def waiting_deltas(self) -> int:
        """Deltas that the engine has sent and nobody has taken."""
        return len(self._inbox)

    def __aiter__(self) -> AsyncCall:
        return self

    async def __anext__(self) -> Delta:
        """The next delta.

        Raises:
            EngineError: the engine ended, or dropped this frontend, before the answer did.
            OctavoError: the engine refused the call.
        """
        while True:
            if self._defect is not None:
                raise self._defect
            delta = self._inbox.take()
            if delta is not None:
                return delta
            if self._error is not None:
                raise self._error
            if self.handle.done:
                raise StopAsyncIteration
            await self._changed()

    async def result(self) -> RequestOutput:
        """The whole answer, once it is there; deltas that nobody took are let go.

        Raises:
            EngineError, OctavoError: as for the next delta.
        """
        self._reads_deltas = False
        self._inbox.clear()
        while not self.done:
            await self._changed()
        if self._error is not None:
            raise self._error
        return self.handle.result()

    async def taken(self) -> str:
        """The class that the engine has taken the call in, once it has.

        Raises:
            EngineError, OctavoError: as for the next delta.
        """
        while not self.is_taken and not self.done:
            await self._changed()
        if self._error is not None:
            raise self._error
        return self.service_class

    def cancel(self) -> None:
        """End every unfinished choice now, with `FinishReason.CANCELLED`; safe to call twice.

        The engine frees rows and pages before its next step.
        """
        if not self.done:
            self._cancel(self)

    async def __aenter__(self) -> AsyncCall:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    # For the client

    def note_taken(self, service_class: str) -> None:
        """The engine has taken the call, in this class."""
        self.is_taken = True
        self.service_class = service_class
        self._wake()

    def note_start(self, queue_seconds: float) -> None:
        """A choice got its first row."""
        if self.queue_seconds is None:
            self.queue_seconds = queue_seconds
        if QUEUE_LIMIT in self.timers:
            self.timers.pop(QUEUE_LIMIT).cancel()
        self._observer.started(self.service_class, queue_seconds)

    def accept(self, index: int, output: EngineOutput, now_seconds: float) -> bool:
        """Take news of choice `index`; True if there is something to `hand_on`."""
        delta = self.handle.accept(index, output, now_seconds)
        if output.token_ids:
            self._observe_tokens(index, len(output.token_ids), now_seconds)
        if delta is None:
            return False
        if self._reads_deltas:
            self._inbox.put(delta)
        if delta.finish_reason is not None and self.handle.done:
            self._close(now_seconds)
        return self._reads_deltas

    def hand_on(self) -> None:
        """Give what has come to whoever waits for it."""
        if self._waiter is None or self._waiter.done():
            return
        if self.on_deltas is not None:
            deltas = self._inbox.take_all()
            try:
                if self.on_deltas(deltas):
                    return
            except Exception as error:
                # It is the reader's, and no reason to give up the engine and all other calls.
                self._defect = error
            for delta in deltas:
                self._inbox.put(delta)
        self._waiter.set_result(None)

    def end(self, reason: FinishReason, now_seconds: float) -> None:
        """End the unfinished choices for this reason."""
        for answer in self.handle.answers:
            if answer.finish_reason is None:
                output = EngineOutput(answer.request.id, finish_reason=reason)
                self.accept(answer.index, output, now_seconds)

    def fail(self, error: OctavoError, now_seconds: float) -> None:
        """End the call with an error, which its reader gets after what has come before."""
        if not self.done:
            self._error = error
            self._close(now_seconds)

    def _observe_tokens(self, index: int, count: int, now_seconds: float) -> None:
        last_seconds = self._token_seconds[index]
        if last_seconds is None:
            self._first_seconds[index] = now_seconds
            if all(seconds is None for seconds in self._token_seconds):
                self._observer.first_token(
                    self.service_class, now_seconds - self.handle.submitted_seconds
                )
        gap_seconds = None if last_seconds is None else now_seconds - last_seconds
        self._observer.tokens(self.service_class, count, gap_seconds)
        self._token_seconds[index] = now_seconds

    def _close(self, now_seconds: float) -> None:
        for timer in self.timers.values():
            timer.cancel()
        code = self._error.code if self._error is not None else ""
        if isinstance(self._error, Overloaded):
            self._observer.refused(self._asked_class, self._error.reason)
        elif self.service_class == self._asked_class:
            self._tell_delivery(now_seconds)
        answers = self.handle.answers
        self._observer.ended(
            self.service_class,
            [code if each.finish_reason is None else each.finish_reason.value for each in answers],
            answers[0].cached_tokens,
            now_seconds - self.handle.submitted_seconds,
        )
        self._wake()

    def _tell_delivery(self, now_seconds: float) -> None:
        answers = self.handle.answers
        if any(each.finish_reason not in _WHOLE for each in answers):
            return
        firsts = [each for each in self._first_seconds if each is not None]
        means = [
            (last - first) / (answer.token_count - 1)
            for answer, first, last in zip(
                answers, self._first_seconds, self._token_seconds, strict=True
            )
            if first is not None and last is not None and answer.token_count > 1
        ]
        self._observer.delivered(
            self.service_class,
            min(firsts, default=now_seconds) - self.handle.submitted_seconds,
            max(means, default=None),
        )

    async def _changed(self) -> None:
        if self._waiter is not None:
            raise EngineError("a call has one reader at a time")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
