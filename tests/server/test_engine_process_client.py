"""The asyncio client against an engine loop: same answers, nothing unbounded, every end is told."""

from __future__ import annotations

import asyncio

import pytest

from octavo.core.errors import EngineError, InvalidRequest, Overloaded
from octavo.core.request import FinishReason
from octavo.core.sampling import SamplingParams
from octavo.core.service_classes import BUILT_IN, ServiceClass
from octavo.engine.calls import QUEUE_LIMIT, WHOLE_LIMIT
from octavo.engine.client import AsyncCall, AsyncEngineClient
from octavo.engine.messages import Drain, encode
from octavo.engine.prompts import Prepared
from octavo.observe.prometheus import ServingMetrics
from octavo.text.tokenizer import Tokenizer
from remote_harness import (
    VOCABULARY,
    endless,
    fake,
    run,
    serving_loop,
    slow,
    tokenizer_of,
    until,
)
from tiny import make_tiny_gguf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def test_time_is_up_while_running_and_while_queued(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        running = client.submit(endless(client), timeout_seconds=0.4)
        await anext(running)
        queued = client.submit(endless(client), timeout_seconds=0.2)
        late = client.submit(endless(client), timeout_seconds=0.0)
        for call in (late, queued, running):
            output = await call.result()
            assert output.finish_reason is FinishReason.TIMEOUT
        assert (await running.result()).usage.completion_tokens > 0
        assert queued.queue_seconds is None
        await until(lambda: client.stats is not None and client.stats.cancelled == 3)
        assert client.stats is not None
        assert client.stats.pages_held == 0

    with serving_loop(slow(0.005), max_rows=1) as loop:
        run(loop, tokenizer, work)


def test_a_timer_does_not_outlive_its_call(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        call = client.submit(client.prepare("the", params), timeout_seconds=600)
        assert (await call.result()).finish_reason is FinishReason.LENGTH
        assert call.timers[WHOLE_LIMIT].cancelled()

    with serving_loop(fake()) as loop:
        run(loop, tokenizer, work)


def test_a_limit_of_the_queue_counts_until_there_is_a_row(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        running = client.submit(endless(client), queue_timeout_seconds=600)
        queued = client.submit(endless(client), queue_timeout_seconds=0.1, timeout_seconds=600)
        await anext(running)
        assert (await queued.result()).finish_reason is FinishReason.TIMEOUT
        assert queued.expired == (QUEUE_LIMIT, 0.1)
        assert not running.timers
        assert not running.done

    with serving_loop(slow(0.005), max_rows=1) as loop:
        run(loop, tokenizer, work)


def test_who_was_served_less_comes_first(tokenizer: Tokenizer) -> None:
    order: list[str] = []
    model = slow(0.3)  # long enough for the late one to come in time

    async def work(client: AsyncEngineClient) -> None:
        def ask(tenant: str, number: int) -> AsyncCall:
            params = SamplingParams(max_tokens=1, ignore_eos=True)
            return client.submit(client.prepare([number + 1] * 500, params), tenant=tenant)

        async def note(tenant: str, call: AsyncCall) -> None:
            await call.result()
            order.append(tenant)

        calls = [("many", ask("many", number)) for number in range(10)]
        await until(lambda: client.stats is not None and client.stats.running == 1)
        calls.append(("one", ask("one", 99)))
        await calls[-1][1].taken()
        model.step_seconds = 0.0
        await asyncio.gather(*(note(*each) for each in calls))

    with serving_loop(model, max_rows=1) as loop:
        run(loop, tokenizer, work)
    assert order.index("one") < 9


def test_an_early_refusal_goes_by_the_newest_numbers(tokenizer: Tokenizer) -> None:
    full = ServiceClass("standard", queue_requests=1)

    async def work(client: AsyncEngineClient) -> None:
        client.check_room(full)
        calls = [client.submit(endless(client))]
        await anext(calls[0])
        calls.append(client.submit(endless(client)))
        await until(lambda: client.stats is not None and client.stats.waiting == 1)
        with pytest.raises(Overloaded, match="1 requests wait already") as found:
            client.check_room(full)
        assert found.value.reason == "queue_requests"
        client.check_room(ServiceClass("standard", queue_requests=2))
        for call in calls:
            call.cancel()
        await until(lambda: client.stats is not None and client.stats.waiting == 0)
        client.check_room(full)

    with serving_loop(slow(0.005), max_rows=1, classes=[full]) as loop:
        run(loop, tokenizer, work)


def test_a_stop_string_ends_the_request_in_the_engine(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        free = await client.submit(
            client.prepare(
                "the cat", SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
            )
        ).result()
        stop = free.text[40:44]
        params = SamplingParams(max_tokens=None, temperature=0, ignore_eos=True, stop=(stop,))
        cut = await client.submit(client.prepare("the cat", params)).result()
        assert cut.text == free.text[: free.text.index(stop)]
        assert cut.finish_reason is FinishReason.STOP
        await until(lambda: client.stats is not None and client.stats.finished == 2)
        assert client.stats is not None
        assert client.stats.pages_held == 0

    with serving_loop(slow(0.002)) as loop:
        run(loop, tokenizer, work)


def test_a_thousand_calls_opened_and_cancelled_leave_nothing(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        neighbour_params = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
        prepared = client.prepare("one two three", neighbour_params)
        expected = (await client.submit(prepared).result()).text
        neighbour = client.submit(prepared)
        long_prompt = [number % 250 for number in range(400)]
        for batch in range(50):
            calls = []
            for number in range(20):
                prompt: str | list[int] = long_prompt[number:] if number % 2 else "the old man"
                calls.append(client.submit(endless(client, prompt)))
            if batch % 3 == 0:
                await anext(calls[0])
            for call in calls:
                call.cancel()
                assert (await call.result()).finish_reason is FinishReason.CANCELLED
            await asyncio.sleep(0)
        assert (await neighbour.result()).text == expected
        # The neighbour and every one of the thousand, and nothing else, have been there.
        await until(
            lambda: (
                client.stats is not None
                and (client.stats.cancelled, client.stats.finished) == (1000, 2)
            )
        )
        assert client.stats is not None
        assert client.stats.running + client.stats.waiting == 0
        assert client.stats.pages_held == 0
        assert client.stats.pages_free + client.stats.pages_cached == 64
        assert client.open_calls == 0
        assert loop.engine.scheduler.audit() == []
        assert not loop.server._owners

    with serving_loop(fake()) as loop:
        run(loop, tokenizer, work)


def test_leaving_a_block_cancels(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        async with client.submit(endless(client)) as call:
            await anext(call)
        assert call.done
        assert (await call.result()).finish_reason is FinishReason.CANCELLED
        call.cancel()
        await until(lambda: client.stats is not None and client.stats.cancelled == 1)

    with serving_loop(slow(0.002)) as loop:
        run(loop, tokenizer, work)


def test_what_the_engine_refuses_is_raised_with_its_field(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        prepared = Prepared(None, (1, VOCABULARY), SamplingParams(), 4, frozenset())
        for reads in (True, False):
            call = client.submit(prepared)
            with pytest.raises(InvalidRequest) as caught:
                await (anext(call) if reads else call.result())
            assert caught.value.field == "prompt"
        with pytest.raises(InvalidRequest):
            client.prepare([VOCABULARY], SamplingParams())

    with serving_loop(fake()) as loop:
        run(loop, tokenizer, work)


def test_an_engine_that_leaves_ends_open_calls_and_refuses_new_ones(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        prepared = endless(client)
        call = client.submit(prepared)
        await anext(call)

        def broken() -> None:
            raise EngineError("nothing can run")

        loop.engine.step = broken  # type: ignore[method-assign, assignment]
        with pytest.raises(EngineError, match="nothing can run"):
            await call.result()
        with pytest.raises(EngineError, match="starting"):
            client.submit(prepared)
        assert client.unready_reason() is not None
        with pytest.raises(EngineError, match="no engine answered"):
            await client.wait_ready(0.05)

    with serving_loop(slow(0.002)) as loop:
        run(loop, tokenizer, work)


def test_an_engine_that_is_silent_is_not_ready(tokenizer: Tokenizer) -> None:
    now = [1000.0]

    async def work(client: AsyncEngineClient) -> None:
        assert client.unready_reason() is None
        now[0] += 20.0
        assert "not answered for 20 s" in str(client.unready_reason())
        await until(lambda: client.unready_reason() is None)  # it answers the next ping

    with serving_loop(fake()) as loop:
        run(loop, tokenizer, work, clock=lambda: now[0])


def test_draining_lets_open_calls_finish(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        calls = [client.submit(client.prepare("the cat", params)) for _ in range(10)]
        await anext(calls[0])
        client._tell(Drain())
        late = client.submit(client.prepare("the cat", params))
        with pytest.raises(EngineError, match="shutting down"):
            await late.result()
        for call in calls:
            assert (await call.result()).usage.completion_tokens == 100
        await until(lambda: not loop.thread.is_alive())

    with serving_loop(slow(0.005)) as loop:
        run(loop, tokenizer, work)


def test_metrics_follow_calls_and_engine(tokenizer: Tokenizer) -> None:
    metrics = ServingMetrics("tiny")

    async def work(client: AsyncEngineClient) -> None:
        params = SamplingParams(max_tokens=10, ignore_eos=True, n=2)
        prompt = [number % 250 for number in range(40)]
        for _ in range(2):
            await client.submit(client.prepare(prompt, params), service_class="batch").result()
        cancelled = client.submit(endless(client))
        cancelled.cancel()
        await until(lambda: client.stats is not None and client.stats.cancelled == 1)

    with serving_loop(slow(0.002), classes=BUILT_IN) as loop:
        run(loop, tokenizer, work, observer=metrics)
    metrics.rejected("invalid_request")
    metrics.restarted()
    text = metrics.render().decode()
    labels = 'model_name="tiny",service_class="batch"'
    assert f"octavo_offered_requests_total{{{labels}}} 2.0" in text
    for target in ("first_token", "inter_token", "both"):
        assert f'octavo_kept_requests_total{{{labels},target="{target}"}} 2.0' in text
    assert f"octavo_prompt_tokens_total{{{labels}}} 80.0" in text
    assert f"octavo_cached_prompt_tokens_total{{{labels}}} 32.0" in text
    assert f"octavo_generated_tokens_total{{{labels}}} 40.0" in text
    assert f"octavo_time_to_first_token_seconds_count{{{labels}}} 2.0" in text
    assert f"octavo_inter_token_seconds_count{{{labels}}} 36.0" in text
    assert f"octavo_queue_seconds_count{{{labels}}} 4.0" in text
    outcome = 'octavo_requests_total{model_name="tiny",outcome='
    assert f'{outcome}"length",service_class="batch"}} 4.0' in text
    assert f'{outcome}"cancelled",service_class="standard"}} 1.0' in text
    assert f'{outcome}"invalid_request",service_class="standard"}} 1.0' in text
    assert 'octavo_engine_restarts_total{model_name="tiny"} 1.0' in text
    assert 'octavo_open_calls{model_name="tiny"} 0.0' in text


def test_the_engine_state_is_among_the_metrics(tokenizer: Tokenizer) -> None:
    metrics = ServingMetrics("tiny")

    async def work(client: AsyncEngineClient) -> None:
        await client.submit(client.prepare("the", SamplingParams(max_tokens=5))).result()
        await until(lambda: client.stats is not None and client.stats.finished == 1)
        assert client.stats is not None
        assert 0 < client.stats.batch_fullness <= 1
        assert client.stats.idle_seconds > 0

    with serving_loop(fake()) as loop:
        run(loop, tokenizer, work, observer=metrics)
    text = metrics.render().decode()
    assert 'octavo_kv_pages{model_name="tiny",state="free"} 64.0' in text
    assert 'octavo_kv_pages{model_name="tiny",state="held"} 0.0' in text
    steps = int(loop.engine.metrics.steps.value)
    assert f'octavo_engine_steps_total{{model_name="tiny"}} {float(steps)}' in text
    assert f'octavo_step_seconds_bucket{{le="+Inf",model_name="tiny"}} {float(steps)}' in text
    assert 'octavo_engine_predicted_seconds_total{model_name="tiny"}' in text
    assert 'octavo_last_step_age_seconds{model_name="tiny"}' in text
    assert 'octavo_waiting{model_name="tiny"} 0.0' in text
    labels = 'model_name="tiny",service_class="standard"'
    assert f"octavo_class_admitted_total{{{labels}}} 1.0" in text
    assert f"octavo_class_waiting{{{labels}}} 0.0" in text


def test_a_full_socket_refuses_requests_but_loses_no_cancel(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        call = client.submit(endless(client))
        await anext(call)
        connection = client._connection
        assert connection is not None
        send, connection.send = connection.send, lambda message: False  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="as fast as they come"):
            client.submit(endless(client))
        call.cancel()
        assert client.open_calls == 0
        connection.send = send  # type: ignore[method-assign]
        await until(lambda: client.stats is not None and client.stats.cancelled == 1)

    with serving_loop(slow(0.005)) as loop:
        run(loop, tokenizer, work)


def test_garbage_from_an_engine_ends_the_connection_not_the_client(tokenizer: Tokenizer) -> None:
    async def work(client: AsyncEngineClient) -> None:
        call = client.submit(endless(client))
        await anext(call)
        frontends = loop.server._frontends
        original = frontends._passed

        def damage(frontend: object, data: bytes) -> bool:
            frontends._passed = original  # type: ignore[method-assign]
            return original(frontend, b"\xc1" + encode(Drain()))  # type: ignore[arg-type]

        frontends._passed = damage  # type: ignore[method-assign]
        with pytest.raises(EngineError):
            await call.result()
        await client.wait_ready(60)
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        assert len((await client.submit(client.prepare("a", params)).result()).token_ids) == 3

    with serving_loop(slow(0.005)) as loop:
        run(loop, tokenizer, work)
