"""`octavo chat`: a conversation on the terminal, or one message a line from a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import click

from octavo.cli.console import note, write
from octavo.cli.generate import MAX_TEXT_BYTES, decode
from octavo.cli.model import opened, speed
from octavo.cli.options import (
    explained,
    load,
    sampling_options,
    sampling_params,
    settings_options,
)
from octavo.core.errors import EngineError, InvalidRequest
from octavo.core.request import FinishReason
from octavo.core.sampling import SamplingParams

if TYPE_CHECKING:
    from octavo.cli.remote import RemoteStream
    from octavo.engine.client import Stream

_PROMPT = "you> "


@click.command("chat")
@click.argument("model", required=False)
@click.option("-m", "--message", "messages", multiple=True, help="Say this; repeat for more turns.")
@click.option("--system", help="System message.")
@click.option("--url", help="Talk with a running server, e.g. http://127.0.0.1:8000.")
@sampling_options(max_tokens=1024)
@click.option("-q", "--quiet", is_flag=True, help="Only the answers, no status lines.")
@settings_options()
def command(
    model: str | None,
    messages: tuple[str, ...],
    system: str | None,
    url: str | None,
    quiet: bool,
    config: str | None,
    assignments: tuple[str, ...],
    show_settings: bool,
    **sampling: Any,
) -> None:
    """Talk with MODEL (default: smollm2-135m).

    On a terminal: /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer.
    Otherwise every line of standard input is a message. With -m the messages are those. With --url
    the server's model answers; settings then have no effect here and are refused.
    """
    loaded = load(config, assignments, model)
    if explained(loaded, show_settings):
        return
    params = sampling_params(**sampling)
    if params.max_tokens == 0:
        raise InvalidRequest("must be at least 1", field="--max-tokens")
    if url is not None:
        if config is not None or assignments:
            raise click.UsageError("--url goes without --config and --set: the server has its own")
        from octavo.cli.remote import RemoteModel

        remote = RemoteModel(url, model)
        converse(Conversation(remote, params, system=system, quiet=quiet), messages)
        return
    with opened(loaded.settings, quiet=quiet) as llm:
        llm.assembly.template()  # a model without one is refused before anybody types
        converse(Conversation(llm, params, system=system, quiet=quiet), messages)


def converse(conversation: Conversation, messages: tuple[str, ...]) -> None:
    """Take turns from the command line, else from the terminal, else line by line."""
    if not messages and sys.stdin.isatty():
        conversation.talk()
        return
    for message in messages or _lines():
        with interrupts_noticed() as interrupts:
            ended = conversation.say(message, interrupts)
        if ended is FinishReason.CANCELLED:
            raise KeyboardInterrupt


class Talker(Protocol):
    """What answers: `LLM` in this process, or `RemoteModel`."""

    def chat_stream(
        self, messages: Sequence[dict[str, object]], params: SamplingParams
    ) -> Stream | RemoteStream: ...


class Conversation:
    """The turns so far and the model that continues them."""

    def __init__(self, talker: Talker, params: SamplingParams, *, system: str | None, quiet: bool):
        self._talker = talker
        self._params = params
        self._quiet = quiet
        self._start: list[dict[str, object]] = (
            [{"role": "system", "content": system}] if system is not None else []
        )
        self._turns: list[dict[str, object]] = list(self._start)

    def talk(self) -> None:
        """Read turns from the terminal until it ends."""
        with_line_editing()
        note("/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer")
        with interrupts_noticed() as interrupts:
            while True:
                try:
                    message = interrupts.raised_by(lambda: input(_PROMPT))
                except EOFError:
                    write("\n")
                    return
                except KeyboardInterrupt:
                    note("\n(/exit or Ctrl-D leaves)")
                    continue
                if not self._obey(message, interrupts):
                    return

    def _obey(self, message: str, interrupts: Interrupts) -> bool:
        """Do what a line from the terminal asks for; False to leave."""
        command = message.strip()
        if command == "/exit":
            return False
        if command == "/reset":
            self._turns = list(self._start)
            note("(the conversation is forgotten)")
        elif command:
            try:
                self.say(message, interrupts)
            except InvalidRequest as error:
                # The conversation has grown too long, or the message cannot be said.
                note(f"octavo: {error} (/reset starts afresh)")
        return True

    def say(self, message: str, interrupts: Interrupts) -> FinishReason:
        """Add a turn, show the answer and return why it ended.

        An answer that Ctrl-C stopped is `CANCELLED` and counts as far as it was shown.

        Raises:
            InvalidRequest: the turn is refused; the conversation is as before.
            EngineError: the model failed.
        """
        interrupts.forget()
        turns: list[dict[str, object]] = [*self._turns, {"role": "user", "content": message}]
        shown: list[str] = []
        with self._talker.chat_stream(turns, self._params) as stream:
            for delta in stream:
                write(delta.text)
                shown.append(delta.text)
                if interrupts.seen:
                    break
            write("\n")
            stream.close()
            output = stream.result()
        choice = output.outputs[0]
        if choice.error is not None:
            raise EngineError(choice.error)
        self._turns = [*turns, {"role": "assistant", "content": "".join(shown)}]
        if not self._quiet:
            note(f"[{speed(output)}{_ending(choice.finish_reason)}]")
        return choice.finish_reason


class Interrupts:
    """Ctrl-C as something to look at, so that no step is cut in half.

    It raises KeyboardInterrupt while the program waits for a line, and when it is pressed again
    before the first one was obeyed.
    """

    def __init__(self) -> None:
        self.seen = False
        self._raise = False

    def notice(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.seen or self._raise:
            raise KeyboardInterrupt
        self.seen = True

    def forget(self) -> None:
        self.seen = False

    def raised_by(self, wait: Callable[[], str]) -> str:
        """Call `wait`, which an interrupt ends."""
        self.forget()
        self._raise = True
        try:
            return wait()
        finally:
            self._raise = False


@contextmanager
def interrupts_noticed() -> Iterator[Interrupts]:
    """Takes Ctrl-C over for a while."""
    interrupts = Interrupts()
    before = signal.signal(signal.SIGINT, interrupts.notice)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def with_line_editing() -> None:
    """Arrow keys and history in `input`, where Python has them."""
    with suppress(ImportError):
        import readline  # noqa: F401


def _ending(reason: FinishReason) -> str:
    if reason is FinishReason.LENGTH:
        return ", cut: --max-tokens or the end of the context"
    return ", stopped" if reason is FinishReason.CANCELLED else ""


def _lines() -> Iterator[str]:
    while line := sys.stdin.buffer.readline(MAX_TEXT_BYTES):
        message = decode(line, "standard input").rstrip("\r\n")
        if message.strip():
            yield message
