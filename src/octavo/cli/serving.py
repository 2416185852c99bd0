"""One model behind HTTP: engine process, its client, the HTTP server, from start to drain."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from octavo.core import heap
from octavo.core.settings import Settings
from octavo.engine.supervisor import RestartPolicy, Supervisor

if TYPE_CHECKING:
    from octavo.access.http.server import HttpServer
    from octavo.access.http.service import Service
    from octavo.engine.client import EngineFacts
    from octavo.text.templates import ChatTemplate
    from octavo.text.tokenizer import Tokenizer

EXIT_DRAINED = 0
EXIT_INTERRUPTED = 130
_POLL_SECONDS = 0.02
_FLUSH_SECONDS = 1
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Serving:
    """What to serve and where; `listener` is bound already.

    `on_ready` is told what the engine is, once, when the first request may come.
    """

    path: Path
    model_names: tuple[str, ...]
    settings: Settings
    listener: socket.socket
    on_ready: Callable[[EngineFacts], None]

    def run(self) -> int:
        """Serve until a signal; returns the exit status.

        SIGTERM or SIGINT drains: no new work, running answers finish within
        `server.drain_seconds`. A second SIGINT ends at once. Both are ignored afterwards, as the
        process is about to end.

        Raises:
            OctavoError: the engine cannot start, or was given up.
        """
        try:
            return asyncio.run(self._run())
        finally:
            for number in _ENDING_SIGNALS:
                signal.signal(number, signal.SIG_IGN)

    async def _run(self) -> int:
        signals = _Signals()
        restarted: list[Callable[[], None]] = []
        # First of all, because the engine takes longest to load.
        supervisor = Supervisor(
            self.path,
            self.settings,
            model_name=self.model_names[0],
            policy=RestartPolicy(stuck_seconds=self.settings.server.stuck_seconds),
            on_restart=lambda: restarted[0]() if restarted else None,
        )
        engine = asyncio.ensure_future(supervisor.start())
        try:
            service = await asyncio.to_thread(self._open_service, supervisor.address)
            restarted.append(service.metrics.restarted)
            http = _http_server(service, self.settings)
            service.client.start()
            listening = asyncio.ensure_future(http.serve(sockets=[self.listener]))
            try:
                await self._serve(supervisor, engine, service, listening, signals)
                return await self._drain(supervisor, service, http, listening, signals)
            finally:
                await service.client.close()
                http.end()
                await asyncio.gather(listening, return_exceptions=True)
                service.close()
        finally:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            await supervisor.stop()

    async def _serve(
        self,
        supervisor: Supervisor,
        engine: asyncio.Future[EngineFacts],
        service: Service,
        listening: asyncio.Future[None],
        signals: _Signals,
    ) -> None:
        """Return at the first signal.

        Raises:
            OctavoError: the engine cannot start, or was given up.
        """
        stop = asyncio.ensure_future(signals.stop.wait())
        life = asyncio.ensure_future(self._engine_life(supervisor, engine, service))
        try:
            waits: tuple[asyncio.Future[Any], ...] = (stop, life, listening)
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for task in (stop, life):
                task.cancel()
            await asyncio.gather(stop, life, return_exceptions=True)

    async def _engine_life(
        self, supervisor: Supervisor, engine: asyncio.Future[EngineFacts], service: Service
    ) -> None:
        """Announce the engine, then wait until it is given up."""
        facts = await asyncio.shield(engine)
        while service.unready_reason() is not None:
            await asyncio.sleep(_POLL_SECONDS)
        self.on_ready(facts)
        await supervisor.wait()

    async def _drain(
        self,
        supervisor: Supervisor,
        service: Service,
        http: HttpServer,
        listening: asyncio.Future[None],
        signals: _Signals,
    ) -> int:
        """Finish what is there, as far as the deadline and a second SIGINT allow.

        The engine is told last: what has been handed to it and not yet read would be refused.
        """
        service.draining = True
        deadline = time.monotonic() + self.settings.server.drain_seconds
        force = asyncio.ensure_future(signals.force.wait())
        ending = asyncio.ensure_future(self._finish(supervisor, service, http, listening, deadline))
        waits: tuple[asyncio.Future[Any], ...] = (ending, force)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if force.done():
                http.drop()
                return EXIT_INTERRUPTED
            ending.result()
            return EXIT_DRAINED
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _finish(
        self,
        supervisor: Supervisor,
        service: Service,
        http: HttpServer,
        listening: asyncio.Future[None],
        deadline: float,
    ) -> None:
        """Wait for calls, then for readers, then for the engine."""
        while service.client.open_calls and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        await service.client.close()
        http.end(max(deadline - time.monotonic(), _FLUSH_SECONDS))
        await asyncio.shield(listening)
        patience_seconds: float = _FLUSH_SECONDS
        if self.settings.memory.swap_space is not None:
            # The engine writes down what is cached.
            patience_seconds = max(deadline - time.monotonic(), patience_seconds)
        await supervisor.drain(patience_seconds)

    def _open_service(self, address: str) -> Service:
        heap.return_large_blocks()
        tokenizer, template = open_text(self.path, pre=self.settings.pre_tokenizer)
        # Late and in a thread, so that it happens while the engine loads; and after the text, whose
        # opening leaves memory free that this takes.
        from octavo.access.http.service import Service
        from octavo.engine.client import AsyncEngineClient
        from octavo.observe.prometheus import ServingMetrics

        heap.trim()
        scheduler = self.settings.scheduler
        metrics = ServingMetrics(self.model_names[0], classes=scheduler.service_classes)
        return Service(
            client=AsyncEngineClient(
                address,
                tokenizer,
                ready_seconds=self.settings.server.ready_seconds,
                observer=metrics,
            ),
            template=template,
            model_names=self.model_names,
            max_body_bytes=self.settings.server.max_body_bytes,
            metrics=metrics,
            classes=scheduler.service_classes,
            routes=scheduler.routes,
        )


class _Signals:
    """`stop` is set by the first SIGTERM or SIGINT, `force` by the second SIGINT.

    Not asyncio's own handlers, because those are gone before the process is: a signal that comes
    late must not turn a clean end into a kill.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._interrupted = False
        for number in _ENDING_SIGNALS:
            signal.signal(number, self._notice)

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if self._loop.is_closed():
            return
        if number == signal.SIGINT and self._interrupted:
            self._loop.call_soon_threadsafe(self.force.set)
        self._interrupted = self._interrupted or number == signal.SIGINT
        self._loop.call_soon_threadsafe(self.stop.set)


def open_text(path: Path, *, pre: str | None = None) -> tuple[Tokenizer, ChatTemplate]:
    """What a frontend needs of a model file; `pre` overrides its pre-tokenizer.

    Raises:
        ModelFileError: the file is damaged or not supported.
    """
    from octavo.core.gguf import GgufFile
    from octavo.text.templates import ChatTemplate
    from octavo.text.tokenizer import Tokenizer

    with GgufFile.open(path) as file:
        rows = file.tensors.get("token_embd.weight")
        tokenizer = Tokenizer.from_metadata(
            file.metadata, vocabulary_size=None if rows is None else rows.shape[0], pre=pre
        )
        return tokenizer, ChatTemplate.from_metadata(file.metadata, tokenizer)


def _http_server(service: Service, settings: Settings) -> HttpServer:
    from octavo.access.http.app import create_app
    from octavo.access.http.server import HttpServer

    return HttpServer(
        create_app(service),
        max_connections=settings.server.max_connections,
        allowed_hosts=settings.server.allowed_hosts.names,
    )
