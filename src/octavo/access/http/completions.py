"""POST /v1/completions: prompts as text or token ids, continued as they are."""

from __future__ import annotations

from collections.abc import Sequence
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
from octavo.access.http.oversize import refuse_long_ids, refuse_oversized
from octavo.access.http.sampling import completion_params
from octavo.access.http.service import Service, service_of
from octavo.access.http.shapes import END_REASONS, LegacyLogprobs, joined, usage_of
from octavo.access.http.treatment import Treatment
from octavo.access.http.work import MAX_CHOICES, Work
from octavo.core.sampling import SamplingParams
from octavo.engine.client import Completion, Delta, Prepared, RequestOutput

if TYPE_CHECKING:
    from octavo.engine.client import AsyncCall

Prompt = str | list[int]


async def completions(request: Request) -> Response:
    service = service_of(request)
    arrival_seconds = service.clock()
    service.check_ready()
    fields = Fields(await read_object(request, service))
    check_model(fields, service)
    prompts, names = _prompts(fields.take("prompt"))
    echo = fields.boolean("echo")
    stream, include_usage = take_stream(fields)
    params = completion_params(fields, echo=echo)
    treatment = Treatment.take(fields, request, service)
    fields.refuse_unsupported()
    if len(prompts) * params.n > MAX_CHOICES:
        raise invalid(f"with these prompts asks for more than {MAX_CHOICES} answers", "n")
    size = sum(map(len, prompts))
    treatment.check_room(service, size)
    prepared = await service.run(size, _prepare, service, prompts, names, params)
    work = Work(
        prepared=prepared,
        shape=CompletionShape(service, prepared, params, echo=echo, with_usage=include_usage),
        arrival_seconds=arrival_seconds,
        treatment=treatment,
        stream=stream,
        include_usage=include_usage,
        ignored=fields.ignored,
    )
    return await answer(request, service, work)


def _prompts(value: Any) -> tuple[list[Prompt], list[str]]:
    """The prompts in any of the four forms, and what to call each in an error."""
    if value is None:
        raise invalid("is missing (send text, token ids, or a list of either)", "prompt")
    if isinstance(value, str):
        return [value], ["prompt"]
    if not isinstance(value, list):
        raise invalid("must be text, token ids, or a list of either", "prompt")
    if not value:
        raise invalid("is an empty list", "prompt")
    if not isinstance(value[0], (str, list)):
        return [value], ["prompt"]
    for index, prompt in enumerate(value):
        if not isinstance(prompt, type(value[0])):
            raise invalid("is of another kind than the first prompt", f"prompt[{index}]")
    return value, [f"prompt[{index}]" for index in range(len(value))]


def _prepare(
    service: Service, prompts: Sequence[Prompt], names: Sequence[str], params: SamplingParams
) -> list[Prepared]:
    context = service.client.limits.context_tokens
    for prompt, name in zip(prompts, names, strict=True):
        if isinstance(prompt, str):
            refuse_oversized([prompt], service.tokenizer, context, name)
        else:
            refuse_long_ids(prompt, context, name)
    return [
        service.client.prepare(prompt, params, field=name)
        for prompt, name in zip(prompts, names, strict=True)
    ]


