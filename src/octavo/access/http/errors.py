"""Errors as the OpenAI API shapes them, with the status that fits each."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from octavo.core.errors import (
    CapacityError,
    EngineError,
    InvalidRequest,
    ModelNotFound,
    OctavoError,
    Overloaded,
)

INVALID_REQUEST = "invalid_request_error"
NOT_FOUND = "not_found_error"
RATE_LIMIT = "rate_limit_error"
SERVER_ERROR = "server_error"

RETRY_AFTER_SECONDS = 1


class ApiError(Exception):
    """An answer that is an error: HTTP status, and what stands in its body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @classmethod
    def of(cls, error: OctavoError) -> ApiError:
        """The answer to an error of another room: 400, 404, 429, 503 or 500."""
        status, kind = 500, SERVER_ERROR
        headers: dict[str, str] = {}
        match error:
            case InvalidRequest() | CapacityError():
                status, kind = 400, INVALID_REQUEST
            case ModelNotFound():
                status, kind = 404, NOT_FOUND
            case Overloaded():
                status, kind = 429, RATE_LIMIT
                headers["retry-after"] = str(max(math.ceil(error.retry_after_seconds), 1))
            case EngineError():
                status = 503
                headers["retry-after"] = str(RETRY_AFTER_SECONDS)
        return cls(
            status, str(error), kind=kind, param=error.field, code=error.code, headers=headers
        )

    def body(self) -> dict[str, object]:
        """The object that every error answer consists of."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        return Response(
            msgspec.json.encode(self.body()),
            status_code=self.status,
            media_type="application/json",
            headers=self.headers,
        )


def invalid(message: str, param: str | None = None, *, code: str | None = None) -> ApiError:
    """400 with the field at fault in front of the message."""
    return ApiError(
        400,
        f"{param}: {message}" if param else message,
        param=param,
        code=code or InvalidRequest.code,
    )


def timed_out(limit: str, seconds: float) -> ApiError:
    """No token came within a limit of time, which bears the name of its field."""
    return ApiError(
        408,
        f"{limit}: no token within {seconds:g} s (allow more, or try again later)",
        param=limit,
        code="timeout",
        # Clients of the reference API send a request again after a 408; the caller's time is up.
        headers={"x-should-retry": "false"},
    )


def failed(reason: str | None) -> ApiError:
    """The model failed on this request, and on no other."""
    return ApiError(
        500,
        f"the model failed on this request: {reason or 'no reason given'}",
        kind=SERVER_ERROR,
        code=EngineError.code,
    )


def unavailable(reason: str, *, code: str = "not_ready", close: bool = False) -> ApiError:
    """503: not now, but soon."""
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)}
    if close:
        headers["connection"] = "close"
    return ApiError(503, reason, kind=SERVER_ERROR, code=code, headers=headers)
