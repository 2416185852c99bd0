"""One connection of an asyncio program to an engine process, from its beginning to its end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, cast

import zmq
import zmq.asyncio

from octavo.engine.messages import (
    MAX_MESSAGE_BYTES,
    FromEngine,
    Hello,
    Ping,
    ToEngine,
    decode_from_engine,
    encode,
)

Receiver = Callable[["Connection", FromEngine], None]

QUEUED_MESSAGES = 10_000
"""Messages that ZeroMQ holds for an engine that is in the middle of a step."""


class Connection:
    """A DEALER socket that is thrown away when its peer is gone.

    What an engine has not read then is lost with the socket, so that a new engine at the same
    address never sees requests that were meant for the old one.
    """

    def __init__(self, address: str):
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 160)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)
        self._ended = asyncio.Event()

    def send(self, message: ToEngine) -> bool:
        """Send without waiting; False if that is not possible now."""
        sent = cast("asyncio.Future[Any]", self._socket.send(encode(message), zmq.NOBLOCK))
        # Without waiting the future is done when it is returned.
        return sent.exception() is None

    def end(self) -> None:
        """Make `serve` return."""
        self._ended.set()

    async def serve(self, receive: Receiver, *, ping_seconds: float) -> None:
        """Greet the engine and hand its messages on, until it is gone or `end` is called.

        Before an engine is there this waits for one. Messages that had come before the peer went
        away are handed on too.
        """
        self.send(Hello())
        work = (self._read(receive), self._watch(), self._ping(ping_seconds), self._ended.wait())
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._read_rest(receive)

    def close(self) -> None:
        """Free the sockets at once."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

    async def _read(self, receive: Receiver) -> None:
        while True:
            receive(self, decode_from_engine(await self._socket.recv()))

    def _read_rest(self, receive: Receiver) -> None:
        while not self._ended.is_set():
            received = cast("asyncio.Future[bytes]", self._socket.recv(zmq.NOBLOCK))
            if received.exception() is not None:
                return
            receive(self, decode_from_engine(received.result()))

    async def _watch(self) -> None:
        """Return when the peer is gone."""
        await self._monitor.recv_multipart()

    async def _ping(self, seconds: float) -> None:
        for number in itertools.count():
            await asyncio.sleep(seconds)
            self.send(Ping(number))
