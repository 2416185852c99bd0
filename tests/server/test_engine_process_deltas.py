"""Deltas on their way to their reader: one a token, merged, or taken without waking anybody."""

from __future__ import annotations

import asyncio

import pytest

from octavo.core.request import FinishReason
from octavo.core.sampling import SamplingParams
from octavo.engine.calls import MAX_WAITING_DELTAS
from octavo.engine.client import AsyncCall, AsyncEngineClient, Delta
from octavo.text.tokenizer import Tokenizer
from remote_harness import endless, fake, run, serving_loop, slow, tokenizer_of
from tiny import make_tiny_gguf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


async def deltas_of(call: AsyncCall) -> list[Delta]:
    return [delta async for delta in call]


def test_a_reader_that_keeps_up_gets_a_delta_a_token(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        params = SamplingParams(max_tokens=30, temperature=0, logprobs=2, ignore_eos=True)
        call = client.submit(client.prepare("the cat", params))
        deltas = await deltas_of(call)
        output = await call.result()
        assert "".join(delta.text for delta in deltas) == output.text
        assert [token for delta in deltas for token in delta.token_ids] == list(output.token_ids)
        assert [e for delta in deltas for e in delta.logprobs] == list(output.outputs[0].logprobs)
        assert deltas[-1].finish_reason is FinishReason.LENGTH
        assert call.queue_seconds is not None
        assert output.timing.first_token_seconds is not None

    with serving_loop(slow(0.01)) as loop:
        run(loop, tokenizer, work)


def test_a_slow_reader_gets_everything_in_fewer_deltas(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        params = SamplingParams(max_tokens=600, n=2, seed=3, logprobs=1, ignore_eos=True)
        call = client.submit(client.prepare("the cat", params))
        most = 0
        while not call.done:
            most = max(most, call.waiting_deltas)
            await asyncio.sleep(0.001)
        assert most <= 2 * MAX_WAITING_DELTAS
        deltas = await deltas_of(call)
        assert len(deltas) == 2
        output = await call.result()
        for delta, completion in zip(deltas, output.outputs, strict=True):
            assert delta.text == completion.text
            assert delta.token_ids == completion.token_ids
            assert delta.logprobs == completion.logprobs
            assert len(delta.token_ids) == 600
            assert delta.finish_reason is completion.finish_reason

    with serving_loop(fake(), pages=200) as loop:
        run(loop, tokenizer, work)


def test_deltas_are_taken_as_they_come_or_left_to_the_reader(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        params = SamplingParams(max_tokens=40, n=2, seed=5, ignore_eos=True)
        call = client.submit(client.prepare("the cat", params))
        taken: list[Delta] = []
        read: list[Delta] = []

        def take(deltas: list[Delta]) -> bool:
            if len(taken) in range(20, 40) or any(delta.finish_reason for delta in deltas):
                return False
            taken.extend(deltas)
            return True

        call.on_deltas = take
        async for delta in call:
            read.append(delta)
            taken.append(delta)
        assert len(taken) > len(read) > 0
        output = await call.result()
        for index, completion in enumerate(output.outputs):
            mine = [delta for delta in taken if delta.index == index]
            assert "".join(delta.text for delta in mine) == completion.text
            assert [t for delta in mine for t in delta.token_ids] == list(completion.token_ids)
            assert mine[-1].finish_reason is completion.finish_reason

    with serving_loop(slow(0.01)) as loop:
        run(loop, tokenizer, work)


def test_a_defect_in_taking_deltas_is_the_readers_alone(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        def fail(deltas: list[Delta]) -> bool:
            raise ZeroDivisionError

        broken, other = (client.submit(endless(client)) for _ in range(2))
        async with broken, other:
            broken.on_deltas = fail
            with pytest.raises(ZeroDivisionError):
                await deltas_of(broken)
            await anext(other)
            await anext(other)

    with serving_loop(slow(0.01)) as loop:
        run(loop, tokenizer, work)
