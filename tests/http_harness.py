"""HTTP servers for tests: the whole program on a model file, and the application on a fake one."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fake_model import FakeModel
from octavo.access.http.app import create_app
from octavo.access.http.listen import bind, url_of
from octavo.access.http.server import HttpServer
from octavo.access.http.service import Service
from octavo.cli.serving import open_text
from octavo.core.service_classes import BUILT_IN
from octavo.engine.client import AsyncEngineClient
from octavo.observe.prometheus import ServingMetrics
from remote_harness import serving_loop

PATIENCE_SECONDS = 120.0
OCTAVO = (sys.executable, "-P", "-c", "from octavo.cli.main import main; main()")
TINY_SETTINGS = (
    "memory.kv_bytes=4MB",
    "compute.threads=1",
    "scheduler.max_batch_size=8",
    "scheduler.token_budget=128",
)
LONG_SETTINGS = ("memory.kv_bytes=24MB", "scheduler.max_batch_size=12")


@dataclass(frozen=True)
class Reply:
    """One HTTP answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, whose shape is checked."""
        tree = self.json()
        assert list(tree) == ["error"], tree
        assert list(tree["error"]) == ["message", "type", "param", "code"]
        assert isinstance(tree["error"]["message"], str)
        assert isinstance(tree["error"]["code"], str)
        return tree["error"]

    @property
    def events(self) -> list[Any]:
        """Data of server-sent events, without the mark at the end, which must be there."""
        lines = [line for line in self.body.decode().split("\n\n") if line]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert len(data) + sum(line.startswith(":") for line in lines) == len(lines)
        assert data[-1] == "[DONE]"
        return [json.loads(each) for each in data[:-1]]


@dataclass
class Server:
    """A server that runs, wherever it does."""

    url: str
    process: subprocess.Popen[str] | None = None
    log: list[str] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=PATIENCE_SECONDS)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json"} if data is not None else {}
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, data, {**sent, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def post(self, path: str, body: object = None, **options: Any) -> Reply:
        return self.ask("POST", path, body, **options)

    def complete(self, **fields: Any) -> Any:
        """A completion that must succeed."""
        reply = self.post("/v1/completions", {"temperature": 0, **fields})
        assert reply.status == 200, reply.body
        return reply.json()

    def open(self, path: str, body: object) -> socket.socket:
        """Send a request and leave its answer unread."""
        data = json.dumps(body).encode()
        connection = socket.create_connection(self.address, timeout=PATIENCE_SECONDS)
        connection.sendall(
            b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (path.encode(), len(data), data)
        )
        return connection

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.get("/metrics").body.decode().splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match and match[1] == name:
                found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                if labels.items() <= found.items():
                    total += float(match[3])
        return total

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that must come true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not true in time\n{''.join(self.log)}"
            time.sleep(0.02)

    def wait_idle(self) -> None:
        """Wait until the engine says that it holds nothing for anybody."""
        self.wait_until(
            lambda: (
                self.metric("octavo_open_calls") == 0
                and self.metric("octavo_kv_pages", state="held") == 0
                and self.metric("octavo_running") == 0
                and self.metric("octavo_waiting") == 0
            )
        )

    def engine_process(self) -> int:
        """The process id of the engine of a whole program."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (found,) = children.read_text().split()
        return int(found)


@contextmanager
def octavo_serve(model: Path, *options: str, settings: tuple[str, ...] = ()) -> Iterator[Server]:
    """`octavo serve` on any free port; whatever happens, it is gone afterwards."""
    assignments = [f"--set={each}" for each in (*TINY_SETTINGS, *settings)]
    process = subprocess.Popen(
        [*OCTAVO, "serve", str(model), "--port=0", *assignments, *options],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("OCTAVO_")},
        start_new_session=True,
    )
    assert process.stderr is not None
    server = Server("", process)
    try:
        for line in process.stderr:
            server.log.append(line)
            if line.startswith("ready at "):
                server.url = line.removeprefix("ready at ").strip()
                break
        assert server.url, "".join(server.log)
        reader = threading.Thread(target=lambda: server.log.extend(process.stderr), daemon=True)
        reader.start()
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise


@contextmanager
def app_on_fake(
    model_file: Path,
    model: FakeModel | None = None,
    *,
    max_connections: int = 1000,
    allowed_hosts: tuple[str, ...] = (),
    service_options: dict[str, Any] | None = None,
    **loop_options: Any,
) -> Iterator[Server]:
    """The application in a thread, on an engine loop in another, with the text side of a file."""
    tokenizer, template = open_text(model_file)
    classes = (service_options or {}).get("classes", BUILT_IN)
    metrics = ServingMetrics("fake", classes=classes)
    with serving_loop(model, **loop_options) as loop, bind("127.0.0.1", 0) as listener:
        started = threading.Event()
        ended = asyncio.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        async def serve() -> None:
            loops.append(asyncio.get_running_loop())
            client = AsyncEngineClient(loop.address, tokenizer, observer=metrics)
            client.start()
            await client.wait_ready(PATIENCE_SECONDS)
            options = {"max_body_bytes": 1 << 20, **(service_options or {})}
            service = Service(client, template, ("fake",), metrics=metrics, **options)
            http_server = HttpServer(
                create_app(service), max_connections=max_connections, allowed_hosts=allowed_hosts
            )
            serving = asyncio.create_task(http_server.serve(sockets=[listener]))
            started.set()
            await ended.wait()
            await client.close()
            http_server.end()
            await serving
            service.close()

        thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
        thread.start()
        assert started.wait(PATIENCE_SECONDS)
        try:
            yield Server(url_of(listener))
        finally:
            loops[0].call_soon_threadsafe(ended.set)
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
