"""The official client of the OpenAI API against a running server."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import openai
import pytest

from http_harness import LONG_SETTINGS, PATIENCE_SECONDS, Server, octavo_serve
from openai_checks import (
    check_chat,
    check_completions,
    check_errors,
    check_models,
    client_of,
)

CHECKS = [check_models, check_completions, check_chat, check_errors]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_client_works_unchanged(server: Server, check) -> None:  # type: ignore[no-untyped-def]
    with client_of(server) as client:
        check(client, "tiny")


def test_the_asynchronous_client_asks_many_things_at_once(server: Server) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            answers = await asyncio.gather(
                *(
                    client.completions.create(
                        model="tiny", prompt="the cat", max_tokens=8, seed=number
                    )
                    for number in range(24)
                )
            )
        return [answer.choices[0].text for answer in answers]

    together = asyncio.run(ask())
    alone = [
        server.post("/v1/completions", {"prompt": "the cat", "max_tokens": 8, "seed": number})
        for number in range(24)
    ]
    assert together == [reply.json()["choices"][0]["text"] for reply in alone]


def test_leaving_a_stream_of_the_client_cancels_it(long_server: Server) -> None:
    with client_of(long_server) as client:
        stream = client.completions.create(
            model="long",
            prompt="the cat",
            max_tokens=8000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        stream.close()
    long_server.wait_idle()


def test_errors_of_the_engine_have_their_types(long_path: Path) -> None:
    with octavo_serve(long_path, settings=LONG_SETTINGS) as server, client_of(server) as client:
        raised: list[BaseException] = []
        begun = threading.Event()

        def ask(stream: bool) -> None:
            try:
                answer = client.completions.create(
                    model="long",
                    prompt="a",
                    max_tokens=8000,
                    stream=stream,
                    extra_body={"ignore_eos": True},
                )
                for _ in answer:
                    begun.set()
            except openai.APIError as error:
                raised.append(error)

        threads = [threading.Thread(target=ask, args=(each,)) for each in (True, False)]
        for thread in threads:
            thread.start()
        server.wait_until(lambda: server.metric("octavo_open_calls") == 2)
        # A stream that has not begun would be told with a status, as the other call is.
        assert begun.wait(PATIENCE_SECONDS)
        os.kill(server.engine_process(), signal.SIGKILL)
        for thread in threads:
            thread.join()
        kinds = {type(error) for error in raised}
        assert kinds == {openai.APIError, openai.InternalServerError}
        assert all(error.code == "engine_error" for error in raised)  # type: ignore[attr-defined]
