"""What the server refuses: every bad field, body, number, model, media type and route by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from http_harness import Server, app_on_fake

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello world"}]

BAD_FIELDS: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": 5}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", 5]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": [1, "a"]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": [[1], [512]]}, "prompt[1][0]"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt[0]"),
    (COMPLETIONS, {"max_tokens": -1}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": "5"}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": 1.5}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": 10**30}, "max_tokens"),
    (COMPLETIONS, {"min_tokens": 17}, "min_tokens"),
    (COMPLETIONS, {"temperature": -0.1}, "temperature"),
    (COMPLETIONS, {"temperature": "0"}, "temperature"),
    (COMPLETIONS, {"temperature": 1e300}, "temperature"),
    (COMPLETIONS, {"top_p": 1.1}, "top_p"),
    (COMPLETIONS, {"top_p": True}, "top_p"),
    (COMPLETIONS, {"min_p": -1}, "min_p"),
    (COMPLETIONS, {"top_k": -2}, "top_k"),
    (COMPLETIONS, {"presence_penalty": 2.1}, "presence_penalty"),
    (COMPLETIONS, {"frequency_penalty": -2.1}, "frequency_penalty"),
    (COMPLETIONS, {"repetition_penalty": 0}, "repetition_penalty"),
    (COMPLETIONS, {"seed": 2**64}, "seed"),
    (COMPLETIONS, {"n": 0}, "n"),
    (COMPLETIONS, {"n": 129}, "n"),
    (COMPLETIONS, {"n": 128, "prompt": ["a"] * 9}, "n"),
    (COMPLETIONS, {"logprobs": 65}, "logprobs"),
    (COMPLETIONS, {"logprobs": True}, "logprobs"),
    (COMPLETIONS, {"echo": 1}, "echo"),
    (COMPLETIONS, {"stop": 5}, "stop"),
    (COMPLETIONS, {"stop": [""]}, "stop"),
    (COMPLETIONS, {"stop": ["a"] * 65}, "stop"),
    (COMPLETIONS, {"stop_token_ids": [512]}, "stop_token_ids"),
    (COMPLETIONS, {"stop_token_ids": ["a"]}, "stop_token_ids"),
    (COMPLETIONS, {"logit_bias": {"512": 1}}, "logit_bias"),
    (COMPLETIONS, {"logit_bias": {"a": 1}}, "logit_bias"),
    (COMPLETIONS, {"logit_bias": {"1": 101}}, "logit_bias"),
    (COMPLETIONS, {"logit_bias": []}, "logit_bias"),
    (COMPLETIONS, {"ignore_eos": "yes"}, "ignore_eos"),
    (COMPLETIONS, {"stream": "yes"}, "stream"),
    (COMPLETIONS, {"stream_options": {"include_usage": True}}, "stream_options"),
    (COMPLETIONS, {"stream": True, "stream_options": 1}, "stream_options"),
    (
        COMPLETIONS,
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
    ),
    (COMPLETIONS, {"best_of": 2}, "best_of"),
    (COMPLETIONS, {"suffix": "end"}, "suffix"),
    (COMPLETIONS, {"user": 5}, "user"),
    (COMPLETIONS, {"timeout_seconds": 0}, "timeout_seconds"),
    (COMPLETIONS, {"timeout_seconds": "1"}, "timeout_seconds"),
    (COMPLETIONS, {"queue_timeout_seconds": -1}, "queue_timeout_seconds"),
    (COMPLETIONS, {"service_class": "urgent"}, "service_class"),
    (COMPLETIONS, {"service_tier": "gold"}, "service_tier"),
    (COMPLETIONS, {"on_miss": "panic"}, "on_miss"),
    (COMPLETIONS, {"service_class": ""}, "service_class"),
    (COMPLETIONS, {"model": 5}, "model"),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hello"}, "messages"),
    (CHAT, {"messages": [*HELLO, {"role": "user"}]}, "messages[1]"),
    (CHAT, {"messages": [{"role": "pirate", "content": "a"}]}, "messages[0]"),
    (CHAT, {"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),  # type: ignore[list-item]
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
    (CHAT, {"logprobs": 2}, "logprobs"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"functions": [{}]}, "functions"),
    (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
    (CHAT, {"audio": {"voice": "x"}}, "audio"),
    (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
    (CHAT, {"add_generation_prompt": 1}, "add_generation_prompt"),
    (CHAT, {"chat_template_kwargs": 1}, "chat_template_kwargs"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"prompt": None}, "messages"),
    ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [1, 512]}, "tokens[1]"),
]


@pytest.mark.parametrize(("path", "fields", "param"), BAD_FIELDS, ids=lambda value: str(value)[:40])
def test_a_bad_field_is_named(
    server: Server, path: str, fields: dict[str, Any], param: str | None
) -> None:
    good: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": "the cat"}
    reply = server.post(path, {**good, **fields})
    assert reply.status == 400, reply.body
    assert reply.error["type"] == "invalid_request_error"
    expected = param or "messages[0].content[0]"
    assert reply.error["param"] == expected
    assert reply.error["message"].startswith(f"{expected}: ")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"nonsense", "not JSON"),
        (b'{"prompt": "\xff"}', "UTF-8"),
        (b"[" * 100_000, "too deep"),
        (b'{"prompt":' * 100_000, "too deep"),
        (b"[1]", "must be a JSON object, not an array"),
        (b'"a"', "must be a JSON object, not text"),
        (b"null", "must be a JSON object, not null"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_json_object_is_refused(server: Server, body: bytes, words: str) -> None:
    reply = server.post(COMPLETIONS, raw=body)
    assert reply.status == 400
    assert words in reply.error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'{"prompt": "abc\ud800"}', "prompt"),
        (rb'{"prompt": ["a", "abc\udfff!"]}', "prompt[1]"),
        (rb'{"prompt": "a", "stop": ["abc\ud83d\ud83d"]}', "stop[0]"),
        (
            rb'{"messages": [{"role": "user", "content": "abc\udc00\ud800"}]}',
            "messages[0].content",
        ),
        (rb'{"prompt": "a", "user": "abc\ud800"}', "user"),
    ],
)
def test_half_a_character_is_refused_with_its_place(
    server: Server, body: bytes, param: str
) -> None:
    reply = server.post(COMPLETIONS, raw=body)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert "at character 3" in reply.error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"prompt": "a", "top_p": 1e400}', "top_p"),
        (b'{"prompt": "a", "logit_bias": {"5": -Infinity}}', "logit_bias.5"),
        (b'{"prompt": [1, -1E+999]}', "prompt[1]"),
    ],
)
def test_a_number_that_is_none_is_refused_with_its_place(
    server: Server, body: bytes, param: str
) -> None:
    reply = server.post(COMPLETIONS, raw=body)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert "finite" in reply.error["message"]


def test_a_whole_pair_of_surrogates_is_a_character(server: Server) -> None:
    escaped = server.post("/tokenize", raw=rb'{"prompt": "\ud83d\ude00"}').json()
    assert escaped == server.post("/tokenize", {"prompt": "😀"}).json()
    assert escaped["count"] == 4


def test_another_model_is_not_found(server: Server) -> None:
    for path in (COMPLETIONS, CHAT):
        reply = server.post(path, {"model": "gpt-4", "prompt": "a", "messages": HELLO})
        assert reply.status == 404
        assert reply.error["code"] == "model_not_found"
        assert "'tiny'" in reply.error["message"]
    assert server.complete(model="tiny", prompt="a", max_tokens=1)["model"] == "tiny"
    assert server.complete(model="tiny.gguf", prompt="a", max_tokens=1)["model"] == "tiny"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "the cat " * 300}, "prompt"),
        (COMPLETIONS, {"prompt": "the cat " * 500_000}, "prompt"),
        (COMPLETIONS, {"prompt": [5] * 1_000_000}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", [5] * 513][1:]}, "prompt[0]"),
        (CHAT, {"messages": [{"role": "user", "content": "the cat " * 500_000}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "the cat " * 300}]}, "messages"),
    ],
    ids=["long", "huge", "huge-ids", "long-ids", "huge-chat", "long-chat"],
)
def test_a_long_prompt_is_refused_with_both_numbers(
    server: Server, path: str, body: dict[str, Any], param: str
) -> None:
    reply = server.post(path, body)
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"
    assert reply.error["param"] == param
    numbers = [
        int(word) for word in reply.error["message"].replace(",", "").split() if word.isdigit()
    ]
    assert 512 in numbers
    assert max(numbers) > 512


def test_the_estimate_of_a_huge_prompt_is_near(server: Server) -> None:
    text = "the cat sat on the mat " * 20_000
    reply = server.post(COMPLETIONS, {"prompt": text})
    counted = server.post("/tokenize", {"prompt": text}).json()["count"]
    words = reply.error["message"].split()
    assert math.isclose(int(words[words.index("about") + 1]), counted, rel_tol=0.05)


def test_a_body_has_a_limit(tiny_path: Path) -> None:
    with app_on_fake(tiny_path, service_options={"max_body_bytes": 1000}) as small:
        fits = small.post("/tokenize", {"prompt": "a" * 900})
        declared = small.post("/tokenize", {"prompt": "a" * 1000})
        chunked = small.post("/tokenize", raw=iter([b"a" * 600] * 3))  # type: ignore[arg-type]
        broken = small.post(
            "/tokenize", raw=b"not chunks", headers={"transfer-encoding": "chunked"}
        )
    assert fits.status == 200
    assert declared.status == chunked.status == 413
    assert "1000 bytes" in declared.error["message"]
    assert broken.status == 400
    assert broken.error["code"] == "invalid_http"


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_declared_json_is_read(server: Server, media_type: str) -> None:
    reply = server.post(COMPLETIONS, {"prompt": "a"}, headers={"content-type": media_type})
    assert reply.status == 415
    assert "application/json" in reply.error["message"]


def test_a_packed_body_is_refused(server: Server) -> None:
    reply = server.post(COMPLETIONS, {"prompt": "a"}, headers={"content-encoding": "gzip"})
    assert reply.status == 415
    assert reply.error["code"] == "unsupported_encoding"
    plain = {"content-encoding": "identity"}
    assert server.post("/tokenize", {"prompt": "a"}, headers=plain).status == 200


def test_routes_that_are_not_there_say_so(server: Server) -> None:
    assert server.get("/v1/nothing").error["code"] == "unknown_route"
    assert server.post("/v1/models", {}).error["code"] == "method_not_allowed"
    wrong = server.get(COMPLETIONS)
    assert wrong.status == 405
    assert wrong.headers["allow"] == "POST"
    assert server.get("/v1/models/nobody").status == 404
