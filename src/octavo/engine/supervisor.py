"""Starts the engine process, watches it, starts it again when it dies or hangs, and drains it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo.core.clock import Clock, monotonic
from octavo.core.errors import EngineError, OctavoError
from octavo.core.settings import Settings
from octavo.engine.connection import Connection
from octavo.engine.messages import EngineFacts, FromEngine, error_of
from octavo.engine.private_folder import SOCKET_NAME, check_private, new_private_folder
from octavo.engine.process_config import EXIT_FAILED, ProcessConfig, StartReport

logger = logging.getLogger("octavo.supervisor")

_MAX_REPORT_BYTES = 1 << 20
_KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When an engine is started again.

    `delays_seconds` are the waits before the first, second, … restart in a row; one failure more
    and the supervisor gives up. A run of `steady_seconds` ends a row. An engine that has not
    answered for `stuck_seconds` is killed: it answers between two steps, so this must be longer
    than the longest step.
    """

    delays_seconds: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 5.0)
    steady_seconds: float = 30.0
    stuck_seconds: float = 120.0


class Supervisor:
    """Keeps one engine process running for as long as an asyncio program wants it.

    The engine listens at `address`, the same after a restart, in a folder that only this user may
    enter (`folder`, which then is the caller's to remove, or a new one). It dies with this process.
    Start it from a thread that lives as long as the engine should: the kernel ties the engine's
    life to that thread.
    """

    def __init__(
        self,
        model_path: Path,
        settings: Settings,
        *,
        model_name: str | None = None,
        folder: Path | None = None,
        policy: RestartPolicy | None = None,
        on_restart: Callable[[], None] | None = None,
        clock: Clock = monotonic,
    ):
        self._own_folder = folder is None
        self._folder = new_private_folder() if folder is None else check_private(folder)
        self.address = f"ipc://{self._folder / SOCKET_NAME}"
        self.facts: EngineFacts | None = None
        """What the running engine is, None before the first has started."""
        self.restarts = 0
        self._config = ProcessConfig(
            model_path=str(model_path),
            model_name=model_name or model_path.stem,
            settings=settings,
            address=self.address,
            parent_process_id=os.getpid(),
        )
        self._policy = policy or RestartPolicy()
        self._on_restart = on_restart
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._heard_seconds = 0.0
        self._watcher: asyncio.Task[None] | None = None

    @property
    def process_id(self) -> int | None:
        """The engine's process, None while there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> EngineFacts:
        """Start the engine and watch it from then on.

        Raises:
            OctavoError: what the engine says about why it cannot start.
        """
        try:
            facts = await self._launch()
        except BaseException:
            await self.stop()
            raise
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return facts

    async def wait(self) -> None:
        """Return when the engine was stopped on purpose.

        Raises:
            EngineError: it failed so often in a row that it was given up.
        """
        if self._watcher is not None:
            await asyncio.wait({self._watcher})
            if not self._watcher.cancelled():
                self._watcher.result()

    async def drain(self, deadline_seconds: float) -> bool:
        """Let the engine finish what it has and end; False if it was killed at the deadline."""
        await self._stop_watching()
        drained = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), deadline_seconds)
            except TimeoutError:
                drained = False
        await self.stop()
        return drained

    async def stop(self) -> None:
        """End the engine at once and remove its folder; safe to call twice."""
        await self._stop_watching()
        await self._kill()
        if self._own_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _launch(self) -> EngineFacts:
        """Start a process and wait for its report.

        Raises:
            OctavoError: it reported a problem, or ended without a report.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "octavo.engine.process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_MAX_REPORT_BYTES,
            start_new_session=True,  # Ctrl-C is for this process, which then drains
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(msgspec.json.encode(self._config) + b"\n")
            await process.stdin.drain()
        line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            await process.wait()
            raise EngineError(
                f"the engine ended before it was ready: {_ending(process)}",
                remedy="its own messages are on standard error",
            )
        report = msgspec.json.decode(line, type=StartReport)
        if report.facts is None:
            await process.wait()
            assert report.problem is not None
            raise error_of(report.problem)
        self.facts = report.facts
        return report.facts

    async def _watch(self) -> None:
        """Restart the engine whenever it ends."""
        policy = self._policy
        failures = 0
        while True:
            started_seconds = self._clock()
            reason = await self._until_end()
            if self._clock() - started_seconds >= policy.steady_seconds:
                failures = 0
            while True:
                failures += 1
                if failures > len(policy.delays_seconds):
                    raise EngineError(
                        f"the engine failed {failures} times in a row, the last time: {reason}",
                        remedy="its own messages are on standard error",
                    )
                logger.error("the engine ended (%s) and is started again", reason)
                await asyncio.sleep(policy.delays_seconds[failures - 1])
                self.restarts += 1
                if self._on_restart is not None:
                    self._on_restart()
                try:
                    await self._launch()
                    break
                except OctavoError as error:
                    reason = str(error)

    async def _until_end(self) -> str:
        """Wait until the engine has ended, killing it if it hangs; why it ended."""
        process = self._process
        assert process is not None
        self._heard_seconds = self._clock()
        ended = asyncio.ensure_future(process.wait())
        listening = asyncio.ensure_future(self._listen())
        stuck = asyncio.ensure_future(self._until_stuck())
        try:
            await asyncio.wait({ended, stuck}, return_when=asyncio.FIRST_COMPLETED)
            if process.returncode is None and stuck.done():
                await self._kill()
                return f"it did not answer for {self._policy.stuck_seconds:g} s and was killed"
            await ended
            return _ending(process)
        finally:
            for task in (ended, listening, stuck):
                task.cancel()
            await asyncio.gather(ended, listening, stuck, return_exceptions=True)

    async def _listen(self) -> None:
        interval = min(1.0, self._policy.stuck_seconds / 4)
        while True:
            connection = Connection(self.address)
            try:
                await connection.serve(self._receive, ping_seconds=interval)
            except EngineError as error:
                logger.warning("a message of the engine could not be read: %s", error)
            finally:
                connection.close()
            await asyncio.sleep(interval)

    def _receive(self, connection: Connection, message: FromEngine) -> None:
        self._heard_seconds = self._clock()

    async def _until_stuck(self) -> None:
        # Twice, because what is late may be this process: then its own news come with the wait.
        late = 0
        while late < 2:
            await asyncio.sleep(self._policy.stuck_seconds / 4)
            silent_seconds = self._clock() - self._heard_seconds
            late = late + 1 if silent_seconds > self._policy.stuck_seconds else 0

    async def _kill(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait_for(process.wait(), _KILL_SECONDS)

    async def _stop_watching(self) -> None:
        if self._watcher is not None and not self._watcher.done():
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)


def _ending(process: asyncio.subprocess.Process) -> str:
    """How a process ended, in words."""
    status = process.returncode
    assert status is not None
    if status == EXIT_FAILED:
        return "it failed while it served"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
