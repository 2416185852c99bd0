"""One connection of an asyncio program to an engine process, from its beginning to its end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import zmq

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


def _nothing() -> None:
    pass


QUEUED_MESSAGES = 10_000
"""Messages that ZeroMQ holds for an engine that is in the middle of a step."""
_MESSAGES_A_TURN = 100
_READABLE = int(zmq.POLLIN)


class Connection:
    """A DEALER socket that is thrown away when its peer is gone.

    What an engine has not read then is lost with the socket, so that a new engine at the same
    address never sees requests that were meant for the old one. Messages are handed on straight
    from the event loop's callback: a future for each would cost as much as all else about it.
    """

    def __init__(self, address: str):
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 20)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)
        self._receive: Receiver | None = None
        self._caught_up = _nothing
        self._turn: asyncio.Handle | None = None
        self._over: asyncio.Future[None] | None = None
        self._ended = False

    def send(self, message: ToEngine) -> bool:
        """Send without waiting; False if that is not possible now."""
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        finally:
            self._read_soon()
        return True

    def end(self) -> None:
        """Make `serve` return."""
        self._ended = True
        self._finish()

    async def serve(
        self,
        receive: Receiver,
        *,
        caught_up: Callable[[], None] = _nothing,
        ping_seconds: float,
    ) -> None:
        """Greet the engine and hand its messages on, until it is gone or `end` is called.

        `caught_up` is called after a message, once no other has come yet, or many were handed on.
        Before an engine is there this waits for one. Messages that had come before the peer went
        away are handed on too.
        """
        loop = asyncio.get_running_loop()
        descriptors = (self._socket.fileno(), self._monitor.fileno())
        self._receive, self._caught_up = receive, caught_up
        self._over = loop.create_future()
        if self._ended:
            self._finish()
        loop.add_reader(descriptors[0], self._read_now)
        loop.add_reader(descriptors[1], self._watch)
        pinging = loop.create_task(self._ping(ping_seconds))
        try:
            self.send(Hello())
            self._watch()
            await self._over
            while not self._ended and self._read_one(receive):
                pass
            caught_up()
        finally:
            self._receive = None
            for descriptor in descriptors:
                loop.remove_reader(descriptor)
            if self._turn is not None:
                self._turn.cancel()
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)

    def close(self) -> None:
        """Free the sockets at once."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

    def _finish(self, error: Exception | None = None) -> None:
        if self._over is None or self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)

    def _read_soon(self) -> None:
        """Read in the next turn of the loop.

        ZeroMQ's descriptor tells of a change only once, and any call may have used that up.
        """
        if self._turn is None and self._receive is not None:
            self._turn = asyncio.get_running_loop().call_soon(self._read_now)

    def _read_now(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        try:
            for _ in range(_MESSAGES_A_TURN):
                receive = self._receive
                if receive is None or self._ended or not self._read_one(receive):
                    break
            else:
                self._read_soon()
            self._caught_up()
        except Exception as error:
            self._finish(error)

    def _read_one(self, receive: Receiver) -> bool:
        """Hand on the next message if it has come; whether there is another."""
        try:
            data = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        receive(self, decode_from_engine(data))
        # Asked, not tried: a message comes alone as a rule, and an exception costs as much as it.
        return bool(int(self._socket.get(zmq.EVENTS)) & _READABLE)

    def _watch(self) -> None:
        """Finish when the peer is gone."""
        if self._monitor.poll(0):
            self._finish()

    async def _ping(self, seconds: float) -> None:
        for number in itertools.count():
            await asyncio.sleep(seconds)
            self.send(Ping(number))
