"""The engine's loop against frontends of all manners: a neighbour never notices."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq

from fake_model import FakeModel
from octavo.core.clock import monotonic
from octavo.core.errors import EngineError
from octavo.core.ids import RequestId
from octavo.core.request import FinishReason
from octavo.engine.frontends import OutboxLimits
from octavo.engine.messages import (
    Cancel,
    Closing,
    Drain,
    Dropped,
    Finish,
    Hello,
    Outputs,
    Ping,
    Ready,
    Refused,
    Submit,
    encode,
)
from remote_harness import (
    PATIENCE_SECONDS,
    VOCABULARY,
    Loop,
    RawFrontend,
    SlowModel,
    serving_loop,
    wire_request,
)


@pytest.fixture
def loop() -> Iterator[Loop]:
    with serving_loop() as running:
        yield running


def alone(**request: object) -> list[int]:
    """The tokens of a request that has an engine for itself."""
    with serving_loop() as running, RawFrontend(running.address) as frontend:
        frontend.say(Submit((wire_request("a", **request),)))  # type: ignore[arg-type]
        return frontend.tokens_of("a")


def slow_model() -> SlowModel:
    return SlowModel(VOCABULARY, 1024, answers=range(300, 500))


def test_a_request_is_answered_and_its_start_is_told(loop: Loop) -> None:
    with RawFrontend(loop.address) as frontend:
        frontend.say(Submit((wire_request("a"),)))
        first = frontend.expect(Outputs)
        assert [started.request_id for started in first.started] == ["a"]
        assert first.started[0].queue_seconds >= 0.0
        rest = frontend.tokens_of("a")
        assert len(first.outputs[0].token_ids) + len(rest) == 8
        stats = frontend.stats(lambda stats: stats.finished == 1)
        assert (stats.running, stats.waiting, stats.pages_held) == (0, 0, 0)
        assert stats.step_seconds.total > 0
        assert sum(stats.step_seconds.counts) == stats.steps == 8


def test_garbage_does_not_touch_a_neighbour(loop: Loop) -> None:
    expected = alone(max_new_tokens=300)
    garbage = [
        b"",
        b"\x00",
        b"\xc1" * 100,
        b"\x91" * 100_000,
        b'{"type": "submit"}',
        encode(Ready(loop.server._facts)),
        encode(Submit((wire_request("x"),)))[:-3],
        encode(Submit((wire_request("x"),))).replace(b"temperature", b"temperaturE"),
    ]
    with RawFrontend(loop.address) as good, RawFrontend(loop.address) as bad:
        good.say(Submit((wire_request("a", max_new_tokens=300),)))
        for data in garbage:
            bad.socket.send(data)
        bad.socket.send_multipart([b"", encode(Ping(1))])
        assert good.tokens_of("a") == expected
        bad.say(Ping(2))
        stats = bad.stats(lambda stats: stats.ping == 2)
        # An unknown field is ignored: the last one is a request with a default temperature.
        assert stats.bad_messages == len(garbage)


def test_nobody_is_served_without_a_greeting(loop: Loop) -> None:
    with RawFrontend(loop.address, hello=False) as stranger:
        stranger.say(Submit((wire_request("a"),)))
        assert "does not know" in stranger.expect(Dropped).reason
        stranger.say(Hello(protocol=99))
        assert "protocol 99" in stranger.expect(Dropped).reason
        stranger.say(Hello())
        stranger.expect(Ready)
    assert not loop.engine.has_work


def test_frontends_share_ids_without_meeting(loop: Loop) -> None:
    prompts = [(5, 6, 7), (8, 9, 10, 11)]
    expected = [alone(prompt=prompt, max_new_tokens=200) for prompt in prompts]
    with RawFrontend(loop.address) as one, RawFrontend(loop.address) as other:
        one.say(Submit((wire_request("a", prompts[0], max_new_tokens=200),)))
        other.say(Submit((wire_request("a", prompts[1], max_new_tokens=200),)))
        third = wire_request("b", (1, 2, 3), max_new_tokens=1000)
        one.say(Submit((third,)))
        other.say(Cancel((RequestId("b"), RequestId("1/b"), RequestId("nobody"))))
        other.say(Finish((RequestId("b"),)))
        assert one.tokens_of("a") == expected[0]
        assert other.tokens_of("a") == expected[1]
        assert len(one.tokens_of("b")) > 0


def test_a_cancelled_request_frees_its_pages_before_the_next_step() -> None:
    model = slow_model()
    model.step_seconds = 0.05
    with serving_loop(model, max_rows=2) as loop, RawFrontend(loop.address) as frontend:
        long_prompt = tuple(number % 300 for number in range(600))  # three chunks of 256 tokens
        names = tuple(RequestId(name) for name in ("running", "prefilling", "queued"))
        frontend.say(Submit((wire_request("running", (1, 2), max_new_tokens=100),)))
        frontend.expect(Outputs)
        frontend.say(Submit((wire_request("prefilling", long_prompt, max_new_tokens=100),)))
        # It has more to compute, so it stays behind the other, which came in the same moment.
        frontend.say(Submit((wire_request("queued", (9,), max_new_tokens=900),)))
        frontend.expect(
            Outputs,
            lambda message: any(each.request_id == "prefilling" for each in message.started),
        )
        frontend.say(Cancel(names))
        frontend.say(Ping(7))
        stats = frontend.stats(lambda stats: stats.ping == 7)
        assert (stats.cancelled, stats.running, stats.waiting, stats.pages_held) == (3, 0, 0, 0)
        assert stats.computed_tokens < 600
        assert stats.admitted == 2


def test_a_call_is_taken_whole_or_not_at_all(loop: Loop) -> None:
    good = wire_request("a", max_new_tokens=500)
    bad_requests = [
        (wire_request("b", tuple([1] * 2000)), "context_length_exceeded"),
        (wire_request("b", ()), "invalid_request"),
        (wire_request("b", (1, VOCABULARY)), "invalid_request"),
        (wire_request("b", (1, -1)), "invalid_request"),
        (wire_request("b", logit_bias={VOCABULARY: 1.0}), "invalid_request"),
        (wire_request("a"), "invalid_request"),
    ]
    with RawFrontend(loop.address) as frontend:
        for number, (bad, code) in enumerate(bad_requests):
            frontend.say(Submit((good, bad)))
            refused = frontend.expect(Refused)
            assert refused.request_ids == (good.id, bad.id)
            assert refused.problem.code == code
            frontend.say(Ping(number))
            stats = frontend.stats(lambda stats, number=number: stats.ping == number)
            assert (stats.running, stats.waiting, stats.pages_held) == (0, 0, 0)
        frontend.say(Submit((good,)))
        assert len(frontend.tokens_of("a")) == 500


def test_a_failing_step_ends_only_the_request_at_fault() -> None:
    expected = alone(max_new_tokens=200)
    model = FakeModel(VOCABULARY, 1024, answers=range(300, 500), poison=[13])
    with serving_loop(model) as loop, RawFrontend(loop.address) as frontend:
        frontend.say(Submit((wire_request("a", max_new_tokens=200),)))
        with RawFrontend(loop.address) as other:
            other.say(Submit((wire_request("bad", (13,)),)))
            outputs = other.expect(Outputs, lambda message: bool(message.outputs)).outputs
            assert outputs[0].finish_reason is FinishReason.ERROR
            assert "poisoned" in (outputs[0].error or "")
        assert frontend.tokens_of("a") == expected


def test_a_frontend_that_does_not_read_is_dropped_and_told() -> None:
    expected = alone(prompt=(4, 4), max_new_tokens=900)
    limits = OutboxLimits(messages=20)
    with (
        serving_loop(slow_model(), outbox_limits=limits) as loop,
        RawFrontend(loop.address) as good,
        RawFrontend(loop.address, queued_messages=1) as slow,
    ):
        slow.say(Submit((wire_request("a", max_new_tokens=1000),)))
        slow.expect(Outputs)
        good.say(Submit((wire_request("b", (4, 4), max_new_tokens=900),)))
        for number in range(6000):
            slow.say(Ping(number))
        assert good.tokens_of("b") == expected
        good.say(Ping(1))
        stats = good.stats(lambda stats: stats.ping == 1)
        assert stats.dropped_frontends == 1
        assert stats.cancelled == 1
        assert stats.pages_held == 0
        assert "did not read" in slow.expect(Dropped).reason
        slow.say(Hello())
        slow.expect(Ready)
        slow.say(Submit((wire_request("c"),)))
        assert len(slow.tokens_of("c")) == 8


def test_requests_of_a_vanished_frontend_are_cancelled() -> None:
    with serving_loop(slow_model(), max_rows=1) as loop, RawFrontend(loop.address) as watcher:
        gone = RawFrontend(loop.address)
        gone.say(Submit((wire_request("a", max_new_tokens=1000),)))
        gone.expect(Outputs)
        gone.say(Submit((wire_request("b", max_new_tokens=1000),)))
        watcher.stats(lambda stats: stats.waiting == 1)
        gone.close()
        stats = watcher.stats(lambda stats: stats.cancelled == 2)
        assert (stats.running, stats.waiting, stats.pages_held) == (0, 0, 0)
        assert stats.generated_tokens < 1000


def test_draining_finishes_what_is_there_and_takes_nothing_new() -> None:
    with serving_loop(slow_model()) as loop, RawFrontend(loop.address) as frontend:
        frontend.say(Submit((wire_request("a", max_new_tokens=100),)))
        first = frontend.expect(Outputs)
        frontend.say(Drain())
        frontend.say(Submit((wire_request("b"),)))
        tokens = len(first.outputs[0].token_ids)
        refused = None
        ended = False
        while not ended:
            message = frontend.hear()
            if isinstance(message, Refused):
                refused = message
            elif isinstance(message, Outputs):
                tokens += sum(len(output.token_ids) for output in message.outputs)
                ended = any(output.finish_reason for output in message.outputs)
        assert tokens == 100
        assert refused is not None
        assert refused.problem.code == "engine_error"
        assert "shutting down" in frontend.expect(Closing).reason
        loop.thread.join(60)
        assert loop.outcome == ["the engine is shutting down"]


def test_an_engine_that_cannot_go_on_says_so() -> None:
    with serving_loop() as loop, RawFrontend(loop.address) as frontend:

        def broken() -> None:
            raise EngineError("nothing can run")

        loop.engine.step = broken  # type: ignore[method-assign, assignment]
        frontend.say(Submit((wire_request("a"),)))
        assert "nothing can run" in frontend.expect(Closing).reason
        loop.thread.join(60)
        assert isinstance(loop.outcome[0], EngineError)


def test_an_idle_engine_sleeps() -> None:
    calls = 0

    def counting() -> float:
        nonlocal calls
        calls += 1
        return monotonic()

    with serving_loop(clock=counting) as loop, RawFrontend(loop.address) as frontend:
        frontend.say(Submit((wire_request("a"),)))
        frontend.stats(lambda stats: stats.finished == 1)
        before, deadline = -1, monotonic() + PATIENCE_SECONDS
        while calls != before:  # it may take a busy machine a while to get there
            assert monotonic() < deadline
            before = calls
            time.sleep(0.3)


def test_an_idle_engine_wakes_once_to_give_its_memory_back() -> None:
    model = FakeModel(VOCABULARY, 1024, answers=range(300, 500))
    with (
        serving_loop(model, idle_release_seconds=0.3) as loop,
        RawFrontend(loop.address) as frontend,
    ):
        prompt = tuple(range(1, 100))
        frontend.say(Submit((wire_request("a", prompt),)))
        tokens = frontend.tokens_of("a")
        frontend.stats(lambda stats: stats.finished == 1 and stats.pages_cached > 0)
        released = frontend.stats(lambda stats: stats.pages_cached == 0)
        assert (released.pages_free, released.kv_backed_bytes) == (64, 0)
        assert model.discards == 1
        assert loop.engine.seconds_to_rest() is None
        frontend.say(Submit((wire_request("b", prompt),)))
        assert frontend.tokens_of("b") == tokens


def test_messages_of_several_frames_are_counted_as_bad(loop: Loop) -> None:
    with RawFrontend(loop.address) as frontend:
        frontend.socket.send_multipart([encode(Ping(1)), encode(Ping(2))], zmq.NOBLOCK)
        frontend.say(Ping(3))
        assert frontend.stats(lambda stats: stats.ping is not None).bad_messages == 1
