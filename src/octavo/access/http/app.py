"""The ASGI application: routes, and an error object for everything that has no other answer."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.access.http import pages, tokens
from octavo.access.http.chat import chat_completions
from octavo.access.http.completions import completions
from octavo.access.http.errors import NOT_FOUND, SERVER_ERROR, ApiError
from octavo.access.http.service import Service, service_of
from octavo.core.errors import OctavoError, Overloaded

logger = logging.getLogger("octavo.http")

CLIENT_LEFT = 499
"""Status that nobody sees: the client has gone."""

ROUTES = (
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/models", pages.models, methods=["GET"]),
    Route("/v1/models/{name:path}", pages.model, methods=["GET"]),
    Route("/tokenize", tokens.tokenize, methods=["POST"]),
    Route("/detokenize", tokens.detokenize, methods=["POST"]),
    Route("/health/live", pages.live, methods=["GET"]),
    Route("/health/ready", pages.ready, methods=["GET"]),
    Route("/metrics", pages.metrics, methods=["GET"]),
)

COUNTED = ("/v1/completions", "/v1/chat/completions")
"""Routes whose requests the metrics count."""


def create_app(service: Service) -> Starlette:
    """The application of one service."""
    app = Starlette(
        routes=ROUTES,
        exception_handlers={
            ApiError: _api_error,
            OctavoError: _octavo_error,
            HTTPException: _http_error,
            ClientDisconnect: _client_left,
            Exception: _defect,
        },
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answered(request, error)


async def _octavo_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OctavoError)
    return _answered(request, ApiError.of(error), error)


def _answered(request: Request, answer: ApiError, error: OctavoError | None = None) -> Response:
    """The error's answer, counted if no call was made that is counted itself."""
    if request.url.path in COUNTED and not hasattr(request.state, "submitted"):
        metrics = service_of(request).metrics
        if isinstance(error, Overloaded):
            metrics.turned_away(error.service_class, error.code, error.reason)
        else:
            metrics.rejected(answer.code or "unknown")
    return answer.response()


async def _http_error(request: Request, error: Exception) -> Response:
    """No such route, or a method it does not know."""
    assert isinstance(error, HTTPException)
    missing = error.status_code == 404
    path = request.url.path[:200]
    return ApiError(
        error.status_code,
        f"there is no {path!r} here"
        if missing
        else f"{path!r} does not take {request.method[:20]}",
        kind=NOT_FOUND if missing else "invalid_request_error",
        code="unknown_route" if missing else "method_not_allowed",
        headers=error.headers,
    ).response()


async def _client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


async def _defect(request: Request, error: Exception) -> Response:
    """A defect of Octavo; the traceback goes to the log, not to the caller."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return ApiError(
        500, "internal error, see the server's log", kind=SERVER_ERROR, code="internal_error"
    ).response()
