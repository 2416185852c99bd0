"""The connection of an asyncio program to an engine: bursts, endings, what cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from octavo.core.errors import EngineError
from octavo.engine.connection import Connection
from octavo.engine.messages import Closing, FromEngine, Hello, Ping, decode_to_engine, encode
from octavo.engine.server import bind_router

BURST = 350
PATIENCE_SECONDS = 30


@pytest.fixture
def router(tmp_path: Path) -> Iterator[tuple[zmq.Socket[bytes], str]]:
    """What an engine listens on, and its address."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address = f"ipc://{tmp_path / 'engine.sock'}"
    socket = bind_router(context, address)
    yield socket, address
    socket.close(0)
    context.term()


async def heard(socket: zmq.Socket[bytes]) -> tuple[bytes, object]:
    """The next message of a frontend, and who it is."""
    while not await asyncio.to_thread(socket.poll, 50):
        pass
    identity, data = socket.recv_multipart()
    return identity, decode_to_engine(data)


def test_a_burst_comes_whole_and_in_order_and_can_be_answered(
    router: tuple[zmq.Socket[bytes], str],
) -> None:
    asyncio.run(_burst(*router))


async def _burst(socket: zmq.Socket[bytes], address: str) -> None:
    connection, found = Connection(address), []

    def receive(source: Connection, message: FromEngine) -> None:
        assert isinstance(message, Closing)
        found.append(message.reason)
        # Sending may use up what the socket's descriptor has to tell of messages that came.
        assert source.send(Ping(len(found)))
        if len(found) == 2 * BURST:
            source.end()

    async with asyncio.timeout(PATIENCE_SECONDS):
        serving = asyncio.ensure_future(connection.serve(receive, ping_seconds=60))
        identity, hello = await heard(socket)
        assert hello == Hello()
        for number in range(BURST):
            socket.send_multipart([identity, encode(Closing(str(number)))])
        answers = [await heard(socket) for _ in range(BURST)]
        for number in range(BURST, 2 * BURST):
            socket.send_multipart([identity, encode(Closing(str(number)))])
        await serving
    connection.close()
    assert found == [str(number) for number in range(2 * BURST)]
    assert [message for _, message in answers] == [Ping(1 + number) for number in range(BURST)]


def test_what_cannot_be_read_ends_the_connection(
    router: tuple[zmq.Socket[bytes], str],
) -> None:
    asyncio.run(_unreadable(*router))


async def _unreadable(socket: zmq.Socket[bytes], address: str) -> None:
    connection = Connection(address)
    async with asyncio.timeout(PATIENCE_SECONDS):
        serving = asyncio.ensure_future(connection.serve(lambda *_: None, ping_seconds=60))
        identity, _ = await heard(socket)
        socket.send_multipart([identity, b"\xc1"])
        with pytest.raises(EngineError, match="not a message"):
            await serving
    connection.close()


def test_the_end_of_the_engine_ends_the_connection_after_its_last_words(
    router: tuple[zmq.Socket[bytes], str],
) -> None:
    asyncio.run(_last_words(*router))


async def _last_words(socket: zmq.Socket[bytes], address: str) -> None:
    connection, found = Connection(address), []
    async with asyncio.timeout(PATIENCE_SECONDS):
        serving = asyncio.ensure_future(
            connection.serve(lambda _, message: found.append(message), ping_seconds=60)
        )
        identity, _ = await heard(socket)
        socket.send_multipart([identity, encode(Closing("done"))])
        socket.close(1000)
        await serving
    connection.close()
    assert found == [Closing("done")]
