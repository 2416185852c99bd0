"""Puts a model file and settings together into a running engine with its client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.core.clock import Clock, monotonic
from octavo.core.errors import TemplateError
from octavo.core.gguf import GgufFile
from octavo.core.settings import Settings
from octavo.engine.capacity import Capacity
from octavo.engine.client import Client
from octavo.engine.engine import Engine
from octavo.engine.opening import open_engine
from octavo.observe.events import EventRing
from octavo.text.templates import ChatTemplate, template_source
from octavo.text.tokenizer import Tokenizer, choose_cut
from octavo.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from octavo.compute.batch import StepModel


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
    model: StepModel

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
    events = EventRing()
    vocabulary = _checked_vocabulary(file, settings)
    opened = open_engine(file, settings, emit=events, clock=clock, bounded_queues=False)
    try:
        tokenizer = Tokenizer(vocabulary, pre=settings.pre_tokenizer)
        template = ChatTemplate.from_metadata(file.metadata, tokenizer)
        client = Client(opened.engine, tokenizer, opened.limits, clock=clock)
    except BaseException:
        opened.engine.close()
        raise
    return Assembly(
        path=path,
        file=file,
        client=client,
        engine=opened.engine,
        events=events,
        chat_template=template,
        capacity=opened.capacity,
        model=opened.model,
    )


def _checked_vocabulary(file: GgufFile, settings: Settings) -> Vocabulary:
    """Refuses at once, before weights are loaded, what tokenizer and template would refuse later.

    A file without embeddings is left to whoever reads the tensors.
    """
    rows = file.tensors.get("token_embd.weight")
    vocabulary = Vocabulary.from_metadata(
        file.metadata, vocabulary_size=None if rows is None else rows.shape[0]
    )
    choose_cut(vocabulary, settings.pre_tokenizer)
    ChatTemplate(template_source(file.metadata))
    return vocabulary
