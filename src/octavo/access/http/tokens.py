"""POST /tokenize and /detokenize: what a prompt is made of, without computing anything."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.access.http.bodies import read_object
from octavo.access.http.chat import Conversation
from octavo.access.http.errors import invalid
from octavo.access.http.fields import Fields, check_model, warning_headers
from octavo.access.http.service import Service, service_of
from octavo.core.sampling import as_integer


async def tokenize(request: Request) -> Response:
    """Ids of a `prompt` (literal text) or of `messages` under the model's template."""
    service = service_of(request)
    service.check_ready()
    fields = Fields(await read_object(request, service))
    check_model(fields, service)
    special = fields.boolean("add_special_tokens", True)
    text = fields.text("prompt")
    if text is not None:
        if fields.take("messages") is not None:
            raise invalid("goes without messages (send one of them)", "prompt")
        ids = await service.run(
            len(text), service.tokenizer.encode, text, add_special=special, parse_special=False
        )
    else:
        conversation = Conversation(fields)
        ids = await service.run(conversation.characters, conversation.token_ids, service)
    body = {
        "tokens": ids,
        "count": len(ids),
        "max_model_len": service.client.limits.context_tokens,
    }
    return _json(body, fields)


async def detokenize(request: Request) -> Response:
    """Text of `tokens`, control tokens included unless `skip_special_tokens`."""
    service = service_of(request)
    service.check_ready()
    fields = Fields(await read_object(request, service))
    check_model(fields, service)
    tokens = fields.take("tokens")
    if not isinstance(tokens, list):
        raise invalid("must be a list of token ids", "tokens")
    skip = fields.boolean("skip_special_tokens")
    text = await service.run(len(tokens), _decode, service, tokens, skip)
    return _json({"prompt": text}, fields)


def _decode(service: Service, tokens: list[Any], skip_special: bool) -> str:
    last = service.tokenizer.vocabulary_size - 1
    ids = [as_integer(token, f"tokens[{place}]", 0, last) for place, token in enumerate(tokens)]
    return service.tokenizer.decode(ids, skip_special=skip_special)


def _json(body: object, fields: Fields) -> Response:
    return Response(
        msgspec.json.encode(body),
        media_type="application/json",
        headers=warning_headers(fields.ignored),
    )
