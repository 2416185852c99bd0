"""What a supervisor and an engine process tell each other before there is a socket."""

from __future__ import annotations

import msgspec

from octavo.core.settings import Settings
from octavo.engine.messages import EngineFacts, Problem

EXIT_NOT_STARTED = 1
EXIT_FAILED = 70
"""EX_SOFTWARE of sysexits.h."""


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a parent tells an engine process. `address` is a ZeroMQ ipc address."""

    model_path: str
    model_name: str
    settings: Settings
    address: str
    parent_process_id: int


class StartReport(msgspec.Struct, frozen=True):
    """Exactly one of the two is set."""

    facts: EngineFacts | None = None
    problem: Problem | None = None
