"""Answers of the completion routes, streamed or whole, with the time of each piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from benchmarks.serving.connection import Clock, ExchangeError, Target, WholeBody, exchange


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no whole answer; `kind` is one or two words to count by.

    `retry_after_seconds` is when the server said that it should be sent again.
    """

    kind: str
    message: str
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; times on the client's clock.

    `text_seconds`: one for each event that brought text, so none if not streamed. Token counts are
    the server's, None if it gave none.
    """

    text_seconds: tuple[float, ...]
    end_seconds: float
    text: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None


class _Piece(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Piece | None = None
    message: _Piece | None = None
    finish_reason: str | None = None

    @property
    def whole_text(self) -> str:
        piece = self.delta or self.message
        if piece is None:
            return self.text or ""
        return (piece.reasoning_content or "") + (piece.content or "")


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    """What matters of an event, and of a whole answer."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class EventSplitter:
    """Data of server-sent events (WHATWG HTML, section 9.2), from pieces cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Data of the events that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events


class StreamReader:
    """Receives one streamed answer."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.finished = False
        self._status = 0
        self._retry_after_seconds: float | None = None
        self._splitter = EventSplitter()
        self._refusal: list[bytes] = []
        self._text_seconds: list[float] = []
        self._texts: list[str] = []
        self._usage: _Usage | None = None
        self._finish_reason: str | None = None

    def on_status(self, status: int, retry_after_seconds: float | None) -> None:
        self._status = status
        self._retry_after_seconds = retry_after_seconds

    def on_body(self, seconds: float, data: bytes) -> None:
        if self._status != 200:
            self._refusal.append(data)
            return
        for event in self._splitter.feed(data):
            if event == b"[DONE]":
                self.finished = True
            elif self.failure is None:
                self._take(seconds, event)

    def answer(self, end_seconds: float, failure: Failure | None) -> Answer:
        """The answer, once nothing more comes."""
        if self._status not in (0, 200):
            body = b"".join(self._refusal)
            failure = refusal(self._status, body, self._retry_after_seconds)
        failure = self.failure or failure
        if failure is None and not self.finished and self._finish_reason is None:
            failure = Failure("cut off", "the stream ended without [DONE] or finish_reason")
        return Answer(
            text_seconds=tuple(self._text_seconds),
            end_seconds=end_seconds,
            text="".join(self._texts),
            finish_reason=self._finish_reason,
            failure=failure,
            **_counts(self._usage),
        )

    def _take(self, seconds: float, event: bytes) -> None:
        try:
            chunk = _decoder.decode(event)
        except msgspec.DecodeError as error:
            self.failure = Failure("protocol", f"an event is no chunk: {error}")
            return
        if chunk.error is not None:
            self.failure = Failure("error event", message_of(chunk.error))
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            text = choice.whole_text
            if text:
                self._text_seconds.append(seconds)
                self._texts.append(text)
            self._finish_reason = choice.finish_reason or self._finish_reason


async def ask(
    target: Target,
    route: str,
    body: dict[str, object],
    *,
    clock: Clock,
    timeout_seconds: float,
) -> Answer:
    """Ask and read to the end; whatever goes wrong is in the answer's `failure`.

    `route` is "completions" or "chat/completions"; it is streamed if `body` says so.
    """
    streamed = bool(body.get("stream"))
    reader = StreamReader() if streamed else WholeBody()
    failure = None
    try:
        await exchange(
            target,
            "POST",
            f"/v1/{route}",
            body,
            reader,
            clock=clock,
            timeout_seconds=timeout_seconds,
        )
    except ExchangeError as error:
        failure = Failure(error.kind, str(error))
    end_seconds = clock()
    if isinstance(reader, StreamReader):
        return reader.answer(end_seconds, failure)
    return _whole_answer(reader, end_seconds, failure)


def refusal(status: int, body: bytes, retry_after_seconds: float | None = None) -> Failure:
    """An answer that is no success, with the message it brought."""
    try:
        chunk = _decoder.decode(body)
        message = message_of(chunk.error) if chunk.error is not None else ""
    except msgspec.DecodeError:
        message = ""
    text = message or body[:200].decode("utf-8", "replace")
    return Failure(f"HTTP {status}", text, retry_after_seconds)


def message_of(error: Any) -> str:
    """The message of an error object, whatever its shape."""
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return str(error)


def _whole_answer(whole: WholeBody, end_seconds: float, failure: Failure | None) -> Answer:
    if failure is not None:
        return Answer((), end_seconds, failure=failure)
    if whole.status != 200:
        return Answer((), end_seconds, failure=_refusal_of(whole))
    try:
        chunk = _decoder.decode(whole.body)
    except msgspec.DecodeError as error:
        return Answer((), end_seconds, failure=Failure("protocol", f"no answer: {error}"))
    choices = chunk.choices or []
    return Answer(
        (),
        end_seconds,
        text="".join(choice.whole_text for choice in choices),
        finish_reason=choices[0].finish_reason if choices else None,
        **_counts(chunk.usage),
    )


def _refusal_of(whole: WholeBody) -> Failure:
    return refusal(whole.status, whole.body, whole.retry_after_seconds)


def _counts(usage: _Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    details = usage.prompt_tokens_details
    return {
        "prompt_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cached_tokens": None if details is None else details.cached_tokens,
    }
