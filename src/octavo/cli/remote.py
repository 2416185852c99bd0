"""A model behind a server of the OpenAI API, as the verbs see it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import msgspec

from octavo.core.errors import EngineError, InvalidRequest, OctavoError
from octavo.core.request import FinishReason
from octavo.core.sampling import SamplingParams
from octavo.engine.outputs import Completion, Delta, RequestOutput, Timing, Usage

TIMEOUT_SECONDS = 300.0
"""Longest silence; Octavo itself sends a comment every few seconds."""

_REASONS = {reason.value: reason for reason in FinishReason}
_MOST_BYTES_OF_A_LINE = 1 << 24
_STREAM_TYPE = "text/event-stream"
_DONE = b"data: [DONE]"


class _Part(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Part = _Part()
    finish_reason: str | None = None


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Problem(msgspec.Struct, frozen=True):
    message: str = "the server failed"
    param: str | None = None


class _Chunk(msgspec.Struct, frozen=True):
    """What is read of an event; whatever else a server puts into it is let go."""

    choices: tuple[_Choice, ...] | None = None
    usage: _Counts | None = None
    error: _Problem | str | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Problem


class RemoteModel:
    """Answers conversations through `url`, which is a server's address, with or without /v1.

    Raises:
        InvalidRequest: the address is not one of HTTP.
    """

    def __init__(self, url: str, model: str | None = None):
        parts = _parts(url)
        self._kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._address = parts.netloc.rpartition("@")[2]
        path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        path = path.removesuffix("/chat/completions").removesuffix("/v1")
        self._path = f"{path}/v1/chat/completions"
        self._model = model

    def chat_stream(
        self, messages: Sequence[Mapping[str, object]], params: SamplingParams
    ) -> RemoteStream:
        """Send a conversation; closing the stream early cancels the answer.

        Raises:
            InvalidRequest: the server refuses it.
            EngineError: the server cannot be reached, or fails.
        """
        body = {**_fields(params), "messages": list(messages), "stream": True}
        body["stream_options"] = {"include_usage": True}
        if self._model is not None:
            body["model"] = self._model
        connection = self._kind(self._address, timeout=TIMEOUT_SECONDS)
        started_seconds = time.monotonic()
        answer: http.client.HTTPResponse | None = None
        try:
            headers = {"content-type": "application/json", "accept": "text/event-stream"}
            connection.request("POST", self._path, json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise _refusal(answer.status, answer.read(_MOST_BYTES_OF_A_LINE))
            media_type = answer.headers.get_content_type()
            if media_type != _STREAM_TYPE:
                raise EngineError(
                    f"{self._address} answers with {media_type}, not with a stream of events",
                    field="--url",
                    remedy="give the address of a server of the OpenAI API",
                )
        except BaseException as error:
            if answer is not None:
                answer.close()
            connection.close()
            if isinstance(error, (OSError, http.client.HTTPException)):
                raise self._unreachable(error) from error
            raise
        return RemoteStream(connection, answer, started_seconds)

    def _unreachable(self, error: Exception) -> EngineError:
        return EngineError(
            f"no answer from {self._address}: {error}",
            field="--url",
            remedy="start a server with: octavo serve",
        )


class RemoteStream(Iterator[Delta]):
    """Deltas of one answer. Comments of the server come as empty ones, so that a reader that wants
    to leave can do so while it waits."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        answer: http.client.HTTPResponse,
        started_seconds: float,
    ):
        self._connection = connection
        self._answer = answer
        self._started_seconds = started_seconds
        self._first_seconds: float | None = None
        self._text: list[str] = []
        self._reason: FinishReason | None = None
        self._usage = Usage(0, 0)

    def __next__(self) -> Delta:
        """The next delta.

        Raises:
            EngineError: the server fails, leaves before the end, or sends what is no event.
        """
        while True:
            line = self._line()
            if line == _DONE:
                self._hang_up()
                raise StopIteration
            if line.startswith(b":"):
                return Delta(0)
            field, _, value = line.partition(b":")
            if field == b"data":
                delta = self._accept(_decoded(value))
                if delta is not None:
                    return delta

    def close(self) -> None:
        """Leave; the server cancels what has not finished. Safe to call twice."""
        if self._reason is None:
            self._reason = FinishReason.CANCELLED
        self._hang_up()

    def _hang_up(self) -> None:
        # The connection lets go of an answer that is its last; each holds the socket then.
        self._answer.close()
        self._connection.close()

    def result(self) -> RequestOutput:
        """What has come; `CANCELLED` if it was left before its end."""
        text = "".join(self._text)
        choice = Completion(0, text, (), self._reason or FinishReason.CANCELLED)
        first = self._first_seconds
        timing = Timing(
            None if first is None else first - self._started_seconds,
            time.monotonic() - self._started_seconds,
        )
        return RequestOutput(None, (), (choice,), self._usage, timing)

    def __enter__(self) -> RemoteStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _line(self) -> bytes:
        """The next line without its end; some servers leave the mark at the end out.

        Raises:
            EngineError: the server has gone silent or away.
        """
        try:
            line = self._answer.readline(_MOST_BYTES_OF_A_LINE)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise EngineError(f"the answer broke off: {error}") from error
        if not line and self._reason is None:
            self.close()
            raise EngineError("the answer broke off before its end")
        line = line.rstrip(b"\r\n") if line else _DONE
        return _DONE if line == b"data:[DONE]" else line

    def _accept(self, chunk: _Chunk) -> Delta | None:
        if chunk.error is not None:
            self.close()
            raise EngineError(chunk.error if isinstance(chunk.error, str) else chunk.error.message)
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details or _Details()
            self._usage = Usage(
                chunk.usage.prompt_tokens,
                chunk.usage.completion_tokens,
                details.cached_tokens or 0,
            )
        for choice in chunk.choices or ():
            text = choice.delta.content or ""
            if text and self._first_seconds is None:
                self._first_seconds = time.monotonic()
            self._text.append(text)
            if choice.finish_reason is not None:
                self._reason = _REASONS.get(choice.finish_reason, FinishReason.STOP)
            return Delta(0, text, finish_reason=self._reason)
        return None


