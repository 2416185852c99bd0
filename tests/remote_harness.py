"""Engines behind a socket for tests: a loop in a thread on a fake model, and whole processes."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import zmq

from fake_model import FakeModel
from octavo.core.clock import Clock, monotonic
from octavo.core.gguf import GgufFile
from octavo.core.ids import RequestId
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.service_classes import UNIFORM, ServiceClass
from octavo.core.settings import Settings
from octavo.core.settings_load import load_settings
from octavo.engine.client import AsyncEngineClient
from octavo.engine.engine import Engine
from octavo.engine.frontends import OutboxLimits
from octavo.engine.messages import (
    EngineFacts,
    FromEngine,
    Hello,
    Outputs,
    Ready,
    ToEngine,
    decode_from_engine,
    encode,
)
from octavo.engine.model_executor import ModelExecutor
from octavo.engine.prompts import Prepared
from octavo.engine.server import EngineServer, FirstRows, bind_router
from octavo.engine.supervisor import RestartPolicy, Supervisor
from octavo.memory.elastic import ElasticMemory
from octavo.observe.stats import EngineStats
from octavo.schedule.scheduler import Scheduler
from octavo.text.tokenizer import Tokenizer

PATIENCE_SECONDS = 60.0
VOCABULARY = 512
_ANSWERS = range(260, 500)
_ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)
_Message = TypeVar("_Message")


def facts(pages: int, page_tokens: int, context_tokens: int) -> EngineFacts:
    return EngineFacts(
        model_path="fake.gguf",
        model_name="fake",
        architecture="fake",
        context_tokens=context_tokens,
        model_context_tokens=context_tokens,
        vocabulary_size=VOCABULARY,
        page_tokens=page_tokens,
        pages=pages,
        max_rows=8,
        token_budget=256,
        memory_bytes={},
        memory_ceiling_bytes=0,
        backend="fake",
        tier="fake",
        threads=1,
        threads_reason="it is a fake",
        activations="none",
        kv_format="none",
        bits_fingerprint="",
        process_id=os.getpid(),
        phase_seconds={},
    )


class SlowModel(FakeModel):
    """Takes its time for a step, and longer as asked."""

    step_seconds = 0.002

    def step(self, *arguments):  # type: ignore[no-untyped-def]
        time.sleep(self.step_seconds)
        return super().step(*arguments)


@dataclass
class Loop:
    """An engine server in a thread. `outcome` is what `run` returned or raised."""

    address: str
    server: EngineServer
    engine: Engine
    thread: threading.Thread
    outcome: list[str | BaseException] = field(default_factory=list)

    def drain(self) -> None:
        self.server.drain()


@contextmanager
def serving_loop(
    model: FakeModel | None = None,
    *,
    pages: int = 64,
    max_rows: int = 8,
    context_tokens: int = 1024,
    outbox_limits: OutboxLimits | None = None,
    clock: Clock = monotonic,
    classes: Sequence[ServiceClass] = UNIFORM,
    idle_release_seconds: float | None = None,
) -> Iterator[Loop]:
    """Serve until the block is left; then the loop is drained, and must end."""
    page_tokens, budget = 16, 256
    model = model or FakeModel(VOCABULARY, context_tokens, answers=range(300, 500))
    model.allocate_kv(pages, page_tokens)
    first_rows = FirstRows()
    scheduler = Scheduler(
        pages=pages,
        page_tokens=page_tokens,
        token_budget=budget,
        max_rows=max_rows,
        max_context=context_tokens,
        emit=first_rows,
        classes=classes,
    )
    executor = ModelExecutor(
        model,
        max_rows=max_rows,
        max_pages_per_row=-(-context_tokens // page_tokens),
        max_batch_tokens=budget,
    )
    elastic = ElasticMemory(
        scheduler.cache,
        model,
        page_bytes=model.page_bytes(page_tokens),
        idle_seconds=idle_release_seconds,
    )
    engine = Engine(scheduler, executor, elastic=elastic)
    with tempfile.TemporaryDirectory(prefix="octavo-test-") as folder:
        address = f"ipc://{folder}/engine.sock"
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        router = bind_router(context, address)
        known = facts(pages, page_tokens, context_tokens)
        server = EngineServer(
            engine, known, router, first_rows, outbox_limits=outbox_limits, clock=clock
        )
        wake_read, wake_write = os.pipe()

        def run() -> None:
            try:
                loop.outcome.append(server.run(wake_fd=wake_read))
            except Exception as error:
                loop.outcome.append(error)
            finally:
                router.close(0)

        loop = Loop(address, server, engine, threading.Thread(target=run, daemon=True))
        loop.thread.start()
        try:
            yield loop
        finally:
            server.drain()
            os.write(wake_write, b"x")
            loop.thread.join(PATIENCE_SECONDS)
            assert not loop.thread.is_alive()
            context.term()
            os.close(wake_read)
            os.close(wake_write)


class RawFrontend:
    """A frontend without manners: sends any bytes, and reads only when told to."""

    def __init__(self, address: str, *, hello: bool = True, queued_messages: int = 1000):
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, queued_messages)
        self.socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE_SECONDS * 1000))
        self.socket.connect(address)
        if hello:
            self.say(Hello())
            self.expect(Ready)

    def say(self, message: ToEngine) -> None:
        self.socket.send(encode(message))

    def hear(self) -> FromEngine:
        return decode_from_engine(self.socket.recv())

    def expect(
        self, kind: type[_Message], accept: Callable[[_Message], bool] = lambda _: True
    ) -> _Message:
        """The next message of this kind that is accepted; others are let go."""
        while True:
            message = self.hear()
            if isinstance(message, kind) and accept(message):
                return message

    def stats(self, accept: Callable[[EngineStats], bool]) -> EngineStats:
        return self.expect(EngineStats, accept)

    def tokens_of(self, name: str) -> list[int]:
        """Read until this request has ended; its tokens."""
        tokens: list[int] = []
        while True:
            for output in self.expect(Outputs).outputs:
                if output.request_id == name:
                    tokens += output.token_ids
                    if output.finish_reason is not None:
                        return tokens

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()

    def __enter__(self) -> RawFrontend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wire_request(
    name: str, prompt: tuple[int, ...] = (1, 2, 3), *, max_new_tokens: int = 8, **params: object
) -> Request:
    settings = {"temperature": 0.0, "max_tokens": max_new_tokens, **params}
    return Request(
        id=RequestId(name),
        prompt=prompt,
        params=SamplingParams(**settings),  # type: ignore[arg-type]
        seed=7,
        max_new_tokens=max_new_tokens,
        arrival_seconds=monotonic(),
    )


def tokenizer_of(path: Path) -> Tokenizer:
    with GgufFile.open(path) as file:
        return Tokenizer.from_metadata(file.metadata)


def tiny_settings(**overrides: object) -> Settings:
    """Settings under which a tiny model is up in no time."""
    chosen = {"memory.kv_bytes": "4MB", "compute.threads": 1, "scheduler.max_batch_size": 16}
    return load_settings(environment={}, overrides={**chosen, **overrides}).settings


@asynccontextmanager
async def client_of(
    address: str, tokenizer: Tokenizer, **options: object
) -> AsyncIterator[AsyncEngineClient]:
    client = AsyncEngineClient(address, tokenizer, **options)  # type: ignore[arg-type]
    client.start()
    try:
        await client.wait_ready(PATIENCE_SECONDS)
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def engine_process(
    path: Path, *, policy: RestartPolicy | None = None, **overrides: object
) -> AsyncIterator[tuple[Supervisor, AsyncEngineClient]]:
    """A supervised engine process with one client."""
    supervisor = Supervisor(path, tiny_settings(**overrides), policy=policy)
    await supervisor.start()
    try:
        async with client_of(supervisor.address, tokenizer_of(path)) as client:
            yield supervisor, client
    finally:
        await supervisor.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def fake() -> FakeModel:
    return FakeModel(VOCABULARY, 1024, answers=_ANSWERS)


def slow(step_seconds: float) -> SlowModel:
    model = SlowModel(VOCABULARY, 1024, answers=_ANSWERS)
    model.step_seconds = step_seconds
    return model


def run(
    loop: Loop,
    tokenizer: Tokenizer,
    work: Callable[[AsyncEngineClient], Awaitable[None]],
    **options: object,
) -> None:
    async def main() -> None:
        async with client_of(loop.address, tokenizer, **options) as client:
            await work(client)

    asyncio.run(main())


def endless(client: AsyncEngineClient, prompt: str | Sequence[int] = "the cat") -> Prepared:
    return client.prepare(prompt, _ENDLESS)
