"""The HTTP server on the three real models (about a minute): client, bits, text."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from http_harness import Server, octavo_serve
from openai_checks import (
    check_chat,
    check_completions,
    check_errors,
    check_models,
    check_no_chat,
    client_of,
)

SETTINGS = ("memory.kv_bytes=128MB", "scheduler.max_batch_size=32", "scheduler.token_budget=256")
MODELS = ("smollm2", "gemma3", "qwen")


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest) -> Iterator[Server]:
    path: Path = request.getfixturevalue(f"{request.param}_path")
    with octavo_serve(path, settings=SETTINGS) as running:
        yield running


def test_the_client_of_the_openai_api_works_unchanged(served: Server) -> None:
    with client_of(served) as client:
        model = client.models.list().data[0].id
        check_models(client, model)
        check_completions(client, model)
        # Gemma 3 270M is a base model, its file has no template.
        (check_no_chat if model == "gemma-3-270m-q4_k_m" else check_chat)(client, model)
        check_errors(client, model)


def question(number: int) -> dict[str, Any]:
    """Twenty that differ in length and sampling; several pages long, so that they can be cached."""
    text = f"Note {number}. " + "The river rose and the town slept. " * (5 + number % 7)
    return {
        "prompt": text,
        "max_tokens": 6 + number % 5,
        "ignore_eos": True,
        "seed": number,
        "temperature": number % 3,
        "logprobs": 3,
        "echo": number % 4 == 0,
    }


def test_twenty_requests_have_the_same_bits_alone_together_and_repeated(
    smollm2_path: Path,
) -> None:
    with octavo_serve(smollm2_path, settings=SETTINGS) as server:
        alone = [ask(server, number) for number in range(20)]
    with octavo_serve(smollm2_path, settings=SETTINGS) as server:
        together: list[Any] = [None] * 20

        def work(number: int) -> None:
            together[number] = ask(server, number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        repeated = [ask(server, number) for number in range(20)]
    assert [bits(answer) for answer in together] == [bits(answer) for answer in alone]
    assert [bits(answer) for answer in repeated] == [bits(answer) for answer in alone]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in repeated]
    assert all(count > 0 for number, count in enumerate(cached) if number % 4)


def ask(server: Server, number: int) -> Any:
    reply = server.post("/v1/completions", question(number))
    assert reply.status == 200, reply.body
    return reply.json()


def bits(answer: Any) -> str:
    """JSON gives a float back exactly, so equal text is equal bits."""
    return json.dumps(answer["choices"])
