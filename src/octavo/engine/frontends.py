"""The frontends of an engine process: who they are, what runs for them, what they have to read."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from octavo.core.ids import RequestId
from octavo.engine.messages import Dropped, FromEngine, encode

logger = logging.getLogger("octavo.engine")


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """How far a frontend may fall behind, on top of what ZeroMQ and the kernel hold for it."""

    messages: int = 2048
    size_bytes: int = 32 << 20


@dataclass(slots=True, eq=False)
class Frontend:
    """One frontend; `prefix` keeps its request ids apart from those of all others."""

    identity: bytes
    prefix: str
    requests: set[RequestId] = field(default_factory=set)
    """Unfinished requests by the engine's ids."""
    outbox: deque[bytes] = field(default_factory=deque)
    outbox_bytes: int = 0


class Frontends:
    """Sends on a ROUTER socket without ever waiting.

    What a frontend does not take waits in its outbox. One that falls further behind than `limits`
    is dropped, and told so as soon as it reads again; one that is gone is forgotten. For both,
    `abandon` is called with the requests that ran for it.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        limits: OutboxLimits,
        abandon: Callable[[set[RequestId]], None],
    ):
        self._socket = socket
        self._limits = limits
        self._abandon = abandon
        self._known: dict[bytes, Frontend] = {}
        self._notices: dict[bytes, str] = {}
        self._numbers = 0
        self.dropped_count = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def all(self) -> list[Frontend]:
        return list(self._known.values())

    @property
    def has_mail(self) -> bool:
        """Something waits for a frontend to read."""
        return bool(self._notices) or any(each.outbox for each in self._known.values())

    def get(self, identity: bytes) -> Frontend | None:
        return self._known.get(identity)

    def welcome(self, identity: bytes) -> Frontend:
        """The frontend of this identity, known from now on."""
        frontend = self._known.get(identity)
        if frontend is None:
            self._notices.pop(identity, None)
            self._numbers += 1
            frontend = self._known[identity] = Frontend(identity, f"{self._numbers}/")
        return frontend

    def send(self, frontend: Frontend, message: FromEngine) -> None:
        data = encode(message)
        if not frontend.outbox and self._passed(frontend, data):
            return
        if frontend.identity not in self._known:
            return
        frontend.outbox.append(data)
        frontend.outbox_bytes += len(data)
        limits = self._limits
        if len(frontend.outbox) > limits.messages or frontend.outbox_bytes > limits.size_bytes:
            self._drop(frontend, "it did not read what the engine sent")

    def reject(self, identity: bytes, reason: str) -> None:
        """Answer someone who is no frontend."""
        # Someone who was dropped for a reason must hear that one.
        self._notices.setdefault(identity, reason)
        self._deliver_notices()

    def flush(self) -> None:
        """Try again to send what waits."""
        for frontend in self.all:
            while frontend.outbox and self._passed(frontend, frontend.outbox[0]):
                if frontend.identity not in self._known:
                    break
                frontend.outbox_bytes -= len(frontend.outbox.popleft())
        if self._notices:
            self._deliver_notices()

    def _passed(self, frontend: Frontend, data: bytes) -> bool:
        """Whether nothing is left to do for `data`: it was sent, or its reader is gone."""
        try:
            self._socket.send_multipart([frontend.identity, data], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(frontend)
        return True

    def _drop(self, frontend: Frontend, reason: str) -> None:
        logger.warning("dropped a frontend with %d requests: %s", len(frontend.requests), reason)
        self.dropped_count += 1
        self._forget(frontend)
        self._notices[frontend.identity] = reason

    def _forget(self, frontend: Frontend) -> None:
        del self._known[frontend.identity]
        frontend.outbox.clear()
        self._abandon(frontend.requests)
        frontend.requests = set()

    def _deliver_notices(self) -> None:
        for identity, reason in list(self._notices.items()):
            try:
                self._socket.send_multipart([identity, encode(Dropped(reason))], zmq.NOBLOCK)
            except zmq.Again:
                continue
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
            del self._notices[identity]