class CompletionShape:
    """Answers as `text_completion` objects; choice number = prompt number x n + choice."""

    def __init__(
        self,
        service: Service,
        prepared: Sequence[Prepared],
        params: SamplingParams,
        *,
        echo: bool,
        with_usage: bool,
    ):
        self.answer_id = f"cmpl-{service.draw_id()}"
        self._tokenizer = service.tokenizer
        self._params = params
        self._echo = echo
        self._texts = [self._prompt_text(each) for each in prepared] if echo else []
        self._prepared = prepared
        self.base: dict[str, object] = {
            "id": self.answer_id,
            "object": "text_completion",
            "created": int(service.wall_clock()),
            "model": service.model_name,
            "system_fingerprint": service.fingerprint,
        }
        self._usage: dict[str, object] = {"usage": None} if with_usage else {}
        self._logprobs: dict[int, LegacyLogprobs] = {}
        self._begun: set[int] = set()
        self._held: dict[int, list[Delta]] = {}
        self._plain: dict[int, TextEvents] = {}
        """By choice, for all that is neither an echo, nor scored, nor an end."""

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, object]:
        choices = [
            self._whole_choice(place, output, choice)
            for place, output in enumerate(outputs)
            for choice in output.outputs
        ]
        usage = usage_of(output.usage for output in outputs)
        return {**self.base, "choices": choices, "usage": usage}

    def events(self, place: int, call: AsyncCall, delta: Delta) -> bytes:
        number = place * self._params.n + delta.index
        scores = self._params.logprobs is not None
        if not (self._echo or scores or delta.finish_reason):
            if not delta.text:
                return b""
            if number not in self._plain:
                self._plain[number] = TextEvents(lambda text: self._chunk(number, text, None, None))
            return self._plain[number].event(delta.text)
        deltas = [*self._held.pop(number, ()), delta]
        if self._echo and scores and call.handle.prompt_logprobs is None and not call.done:
            # Another choice is about to bring what the echo consists of.
            self._held[number] = deltas
            return b""
        chunks = [chunk for each in deltas for chunk in self._chunks(place, number, call, each)]
        return b"".join(map(event, chunks))

    def usage_chunk(self, outputs: Sequence[RequestOutput]) -> dict[str, object]:
        usage = usage_of(output.usage for output in outputs)
        return {**self.base, "choices": [], "usage": usage}

    def _whole_choice(
        self, place: int, output: RequestOutput, choice: Completion
    ) -> dict[str, object]:
        logprobs = None
        if choice.logprobs is not None:
            pieces = self._pieces(place)
            if self._echo:
                prompt = pieces.prompt(output.prompt_token_ids, output.prompt_logprobs or ())
                logprobs = joined(prompt, pieces.answer(choice.logprobs))
            else:
                logprobs = pieces.answer(choice.logprobs)
        return {
            "index": place * self._params.n + choice.index,
            "text": (self._texts[place] if self._echo else "") + choice.text,
            "logprobs": logprobs,
            "finish_reason": END_REASONS[choice.finish_reason],
        }

    def _chunks(
        self, place: int, number: int, call: AsyncCall, delta: Delta
    ) -> list[dict[str, object]]:
        text, logprobs = delta.text, None
        asked = self._params.logprobs is not None
        if asked:
            if number not in self._logprobs:
                self._logprobs[number] = self._pieces(place)
            logprobs = self._logprobs[number].answer(delta.logprobs)
        if self._echo and number not in self._begun:
            self._begun.add(number)
            text = self._texts[place] + text
            entries = call.handle.prompt_logprobs
            if asked and entries is not None:
                # Its offsets start before those of the answer.
                prompt = self._pieces(place).prompt(call.handle.prepared.token_ids, entries)
                logprobs = prompt if logprobs is None else joined(prompt, logprobs)
        if not (text or delta.logprobs or delta.finish_reason):
            return []
        reason = None if delta.finish_reason is None else END_REASONS[delta.finish_reason]
        return [self._chunk(number, text, logprobs, reason)]

    def _chunk(
        self, number: int, text: object, logprobs: object, reason: str | None
    ) -> dict[str, object]:
        choice = {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return {**self.base, "choices": [choice], **self._usage}

    def _pieces(self, place: int) -> LegacyLogprobs:
        """Log-probabilities of one choice; an echo's own part is counted from the beginning."""
        return LegacyLogprobs(
            self._tokenizer,
            tops=bool(self._params.logprobs),
            prompt_text=self._prompt_text(self._prepared[place]),
        )

    def _prompt_text(self, prepared: Prepared) -> str:
        if prepared.text is not None:
            return prepared.text
        return self._tokenizer.decode(prepared.token_ids)