def _parts(url: str) -> SplitResult:
    try:
        address = url.strip()
        parts = urlsplit(address if "//" in address else f"http://{address}")
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            parts.hostname.encode("idna")
            return parts
    except ValueError:
        pass
    raise InvalidRequest(
        f"{url!r} is not the address of a server",
        field="--url",
        remedy="write for example --url http://127.0.0.1:8000",
    )


def _fields(params: SamplingParams) -> dict[str, Any]:
    """What differs from the defaults, so that servers with fewer fields understand it."""
    fields: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
    }
    defaults = SamplingParams()
    for name in (
        "min_tokens",
        "top_k",
        "min_p",
        "seed",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "ignore_eos",
    ):
        if getattr(params, name) != getattr(defaults, name):
            fields[name] = getattr(params, name)
    if params.stop:
        fields["stop"] = list(params.stop)
    if params.stop_token_ids:
        fields["stop_token_ids"] = list(params.stop_token_ids)
    if params.logit_bias:
        fields["logit_bias"] = {str(token): value for token, value in params.logit_bias.items()}
    return fields


def _refusal(status: int, body: bytes) -> OctavoError:
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.MsgspecError, ValueError, RecursionError):
        error = _Problem(f"the server answered with status {status}")
    message = error.message.removeprefix(f"{error.param}: ")
    kind = InvalidRequest if 400 <= status < 500 else EngineError
    return kind(message, field=error.param)


def _decoded(data: bytes) -> _Chunk:
    try:
        return msgspec.json.decode(data, type=_Chunk)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise EngineError(f"the server sent an event that cannot be read: {error}") from error
