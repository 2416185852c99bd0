"""POST /v1/chat/completions: conversations, rendered by the model's own template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.access.http.answers import answer
from octavo.access.http.bodies import read_object
from octavo.access.http.errors import invalid
from octavo.access.http.events import TextEvents, event
from octavo.access.http.fields import (
    Fields,
    check_model,
    take_stream,
)
from octavo.access.http.oversize import refuse_oversized
from octavo.access.http.sampling import chat_params
from octavo.access.http.service import Service, service_of
from octavo.access.http.shapes import END_REASONS, chat_logprobs, usage_of
from octavo.access.http.treatment import Treatment
from octavo.access.http.work import Work
from octavo.core.sampling import SamplingParams
from octavo.engine.client import Completion, Delta, Prepared, RequestOutput
from octavo.text.literals import strings_in
from octavo.text.templates import encode_chat

if TYPE_CHECKING:
    from octavo.engine.client import AsyncCall


async def chat_completions(request: Request) -> Response:
    service = service_of(request)
    arrival_seconds = service.clock()
    service.check_ready()
    fields = Fields(await read_object(request, service))
    check_model(fields, service)
    conversation = Conversation(fields)
    stream, include_usage = take_stream(fields)
    params = chat_params(fields)
    treatment = Treatment.take(fields, request, service)
    fields.refuse_unsupported()
    treatment.check_room(service, conversation.characters)
    prepared = await service.run(conversation.characters, conversation.prepare, service, params)
    work = Work(
        prepared=[prepared],
        shape=ChatShape(service, with_usage=include_usage),
        arrival_seconds=arrival_seconds,
        treatment=treatment,
        stream=stream,
        include_usage=include_usage,
        ignored=fields.ignored,
    )
    return await answer(request, service, work)


class Conversation:
    """The fields of a request that its prompt is made of.

    Raises:
        ApiError: a field is missing or of a wrong kind.
    """

    def __init__(self, fields: Fields):
        self._messages: Any = fields.take("messages")
        if self._messages is None:
            raise invalid("is missing (send a list of messages)", "messages")
        self._generation = fields.boolean("add_generation_prompt", True)
        self._variables: Any = fields.take("chat_template_kwargs", {})
        if not isinstance(self._variables, dict):
            raise invalid("must be an object", "chat_template_kwargs")
        self._texts = list(strings_in(self._messages))
        self.characters = sum(map(len, self._texts))

    def token_ids(self, service: Service) -> list[int]:
        """Raises TemplateError with the index of the message at fault."""
        return encode_chat(
            service.tokenizer,
            service.template,
            self._messages,
            add_generation_prompt=self._generation,
            variables=self._variables,
        )

    def prepare(self, service: Service, params: SamplingParams) -> Prepared:
        """Raises PromptTooLong, InvalidRequest, TemplateError."""
        context = service.client.limits.context_tokens
        refuse_oversized(self._texts, service.tokenizer, context, "messages")
        return service.client.prepare(self.token_ids(service), params, field="messages")


class ChatShape:
    """Answers as `chat.completion` objects, or `chat.completion.chunk` in streams."""

    def __init__(self, service: Service, *, with_usage: bool):
        self.answer_id = f"chatcmpl-{service.draw_id()}"
        self.base: dict[str, object] = {
            "id": self.answer_id,
            "object": "chat.completion.chunk",
            "created": int(service.wall_clock()),
            "model": service.model_name,
            "system_fingerprint": service.fingerprint,
        }
        self._usage: dict[str, object] = {"usage": None} if with_usage else {}
        self._texts: dict[int, TextEvents] = {}
        """Of choices that have begun."""

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, object]:
        (output,) = outputs
        return {
            **self.base,
            "object": "chat.completion",
            "choices": [_whole_choice(choice) for choice in output.outputs],
            "usage": usage_of([output.usage]),
        }

    def events(self, place: int, call: AsyncCall, delta: Delta) -> bytes:
        index = delta.index
        events = []
        if index not in self._texts:
            self._texts[index] = TextEvents(lambda text: self._chunk(index, {"content": text}))
            events.append(event(self._chunk(index, {"role": "assistant", "content": ""})))
        if delta.logprobs:
            logprobs = chat_logprobs(delta.logprobs)
            events.append(event(self._chunk(index, {"content": delta.text}, logprobs)))
        elif delta.text:
            events.append(self._texts[index].event(delta.text))
        if delta.finish_reason is not None:
            reason = END_REASONS[delta.finish_reason]
            events.append(event(self._chunk(index, {}, reason=reason)))
        return b"".join(events)

    def usage_chunk(self, outputs: Sequence[RequestOutput]) -> dict[str, object]:
        usage = usage_of(output.usage for output in outputs)
        return {**self.base, "choices": [], "usage": usage}

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, object],
        logprobs: dict[str, object] | None = None,
        reason: str | None = None,
    ) -> dict[str, object]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**self.base, "choices": [choice], **self._usage}


def _whole_choice(choice: Completion) -> dict[str, object]:
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": None if choice.logprobs is None else chat_logprobs(choice.logprobs),
        "finish_reason": END_REASONS[choice.finish_reason],
    }
