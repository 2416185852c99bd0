"""What may be asked without a body: the model, health, metrics."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.access.http.errors import ApiError, unavailable
from octavo.access.http.service import Service, service_of
from octavo.core.errors import ModelNotFound
from octavo.observe.prometheus import CONTENT_TYPE


async def models(request: Request) -> Response:
    service = service_of(request)
    return _json({"object": "list", "data": [_model(service)]})


async def model(request: Request) -> Response:
    service = service_of(request)
    name = request.path_params["name"]
    if name not in service.model_names:
        raise ApiError.of(
            ModelNotFound(
                f"no model {name[:100]!r} here", field="model", remedy=f"use {service.model_name!r}"
            )
        )
    return _json(_model(service))


async def live(request: Request) -> Response:
    """200 as long as the event loop turns."""
    return _json({"status": "live"})


async def ready(request: Request) -> Response:
    """200 if a request may be sent here now, else 503 with the reason."""
    reason = service_of(request).unready_reason()
    if reason is not None:
        raise unavailable(reason)
    return _json({"status": "ready"})


async def metrics(request: Request) -> Response:
    """Numbers in the text format of Prometheus."""
    page = service_of(request).metrics.render()
    return Response(page, headers={"content-type": CONTENT_TYPE})


def _model(service: Service) -> dict[str, object]:
    facts = service.client.facts
    return {
        "id": service.model_name,
        "object": "model",
        "created": int(service.started_seconds),
        "owned_by": "octavo",
        "max_model_len": None if facts is None else facts.context_tokens,
        "architecture": None if facts is None else facts.architecture,
    }


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
