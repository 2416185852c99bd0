"""The engine as a process of its own: `python -m octavo.engine.process`, started by the supervisor.

One line of JSON on standard input says what to open (`ProcessConfig`); one line on standard output
says how that went (`StartReport`). Standard input stays open: its end means that the parent is
gone. SIGTERM drains. Exit status: 0 drained or orphaned, 1 could not start, 70 failed while serving
(EX_SOFTWARE of sysexits.h).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec
import zmq

from octavo.core.clock import monotonic
from octavo.core.errors import EngineError, OctavoError
from octavo.core.gguf import GgufFile
from octavo.core.ids import RequestId
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.engine import garbage
from octavo.engine.engine import Engine
from octavo.engine.messages import EngineFacts, problem_of
from octavo.engine.opening import OpenEngine, open_engine
from octavo.engine.process_config import EXIT_FAILED, EXIT_NOT_STARTED, ProcessConfig, StartReport
from octavo.engine.server import EngineServer, FirstRows, bind_router
from octavo.observe.metrics import EngineMetrics

MAX_CONFIG_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger("octavo.engine")


def main() -> int:
    """Run one engine until it is drained or fails; the exit status."""
    logging.basicConfig(level=logging.WARNING, format="octavo engine: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent drains
    report_fd = os.dup(1)
    os.dup2(2, 1)  # Whatever libraries print must not mix with the report.
    config = _read_config(0)
    if config is None or not _follow_parent(config.parent_process_id):
        return 0
    first_rows = FirstRows()
    try:
        with GgufFile.open(Path(config.model_path)) as file:
            opened = open_engine(file, config.settings, emit=first_rows)
            warm_seconds = _warm_up(opened.engine)
            first_rows.take()
            facts = _facts(config, file, opened, warm_seconds)
        # The file is closed by now: its pages, and where things are in it, count as memory.
        del file
        garbage.settle()
        return _serve(config, opened, facts, first_rows, report_fd)
    except OctavoError as error:
        _report(report_fd, StartReport(problem=problem_of(error)))
        return EXIT_NOT_STARTED


def _serve(
    config: ProcessConfig,
    opened: OpenEngine,
    facts: EngineFacts,
    first_rows: FirstRows,
    report_fd: int,
) -> int:
    wake_read, wake_write = socket.socketpair()
    wake_write.setblocking(False)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        router = bind_router(context, config.address)
        server = EngineServer(opened.engine, facts, router, first_rows)
        signal.set_wakeup_fd(wake_write.fileno())
        signal.signal(signal.SIGTERM, lambda *_: server.drain())
        _report(report_fd, StartReport(facts=facts))
        try:
            server.run(wake_fd=wake_read.fileno(), parent_fd=0)
        except Exception:
            logger.exception("the engine cannot go on")
            return EXIT_FAILED
        finally:
            router.close()
        return 0
    finally:
        context.term()
        opened.engine.close()


def _read_config(fd: int) -> ProcessConfig | None:
    """One line; None if the parent left before it was written.

    Raises:
        EngineError: it is no configuration.
    """
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(fd, 65536)
        if not part:
            return None
        line += part
        if len(line) > MAX_CONFIG_BYTES:
            raise EngineError("the configuration of the engine process is too long")
    return msgspec.json.decode(line, type=ProcessConfig)


def _follow_parent(process_id: int) -> bool:
    """Die with the parent, even in the middle of a step; False if it is gone already."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == process_id


def _warm_up(engine: Engine) -> float:
    """Run one token through the model, so that no caller waits for its pages; seconds taken.

    Raises:
        EngineError: the model cannot even do that.
    """
    started = monotonic()
    params = SamplingParams(max_tokens=1, temperature=0.0)
    engine.add(Request(RequestId("warm-up"), (0,), params, seed=0, max_new_tokens=1))
    while engine.has_work:
        for output in engine.step():
            if output.error is not None:
                raise EngineError(f"the model fails on its first token: {output.error}")
    engine.metrics = EngineMetrics()
    engine.scheduler.forget()
    return monotonic() - started


def _facts(
    config: ProcessConfig, file: GgufFile, opened: OpenEngine, warm_seconds: float
) -> EngineFacts:
    settings, capacity, model = config.settings, opened.capacity, opened.model
    return EngineFacts(
        model_path=config.model_path,
        model_name=config.model_name,
        architecture=str(file.metadata.get("general.architecture", "")),
        context_tokens=capacity.context_tokens,
        model_context_tokens=model.program.context_tokens,
        vocabulary_size=opened.limits.vocabulary_size,
        page_tokens=capacity.page_tokens,
        cache_groups=opened.layout.groups,
        pages=capacity.pages,
        max_rows=settings.scheduler.max_batch_size,
        token_budget=settings.scheduler.token_budget,
        memory_bytes=dict(opened.ledger.parts),
        memory_ceiling_bytes=opened.ledger.ceiling_bytes,
        backend=opened.bits_facts["backend"],
        tier=opened.bits_facts["tier"],
        threads=getattr(model, "threads", 1),
        threads_reason=getattr(model, "threads_reason", "numpy decides"),
        activations=opened.bits_facts["activations"],
        kv_format=opened.bits_facts["kv_format"],
        bits_fingerprint=opened.bits_fingerprint.hex(),
        process_id=os.getpid(),
        phase_seconds={
            "interpreter": max(_process_age_seconds() - (monotonic() - _IMPORTED_SECONDS), 0.0),
            **opened.phase_seconds,
            "warm-up": warm_seconds,
        },
        note=capacity.note,
        swap=opened.swap.about,
    )


def _process_age_seconds() -> float:
    """Seconds since this process was started, by the kernel's clock."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_seconds = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started_seconds
    except (OSError, ValueError, IndexError, AttributeError):
        return monotonic() - _IMPORTED_SECONDS


def _report(fd: int, report: StartReport) -> None:
    with contextlib.suppress(OSError):  # the parent is gone, which its other pipe will tell
        os.write(fd, msgspec.json.encode(report) + b"\n")
        os.close(fd)


_IMPORTED_SECONDS = monotonic()

if __name__ == "__main__":
    sys.exit(main())
