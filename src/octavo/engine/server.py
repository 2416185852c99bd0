"""The loop of the engine process: messages in, one step, messages out."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterable
from dataclasses import replace

import zmq
from msgspec import structs

from octavo.core.clock import Clock, monotonic
from octavo.core.errors import EngineError, InvalidRequest, OctavoError
from octavo.core.ids import RequestId
from octavo.core.output import EngineOutput
from octavo.core.request import Request, RequestState, Transition
from octavo.engine.engine import Engine
from octavo.engine.frontends import Frontend, Frontends, OutboxLimits
from octavo.engine.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    Cancel,
    Closing,
    Drain,
    EngineFacts,
    Finish,
    Hello,
    Outputs,
    Ping,
    Ready,
    Refused,
    Started,
    Submit,
    Taken,
    ToEngine,
    decode_to_engine,
    problem_of,
)
from octavo.engine.numbers import StatsSource
from octavo.observe.stats import EngineStats

STATS_SECONDS = 0.25
PROBE_SECONDS = 2.0
MAIL_SECONDS = 0.02
POLL_SECONDS = 0.05
_MAX_MESSAGES_A_STEP = 4096
_QUEUED_MESSAGES = 1000
_READABLE = int(zmq.POLLIN)


class FirstRows:
    """An event sink that remembers which requests got their first row since it was last asked."""

    def __init__(self) -> None:
        self._moves: list[tuple[RequestId, float]] = []

    def __call__(self, event: object) -> None:
        if (
            isinstance(event, Transition)
            and event.before is RequestState.WAITING
            and event.after is RequestState.RUNNING
        ):
            self._moves.append((event.request_id, event.at_seconds))

    def take(self) -> list[tuple[RequestId, float]]:
        moves, self._moves = self._moves, []
        return moves


def bind_router(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """The socket of an engine: sending to somebody who is gone or slow fails instead of waiting.

    Raises:
        EngineError: the address cannot be taken.
    """
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.SNDHWM, _QUEUED_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, _QUEUED_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.LINGER, 1000)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise EngineError(f"cannot listen at {address}: {error}") from error
    return socket


class EngineServer:
    """Serves frontends from one thread.

    Each turn takes the messages that have come, makes one step if there is work, and sends each
    frontend at most one message about it. Without work it sleeps until a message comes. Requests
    belong to the frontend that sent them, and nobody else can end them.
    """

    def __init__(
        self,
        engine: Engine,
        facts: EngineFacts,
        socket: zmq.Socket[bytes],
        first_rows: FirstRows,
        *,
        outbox_limits: OutboxLimits | None = None,
        clock: Clock = monotonic,
    ):
        self._engine = engine
        self._facts = facts
        self._socket = socket
        self._first_rows = first_rows
        self._clock = clock
        self._frontends = Frontends(socket, outbox_limits or OutboxLimits(), self._cancel)
        self._owners: dict[RequestId, tuple[Frontend, RequestId, float]] = {}
        """By the engine's id: the frontend, its own id, and when the request arrived."""
        self._stats = StatsSource(engine, clock, max_rows=facts.max_rows)
        self._stats_due = False
        self._tends = False
        self._has_garbage = False
        self._stats_seconds = clock()
        self._polled_seconds = -math.inf
        self._draining = False
        self._bad_messages = 0

    def drain(self) -> None:
        """Take no new work and end once what is there is finished; safe in a signal handler."""
        self._draining = True

    def run(self, *, wake_fd: int | None = None, parent_fd: int | None = None) -> str:
        """Serve until drained, or until `parent_fd` is at its end; the reason in words.

        A byte on `wake_fd` wakes the loop (`signal.set_wakeup_fd`).

        Raises:
            EngineError: the engine cannot go on; every frontend has been told.
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        for fd in (wake_fd, parent_fd):
            if fd is not None:
                poller.register(fd, zmq.POLLIN)
        reason = "the engine failed"
        try:
            while True:
                if self._polls_now():
                    ready = dict(poller.poll(self._patience_milliseconds()))
                    if parent_fd in ready:
                        reason = "the server is gone"
                        return reason
                    if wake_fd is not None and wake_fd in ready:
                        os.read(wake_fd, 4096)
                self._receive()
                if self._engine.has_work:
                    self._step()
                    self._has_garbage = True
                elif self._tends:
                    # Before memory is given back: what goes is on disk then.
                    self._tends = self._engine.tend()
                elif self._engine.rest():
                    self._stats_due = True
                self._frontends.flush()
                self._tell_stats()
                if self._has_garbage and not self._engine.has_work:
                    gc.collect()
                    self._has_garbage = False
                if self._draining and not self._engine.has_work and not self._frontends.has_mail:
                    reason = "the engine is shutting down"
                    return reason
        except Exception as error:
            reason = f"the engine failed: {error}"
            raise
        finally:
            for frontend in self._frontends.all:
                self._frontends.send(frontend, Closing(reason))

    def _polls_now(self) -> bool:
        """Whether to look at the descriptors: to sleep, or now and then while there is work.

        Messages are taken before each step without that.
        """
        if not self._engine.has_work:
            return True
        now = self._clock()
        if now - self._polled_seconds < POLL_SECONDS:
            return False
        self._polled_seconds = now
        return True

    def _patience_milliseconds(self) -> int | None:
        if self._engine.has_work or self._draining:
            return 0 if self._engine.has_work else int(MAIL_SECONDS * 1000)
        if self._frontends.has_mail or self._tends:
            return int(MAIL_SECONDS * 1000)
        if self._stats_due:
            return 0
        seconds = self._engine.seconds_to_rest()
        # Rounded up, so that it is due when the time has come.
        return None if seconds is None else math.ceil(seconds * 1000)

    def _receive(self) -> None:
        for _ in range(_MAX_MESSAGES_A_STEP):
            # Asked, not tried: most steps bring no message, and an exception costs more.
            if not int(self._socket.get(zmq.EVENTS)) & _READABLE:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                if len(frames) != 2:
                    raise EngineError(f"not a message: {len(frames)} frames")
                message = decode_to_engine(frames[1])
            except EngineError:
                self._bad_messages += 1
                continue
            self._take(frames[0], message)

    def _take(self, identity: bytes, message: ToEngine) -> None:
        if isinstance(message, Hello):
            self._greet(identity, message)
            return
        frontend = self._frontends.get(identity)
        if frontend is None:
            self._frontends.reject(identity, "the engine does not know it")
            return
        match message:
            case Submit(requests):
                self._submit(frontend, requests)
            case Cancel(request_ids):
                for request_id in self._owned(frontend, request_ids):
                    self._engine.cancel(request_id)
                self._stats_due = True
            case Finish(request_ids):
                for request_id in self._owned(frontend, request_ids):
                    self._engine.finish(request_id)
                self._stats_due = True
            case Ping(number):
                self._frontends.send(frontend, self._read_stats(number))
                # News for all is also how those who are gone are noticed.
                if self._clock() - self._stats_seconds >= PROBE_SECONDS:
                    self._stats_due = True
            case Drain():
                self.drain()

    def _greet(self, identity: bytes, hello: Hello) -> None:
        if hello.protocol != PROTOCOL_VERSION:
            reason = f"it speaks protocol {hello.protocol}, this engine {PROTOCOL_VERSION}"
            self._frontends.reject(identity, reason)
            return
        frontend = self._frontends.welcome(identity)
        self._frontends.send(frontend, Ready(self._facts))
        self._frontends.send(frontend, self._read_stats(None))

    def _submit(self, frontend: Frontend, requests: tuple[Request, ...]) -> None:
        taken: list[RequestId] = []
        ids = tuple(request.id for request in requests)
        try:
            if self._draining:
                raise EngineError("the engine is shutting down", remedy="ask another server")
            for request in requests:
                self._check(request)
                renamed = replace(request, id=RequestId(frontend.prefix + request.id))
                self._engine.add(renamed)
                taken.append(renamed.id)
                self._owners[renamed.id] = (frontend, request.id, request.arrival_seconds)
                frontend.requests.add(renamed.id)
        except OctavoError as error:
            for request_id in taken:
                self._engine.cancel(request_id)
                self._release(request_id)
            self._frontends.send(frontend, Refused(ids, problem_of(error)))
        else:
            # The last of several choices had the longest queue before it.
            service_class = self._engine.scheduler.class_of(taken[-1]) if taken else None
            if service_class is not None:
                self._frontends.send(frontend, Taken(ids, service_class))

    def _check(self, request: Request) -> None:
        """Frontends have checked it; an engine that several share does not rely on that."""
        size = self._facts.vocabulary_size
        if not all(0 <= token < size for token in request.prompt):
            raise InvalidRequest("has a token id outside the vocabulary", field="prompt")
        request.params.check_vocabulary(size)

    def _owned(self, frontend: Frontend, ids: Iterable[RequestId]) -> list[RequestId]:
        """The engine's ids of those that run for this frontend; they no longer do."""
        owned = [RequestId(frontend.prefix + each) for each in ids]
        owned = [each for each in owned if each in frontend.requests]
        for request_id in owned:
            self._release(request_id)
        return owned

    def _release(self, request_id: RequestId) -> None:
        frontend = self._owners.pop(request_id)[0]
        frontend.requests.discard(request_id)

    def _cancel(self, request_ids: set[RequestId]) -> None:
        for request_id in request_ids:
            self._owners.pop(request_id, None)
            self._engine.cancel(request_id)
        self._stats_due = True

    def _step(self) -> None:
        outputs: dict[Frontend, list[EngineOutput]] = {}
        started: dict[Frontend, list[Started]] = {}
        owners = self._owners
        news = self._engine.step()
        for request_id, at_seconds in self._first_rows.take():
            if request_id in owners:
                frontend, own_id, arrival_seconds = owners[request_id]
                seconds = max(at_seconds - arrival_seconds, 0.0)
                started.setdefault(frontend, []).append(Started(own_id, seconds))
        for output in news:
            if output.request_id in owners:
                frontend, own_id, _ = owners[output.request_id]
                renamed = structs.replace(output, request_id=own_id)
                outputs.setdefault(frontend, []).append(renamed)
                if output.finish_reason is not None:
                    self._release(output.request_id)
        for frontend in outputs.keys() | started.keys():
            message = Outputs(tuple(outputs.get(frontend, ())), tuple(started.get(frontend, ())))
            self._frontends.send(frontend, message)
        self._stats.stepped()
        self._stats_due = self._tends = True

    def _tell_stats(self) -> None:
        """Four times a second while there is work, and at the end of it."""
        now = self._clock()
        if not self._stats_due:
            return
        if self._engine.has_work and now - self._stats_seconds < STATS_SECONDS:
            return
        self._stats_due = False
        self._stats_seconds = now
        stats = self._read_stats(None)
        for frontend in self._frontends.all:
            # Numbers that are older than the next ones are not worth a place in an outbox.
            if not frontend.outbox:
                self._frontends.send(frontend, stats)

    def _read_stats(self, ping: int | None) -> EngineStats:
        return self._stats.read(
            ping=ping,
            frontends=len(self._frontends),
            dropped_frontends=self._frontends.dropped_count,
            bad_messages=self._bad_messages,
        )
