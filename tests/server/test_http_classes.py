"""Service classes over HTTP: who gets which, what overload looks like, what answers say."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from http_harness import Server, app_on_fake
from octavo.core.service_classes import BUILT_IN, UNIFORM, Route, ServiceClass
from remote_harness import SlowModel

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
SHORT = {"prompt": "the cat", "max_tokens": 2, "ignore_eos": True}
LONG = {"prompt": [5, 6], "max_tokens": 1000, "ignore_eos": True, "stream": True}
IMPATIENT = (
    ServiceClass("fast", first_token_seconds=1e-6, inter_token_seconds=1e-6),
    *BUILT_IN,
)


@contextmanager
def served(
    path: Path,
    classes: tuple[ServiceClass, ...] = BUILT_IN,
    routes: tuple[Route, ...] = (),
    *,
    step_seconds: float = 0.0,
    **options: Any,
) -> Iterator[Server]:
    model = SlowModel(512, 1024, answers=range(300, 500))
    model.step_seconds = step_seconds
    service = {"classes": classes, "routes": routes}
    with app_on_fake(path, model, service_options=service, classes=classes, **options) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("asked", "found", "tier"),
    [
        ({}, "standard", None),
        ({"service_class": "realtime"}, "realtime", None),
        ({"service_tier": "auto"}, "standard", "default"),
        ({"service_tier": "default"}, "standard", "default"),
        ({"service_tier": "priority"}, "realtime", "priority"),
        ({"service_tier": "flex"}, "batch", "flex"),
        ({"service_tier": "flex", "service_class": "realtime"}, "realtime", "priority"),
    ],
)
def test_an_answer_names_its_class(
    server: Server, asked: dict[str, str], found: str, tier: str | None, stream: bool
) -> None:
    for path, body in (
        (COMPLETIONS, SHORT),
        (CHAT, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}),
    ):
        reply = server.post(path, {**body, **asked, "stream": stream})
        assert reply.status == 200, reply.body
        assert reply.headers["x-octavo-service-class"] == found
        for tree in reply.events if stream else [reply.json()]:
            assert tree["service_class"] == found
            assert tree.get("service_tier") == tier
    assert server.metric("octavo_offered_requests_total", service_class=found) >= 2


def test_an_unknown_class_is_told_the_known_ones(tiny_path: Path) -> None:
    classes = (*BUILT_IN, ServiceClass("nightly", weight=0.5))
    with served(tiny_path, classes) as server:
        reply = server.post(COMPLETIONS, {**SHORT, "service_class": "urgent"})
        assert reply.status == 400
        assert "realtime, standard, batch, nightly" in reply.error["message"]
        assert server.complete(**SHORT, service_class="nightly")["service_class"] == "nightly"


def test_with_classes_off_everybody_is_alike(tiny_path: Path) -> None:
    with served(tiny_path, UNIFORM) as server:
        for name in ("realtime", "standard", "batch"):
            assert server.complete(**SHORT, service_class=name)["service_class"] == "standard"
        assert server.post(COMPLETIONS, {**SHORT, "service_class": "urgent"}).status == 400


def test_routes_decide_for_those_who_name_nothing(tiny_path: Path) -> None:
    key = hashlib.sha256(b"secret").hexdigest()[:16]
    routes = (
        Route("realtime", key=key),
        Route("batch", prompt_tokens_above=20),
        Route("realtime", path="/v1/chat"),
    )
    with served(tiny_path, routes=routes) as server:

        def class_of(path: str = COMPLETIONS, token: str | None = None, **fields: Any) -> str:
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            reply = server.post(path, {"max_tokens": 1, **fields}, headers=headers)
            assert reply.status == 200, reply.body
            return reply.headers["x-octavo-service-class"]

        assert class_of(prompt=[5] * 20) == "standard"
        assert class_of(prompt=[5] * 21) == "batch"
        assert class_of(prompt=[[5], [5] * 21]) == "batch"
        assert class_of(prompt=[5] * 21, service_class="standard") == "standard"
        assert class_of(prompt=[5] * 21, service_tier="priority") == "realtime"
        assert class_of(prompt=[5] * 21, token="secret") == "realtime"
        assert class_of(prompt=[5] * 21, token="other") == "batch"
        assert class_of(CHAT, messages=[{"role": "user", "content": "a"}]) == "realtime"


@contextmanager
def full_house(path: Path, standard: ServiceClass) -> Iterator[Server]:
    """One request runs, one waits: all that the class takes."""
    classes = tuple(standard if each.name == "standard" else each for each in BUILT_IN)
    with (
        served(path, classes, step_seconds=0.01, max_rows=1) as server,
        server.open(COMPLETIONS, LONG),
    ):
        server.wait_until(lambda: server.metric("octavo_running") == 1)
        with server.open(COMPLETIONS, LONG):
            server.wait_until(lambda: server.metric("octavo_class_waiting") == 1)
            yield server


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_full_queue_answers_429_and_when_to_come_again(tiny_path: Path, stream: bool) -> None:
    standard = ServiceClass("standard", first_token_seconds=2, queue_requests=1)
    with full_house(tiny_path, standard) as server:
        for number in range(1, 4):
            reply = server.post(COMPLETIONS, {**SHORT, "stream": stream})
            assert reply.status == 429
            assert int(reply.headers["retry-after"]) >= 1
            error = reply.error
            assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
            assert "1 requests wait already" in error["message"]
            assert "try again in" in error["message"]
            refused = {"service_class": "standard", "reason": "queue_requests"}
            assert server.metric("octavo_refused_requests_total", **refused) == number
        assert server.metric("octavo_offered_requests_total", service_class="standard") == 5
        assert server.metric("octavo_requests_total", outcome="overloaded") == 3


@pytest.mark.parametrize(
    ("bound", "body", "param", "words"),
    [
        ({"queue_requests": 2}, {"n": 3}, "n", "no more than 2 answers wait, these are 3"),
        ({"queue_requests": 2}, {"prompt": ["a"] * 3}, "prompt", "than 2 answers wait"),
        ({"queue_tokens": 9}, {"prompt": [[5] * 5] * 2}, "prompt", "9 prompt tokens wait, .* 10$"),
    ],
)
def test_a_call_that_no_queue_has_room_for_is_not_told_to_come_again(
    tiny_path: Path, bound: dict[str, int], body: dict[str, object], param: str, words: str
) -> None:
    with served(tiny_path, (ServiceClass("standard", **bound),)) as server:  # type: ignore[arg-type]
        reply = server.post(COMPLETIONS, {**SHORT, **body})
        assert reply.status == 400
        assert reply.error["param"] == param
        assert re.search(words, reply.error["message"])
        assert "retry-after" not in reply.headers
        assert server.post(COMPLETIONS, {**SHORT, "prompt": [5] * 20}).status == 200


def test_a_long_prompt_is_refused_before_it_is_tokenized(tiny_path: Path) -> None:
    standard = ServiceClass("standard", first_token_seconds=2, queue_requests=1)
    # Tokenized it would be far too long for the context, which is a 400.
    body = {"prompt": "the cat sat on the mat " * 2000, "max_tokens": 2}
    with full_house(tiny_path, standard) as server:
        reply = server.post(COMPLETIONS, body)
        assert reply.status == 429
        assert int(reply.headers["retry-after"]) >= 1
        assert server.metric("octavo_offered_requests_total", service_class="standard") == 3
        assert server.metric("octavo_refused_requests_total") == 1
        assert server.post(COMPLETIONS, {**body, "service_class": "batch"}).status == 400


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_late_request_is_refused_lowered_or_run_as_it_asks(tiny_path: Path, stream: bool) -> None:
    body = {**SHORT, "service_class": "fast", "stream": stream}
    with (
        served(tiny_path, IMPATIENT, step_seconds=0.01) as server,
        server.open(COMPLETIONS, {**LONG, "service_class": "batch"}),
    ):
        server.wait_until(lambda: server.metric("octavo_running") == 1)
        reply = server.post(COMPLETIONS, {**body, "on_miss": "refuse"})
        assert reply.status == 429
        assert "after its target" in reply.error["message"]
        reason = {"service_class": "fast", "reason": "first_token_seconds"}
        assert server.metric("octavo_refused_requests_total", **reason) == 1
        for treatment, found in (("degrade", "realtime"), ("run", "fast")):
            reply = server.post(COMPLETIONS, {**body, "on_miss": treatment})
            assert reply.status == 200
            assert reply.headers["x-octavo-service-class"] == found
            for tree in reply.events if stream else [reply.json()]:
                assert tree["service_class"] == found
        assert server.post(COMPLETIONS, body).headers["x-octavo-service-class"] == "fast"
        server.wait_until(
            lambda: server.metric("octavo_class_degraded_total", service_class="fast") == 1
        )
        # All four asked for "fast", and whatever came of it came too late.
        assert server.metric("octavo_offered_requests_total", service_class="fast") == 4
        assert server.metric("octavo_kept_requests_total", target="both") == 0


def test_kept_promises_are_counted(tiny_path: Path) -> None:
    with served(tiny_path) as server:
        server.complete(**SHORT, service_class="batch")
        server.complete(prompt="a", max_tokens=0, service_class="batch")
        for target in ("first_token", "inter_token", "both"):
            kept = {"service_class": "batch", "target": target}
            assert server.metric("octavo_kept_requests_total", **kept) == 2


@pytest.mark.parametrize("own", [True, False], ids=["own limit", "limit of the class"])
def test_the_queue_has_a_limit_of_time(tiny_path: Path, own: bool) -> None:
    standard = ServiceClass("standard", queue_timeout_seconds=None if own else 0.2)
    limit = {"queue_timeout_seconds": 0.2} if own else {}
    classes = (standard, replace(BUILT_IN[2], first_token_seconds=100))
    with (
        served(tiny_path, classes, step_seconds=0.01, max_rows=1) as server,
        server.open(COMPLETIONS, {**LONG, "service_class": "batch"}),
    ):
        server.wait_until(lambda: server.metric("octavo_running") == 1)
        reply = server.post(COMPLETIONS, {**SHORT, **limit})
        assert reply.status == 408
        assert reply.error["param"] == "queue_timeout_seconds"
        assert "no token within 0.2 s" in reply.error["message"]
        assert reply.headers["x-should-retry"] == "false"
