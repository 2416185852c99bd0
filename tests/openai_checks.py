"""What an unchanged client of the OpenAI API may expect, on any model with a chat template."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import openai
import pytest

from http_harness import Server

HELLO: list[dict[str, str]] = [{"role": "user", "content": "Name the capital of France."}]


@contextmanager
def client_of(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def check_completions(client: openai.OpenAI, model: str) -> None:
    ask = {"model": model, "prompt": "The capital of France is", "max_tokens": 8, "seed": 4}
    whole = client.completions.create(**ask, logprobs=2, n=2)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)
        assert all(value <= 0 for value in choice.logprobs.token_logprobs)
    pieces = ["", ""]
    for chunk in client.completions.create(**ask, n=2, stream=True):
        for piece in chunk.choices:
            pieces[piece.index] += piece.text
    assert pieces == [choice.text for choice in whole.choices]
    again = client.completions.create(**ask, n=2)
    assert [choice.text for choice in again.choices] == pieces


def check_chat(client: openai.OpenAI, model: str) -> None:
    ask = {"model": model, "messages": HELLO, "max_completion_tokens": 12, "seed": 4}
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2, n=2)
    assert whole.choices[0].message.role == "assistant"
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        shown = b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs.content)
        assert shown.decode("utf-8", "replace").startswith(choice.message.content or "")
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    pieces = ["", ""]
    usage = None
    stream = client.chat.completions.create(
        **ask, n=2, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for piece in chunk.choices:
            pieces[piece.index] += piece.delta.content or ""
    assert pieces == [choice.message.content for choice in whole.choices]
    assert usage is not None
    assert whole.usage is not None
    assert usage.total_tokens == whole.usage.total_tokens
    other = client.chat.completions.create(**{**ask, "seed": 5}, temperature=2)
    assert other.choices[0].message.content != pieces[0]


def check_no_chat(client: openai.OpenAI, model: str) -> None:
    """A model without a template says what to use instead."""
    with pytest.raises(openai.BadRequestError, match="/v1/completions") as refused:
        client.chat.completions.create(model=model, messages=HELLO)
    assert refused.value.param == "messages"


def check_errors(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nobody", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=model, messages=HELLO, temperature=-1)
    assert wrong.value.param == "temperature"
    assert wrong.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=model, prompt=[5] * 100_000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(
            model=model, messages=HELLO, response_format={"type": "json_object"}
        )
    assert tools.value.param == "response_format"


def check_models(client: openai.OpenAI, model: str) -> None:
    (listed,) = client.models.list().data
    assert listed.id == model
    assert client.models.retrieve(model).id == model
