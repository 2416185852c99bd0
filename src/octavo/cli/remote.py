"""A model behind a server of the OpenAI API, as the verbs see it; standard library only."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from octavo.core.errors import EngineError, InvalidRequest, OctavoError
from octavo.core.request import FinishReason
from octavo.core.sampling import SamplingParams
from octavo.engine.outputs import Completion, Delta, RequestOutput, Timing, Usage

TIMEOUT_SECONDS = 300.0
"""Longest silence; Octavo itself sends a comment every few seconds."""

_REASONS = {reason.value: reason for reason in FinishReason}
_MOST_BYTES_OF_A_LINE = 1 << 24


class RemoteModel:
    """Answers conversations through `url`, which is a server's address, with or without /v1.

    Raises:
        InvalidRequest: the address is not one of HTTP.
    """

    def __init__(self, url: str, model: str | None = None):
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(
                f"{url!r} is not the address of a server",
                field="--url",
                remedy="write for example --url http://127.0.0.1:8000",
            )
        self._kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._address = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
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
        try:
            headers = {"content-type": "application/json", "accept": "text/event-stream"}
            connection.request("POST", self._path, json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise _refusal(answer.status, answer.read(_MOST_BYTES_OF_A_LINE))
        except BaseException as error:
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
        while True:
            line = self._line()
            if line is None or line == b"data: [DONE]":
                self._connection.close()
                raise StopIteration
            if line.startswith(b":"):
                return Delta(0)
            if line.startswith(b"data: "):
                delta = self._accept(_decoded(line.removeprefix(b"data: ")))
                if delta is not None:
                    return delta

    def close(self) -> None:
        """Leave; the server cancels what has not finished. Safe to call twice."""
        if self._reason is None:
            self._reason = FinishReason.CANCELLED
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

    def _line(self) -> bytes | None:
        """The next line without its end; None at the end of the answer.

        Raises:
            EngineError: the server has gone silent or away.
        """
        try:
            line = self._answer.readline(_MOST_BYTES_OF_A_LINE)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise EngineError(f"the answer broke off: {error}") from error
        return line.rstrip(b"\r\n") if line else None

    def _accept(self, chunk: Any) -> Delta | None:
        if "error" in chunk:
            self.close()
            raise EngineError(str(chunk["error"].get("message", "the server failed")))
        usage = chunk.get("usage")
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            self._usage = Usage(
                usage["prompt_tokens"], usage["completion_tokens"], details.get("cached_tokens", 0)
            )
        for choice in chunk.get("choices", ()):
            text = choice["delta"].get("content") or ""
            if text and self._first_seconds is None:
                self._first_seconds = time.monotonic()
            self._text.append(text)
            reason = choice.get("finish_reason")
            if reason is not None:
                self._reason = _REASONS.get(reason, FinishReason.STOP)
            return Delta(0, text, finish_reason=self._reason)
        return None


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
        error = json.loads(body)["error"]
        message, field = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, field = f"the server answered with status {status}", None
    message = message.removeprefix(f"{field}: ") if field else message
    kind = InvalidRequest if 400 <= status < 500 else EngineError
    return kind(message, field=field)


def _decoded(data: bytes) -> Any:
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise EngineError("the server sent an event that is not a JSON object")
    return chunk
