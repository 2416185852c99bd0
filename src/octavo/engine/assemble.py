"""Puts a model file and settings together into a running engine with its client."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from octavo.core.catalog import octavo_home
from octavo.core.clock import Clock, monotonic
from octavo.core.errors import SettingsError
from octavo.core.fingerprint import fingerprint
from octavo.core.gguf import GgufFile
from octavo.core.settings import Settings, page_tokens
from octavo.engine.capacity import Capacity, available_memory_bytes, plan_capacity
from octavo.engine.client import Client
from octavo.engine.engine import Engine
from octavo.engine.prompts import Limits
from octavo.observe.events import EventRing
from octavo.observe.metrics import EngineMetrics
from octavo.schedule.scheduler import Scheduler
from octavo.text.templates import ChatTemplate
from octavo.text.tokenizer import Tokenizer

logger = logging.getLogger("octavo")


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything that was opened for one model."""

    path: Path
    file: GgufFile
    client: Client
    engine: Engine
    capacity: Capacity
    weight_bytes: int

    def template(self) -> ChatTemplate:
        """The model's chat template; compiled anew at each call.

        Raises:
            TemplateError: the file has none.
        """
        return ChatTemplate.from_metadata(self.file.metadata)

    def close(self) -> None:
        """Cancel what runs, free weights, cache and file; safe to call twice."""
        self.client.close()
        self.file.close()
