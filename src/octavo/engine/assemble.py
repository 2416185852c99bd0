"""Puts a model file and settings together into a running engine with its client."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from octavo.core.catalog import octavo_home
from octavo.core.clock import Clock, monotonic
from octavo.core.errors import TemplateError
from octavo.core.fingerprint import fingerprint
from octavo.core.gguf import GgufFile
from octavo.core.settings import PAGE_SIZES_TOKENS, Settings, page_tokens
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
    """Everything that was opened for one model; `events` holds the newest request transitions."""

    path: Path
    file: GgufFile
    client: Client
    engine: Engine
    events: EventRing
    chat_template: ChatTemplate
    capacity: Capacity
    weight_bytes: int

    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            TemplateError: the file has none.
        """
        if self.chat_template.source is None:
            raise TemplateError(
                "this model has no chat template",
                field="messages",
                remedy="use completions: `LLM.generate`, or `octavo generate`, with a plain prompt",
            )
        return self.chat_template

    def close(self) -> None:
        """Cancel what runs, free weights, cache and file; safe to call twice."""
        self.client.close()
        self.file.close()


def assemble(path: Path, settings: Settings, *, clock: Clock = monotonic) -> Assembly:
    """Open a model file with everything around it.

    Raises:
        ModelFileError: the file is damaged or not supported.
        SettingsError, CapacityError: the settings do not fit the model or the machine.
    """
    file = GgufFile.open(path)
    try:
        return _assemble(path, file, settings, clock)
    except BaseException:
        file.close()
        raise


def _assemble(path: Path, file: GgufFile, settings: Settings, clock: Clock) -> Assembly:
    # Late, so that nothing but a running engine needs numpy and the native module.
    from octavo.compute.runner import ComputeOptions, open_model
    from octavo.engine.model_executor import ModelExecutor

    scheduler, compute = settings.scheduler, settings.compute
    options = ComputeOptions(
        backend=compute.backend,
        threads=compute.threads,
        activations=compute.activations,
        kv_format=settings.memory.kv_format,
        max_batch_tokens=scheduler.token_budget,
        tier=None if compute.cpu_tier == "auto" else compute.cpu_tier,
    )
    opened = open_model(file, options, digest_cache=octavo_home() / "digests.json")
    model, program = opened.model, opened.program
    try:
        tokenizer = Tokenizer.from_metadata(file.metadata, vocabulary_size=program.vocabulary_size)
        template = ChatTemplate.from_metadata(file.metadata, tokenizer)
        smallest = PAGE_SIZES_TOKENS[0]
        layer_token_bytes = model.page_bytes(smallest) // smallest // program.kv.layers
        tokens = page_tokens(settings.memory.block_size, layer_token_bytes)
        capacity = plan_capacity(
            page_tokens=tokens,
            page_bytes=model.page_bytes(tokens),
            model_context_tokens=program.context_tokens,
            max_rows=scheduler.max_batch_size,
            available_bytes=available_memory_bytes(),
            kv_bytes=settings.memory.kv_bytes,
        )
        if capacity.note:
            logger.warning(capacity.note)
        model.allocate_kv(capacity.pages, tokens)
        executor = ModelExecutor(
            model,
            max_rows=scheduler.max_batch_size,
            max_pages_per_row=-(-capacity.context_tokens // tokens),
            max_batch_tokens=scheduler.token_budget,
            clock=clock,
        )
        events = EventRing()
        engine = Engine(
            Scheduler(
                pages=capacity.pages,
                page_tokens=tokens,
                token_budget=scheduler.token_budget,
                max_rows=scheduler.max_batch_size,
                max_context=capacity.context_tokens,
                max_chunk_tokens=scheduler.max_chunk_tokens,
                fingerprint=fingerprint({**opened.facts, "page_tokens": str(tokens)}),
                clock=clock,
                emit=events,
            ),
            executor,
            metrics=EngineMetrics(),
            clock=clock,
        )
        limits = Limits(capacity.context_tokens, program.vocabulary_size)
        client = Client(engine, tokenizer, limits, clock=clock)
    except BaseException:
        model.close()
        raise
    return Assembly(path, file, client, engine, events, template, capacity, model.weight_bytes)
