"""One tree of errors. Every error names the cause, the field and the remedy."""

from __future__ import annotations

import math


class OctavoError(Exception):
    """Base of everything Octavo raises on purpose.

    `message` says what went wrong, `field` names the input at fault (a request field, a setting,
    a tensor, a metadata key), `remedy` says what to do about it.
    """

    code = "internal_error"

    def __init__(self, message: str, *, field: str | None = None, remedy: str | None = None):
        super().__init__(message)
        self.message = message
        self.field = field
        self.remedy = remedy

    def __str__(self) -> str:
        text = self.message
        if self.field:
            text = f"{self.field}: {text}"
        if self.remedy:
            text = f"{text} ({self.remedy})"
        return text


class InvalidRequest(OctavoError):
    """The caller sent something that cannot be served; nothing was computed."""

    code = "invalid_request"


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the served context."""

    code = "context_length_exceeded"


class TemplateError(InvalidRequest):
    """A conversation could not be rendered; `message_index` is the message at fault, if known."""

    code = "invalid_messages"

    def __init__(
        self,
        message: str,
        *,
        message_index: int | None = None,
        field: str | None = None,
        remedy: str | None = None,
    ):
        if field is None and message_index is not None:
            field = f"messages[{message_index}]"
        super().__init__(message, field=field, remedy=remedy)
        self.message_index = message_index


class SettingsError(OctavoError):
    """A setting is unknown, has a wrong type or unit, or is out of range."""

    code = "invalid_setting"


class ModelFileError(OctavoError):
    """A model file is damaged or not supported.

    `expected` and `found` are short descriptions for people; `field` is the key or tensor.
    """

    code = "invalid_model_file"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
    ):
        if expected is not None or found is not None:
            message = f"{message}: expected {expected}, found {found}"
        super().__init__(message, field=field, remedy=remedy)
        self.expected = expected
        self.found = found


class ModelNotFound(OctavoError):
    """No model of that name or path."""

    code = "model_not_found"


class DownloadError(OctavoError):
    """A download failed or its content has a wrong checksum."""

    code = "download_failed"


class CapacityError(OctavoError):
    """What was asked for can never fit the memory that was given."""

    code = "capacity_exceeded"


class EngineError(OctavoError):
    """The engine failed at a step; the requests of that step are told."""

    code = "engine_error"


class Overloaded(OctavoError):
    """The queue of a class is full, or the request would miss its target; try again later.

    `retry_after_seconds` is when the queue is predicted to take it. `reason` is the bound that was
    met: queue_requests, queue_tokens, queue_seconds, or first_token_seconds.
    """

    code = "overloaded"

    def __init__(
        self,
        message: str,
        *,
        retry_after_seconds: float = 1.0,
        reason: str = "queue_requests",
        service_class: str = "standard",
        field: str | None = None,
        remedy: str | None = None,
    ):
        if remedy is None:
            remedy = f"try again in {math.ceil(retry_after_seconds)} s"
        super().__init__(message, field=field, remedy=remedy)
        self.retry_after_seconds = retry_after_seconds
        self.reason = reason
        self.service_class = service_class
