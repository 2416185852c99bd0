"""What each route takes and answers."""

from __future__ import annotations

import json
from pathlib import Path

from http_harness import Server
from octavo.cli.serving import open_text

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello world"}]


def test_a_completion_has_the_shape_of_the_reference_api(server: Server) -> None:
    reply = server.post(COMPLETIONS, {"prompt": "the cat", "temperature": 0, "max_tokens": 5})
    answer = reply.json()
    assert reply.status == 200
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert answer["id"].startswith("cmpl-")
    assert answer["id"] == reply.headers["x-request-id"]
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert choice["logprobs"] is None
    assert choice["finish_reason"] in ("stop", "length")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert "x-octavo-warning" not in reply.headers


def test_sixteen_tokens_are_the_default_of_completions(server: Server) -> None:
    answer = server.complete(prompt="the cat", ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_the_four_forms_of_a_prompt_agree(server: Server) -> None:
    ids = [
        server.post("/tokenize", {"prompt": text}).json()["tokens"] for text in ("the cat", "rain")
    ]
    texts = server.complete(prompt=["the cat", "rain"], max_tokens=6, n=2)
    from_ids = server.complete(prompt=ids, max_tokens=6, n=2)
    single = server.complete(prompt="rain", max_tokens=6)
    single_ids = server.complete(prompt=ids[1], max_tokens=6)
    assert [choice["index"] for choice in texts["choices"]] == [0, 1, 2, 3]
    assert texts["choices"] == from_ids["choices"]
    assert texts["choices"][2] == {**single["choices"][0], "index": 2}
    assert single["choices"] == single_ids["choices"]
    assert texts["usage"]["prompt_tokens"] == len(ids[0]) + len(ids[1])
    assert texts["usage"]["completion_tokens"] >= 4


def test_an_empty_prompt_starts_from_bos_alone(server: Server) -> None:
    answer = server.complete(prompt=["", "the cat"], max_tokens=3, ignore_eos=True)
    assert (
        answer["choices"][0]
        == server.complete(prompt="", max_tokens=3, ignore_eos=True)["choices"][0]
    )
    assert answer["choices"][0]["finish_reason"] == "length"
    assert server.complete(prompt="")["usage"]["prompt_tokens"] == 1


def test_a_prompt_may_be_scored_without_an_answer(server: Server) -> None:
    whole = server.complete(prompt="the cat sat", max_tokens=0, echo=True, logprobs=2)
    (choice,) = whole["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "the cat sat"
    assert choice["finish_reason"] == "length"
    assert "".join(logprobs["tokens"]) == "the cat sat"
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert all(len(tops) == 2 for tops in logprobs["top_logprobs"][1:])
    lengths = [len(token) for token in logprobs["tokens"]]
    assert logprobs["text_offset"] == [sum(lengths[:place]) for place in range(len(lengths))]
    assert whole["usage"]["completion_tokens"] == 0


def test_an_echo_goes_before_the_answer(server: Server) -> None:
    plain = server.complete(prompt="the cat", max_tokens=4, logprobs=0)["choices"][0]
    echo = server.complete(prompt="the cat", max_tokens=4, logprobs=0, echo=True)["choices"][0]
    scored = server.complete(prompt="the cat", max_tokens=0, logprobs=0, echo=True)["choices"][0]
    assert echo["text"] == "the cat" + plain["text"]
    for name in ("tokens", "token_logprobs", "text_offset", "bytes"):
        assert echo["logprobs"][name] == scored["logprobs"][name] + plain["logprobs"][name]
    assert plain["logprobs"]["top_logprobs"] is None


def test_chat_log_probabilities_carry_the_bytes_of_their_tokens(server: Server) -> None:
    body = {"messages": HELLO, "logprobs": True, "top_logprobs": 3, "seed": 5, "max_tokens": 12}
    choice = server.post(CHAT, {**body, "logit_bias": {"130": 40, "231": 40}}).json()["choices"][0]
    content = choice["logprobs"]["content"]
    shown = b"".join(bytes(entry["bytes"]) for entry in content)
    assert shown.decode("utf-8", "replace") == choice["message"]["content"]
    assert "\ufffd" in choice["message"]["content"]  # the bias asks for halves of characters
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        assert entry["token"] == bytes(entry["bytes"]).decode("utf-8", "replace")
        values = [each["logprob"] for each in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)


def test_chat_runs_to_the_end_of_the_context_unless_told(server: Server) -> None:
    answer = server.post(CHAT, {"messages": HELLO, "ignore_eos": True, "seed": 1}).json()
    assert answer["usage"]["total_tokens"] == 512
    assert answer["choices"][0]["finish_reason"] == "length"


def test_content_may_come_in_parts_and_both_token_limits_work(server: Server) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello world"}]}]
    ask = {"temperature": 0, "ignore_eos": True}
    one = server.post(CHAT, {**ask, "messages": HELLO, "max_tokens": 4}).json()
    two = server.post(CHAT, {**ask, "messages": parts, "max_completion_tokens": 4}).json()
    assert one["choices"] == two["choices"]
    assert one["usage"]["completion_tokens"] == 4


def test_a_limit_beyond_the_window_is_capped(server: Server) -> None:
    answer = server.complete(prompt="the cat", max_tokens=10**6, ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 512
    assert answer["choices"][0]["finish_reason"] == "length"


def test_whole_numbers_written_as_floats_are_whole_numbers(server: Server) -> None:
    floats = server.complete(prompt="the cat", max_tokens=4.0, n=1.0, seed=7.0, top_k=-1.0)
    assert floats["choices"] == server.complete(prompt="the cat", max_tokens=4)["choices"]


def test_null_is_as_good_as_absent(server: Server) -> None:
    nothing = dict.fromkeys(
        ("max_tokens", "n", "stop", "seed", "logit_bias", "logprobs", "stream", "user", "tools")
    )
    answer = server.complete(prompt="the cat", suffix=None, best_of=1, **nothing)
    assert answer["choices"] == server.complete(prompt="the cat")["choices"]


def test_what_asks_for_nothing_is_accepted(server: Server) -> None:
    body = {
        "messages": HELLO,
        "max_tokens": 2,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "parallel_tool_calls": True,
        "modalities": ["text"],
        "user": "somebody",
        "service_tier": "auto",
        "service_class": "batch",
        "timeout_seconds": 600,
    }
    reply = server.post(CHAT, body)
    assert reply.status == 200, reply.body
    assert "x-octavo-warning" not in reply.headers


def test_unknown_fields_are_named(server: Server) -> None:
    body = {"prompt": "a", "max_tokens": 1, "mirostat": 2, "grün\r\nx: y": 1}
    reply = server.post(COMPLETIONS, body)
    assert reply.status == 200
    warning = "ignored unknown fields: mirostat, gr\\xfcn\\r\\nx: y"
    assert reply.headers["x-octavo-warning"] == warning
    assert "x" not in reply.headers
    options = {"include_usage": True, "include_obfuscation": False, "continuous": True}
    reply = server.post(COMPLETIONS, {**body, "stream": True, "stream_options": options})
    assert reply.headers["x-octavo-warning"] == f"{warning}, stream_options.continuous"


def test_models_health_and_metrics(server: Server) -> None:
    (model,) = server.get("/v1/models").json()["data"]
    assert model["id"] == "tiny"
    assert model["max_model_len"] == 512
    assert server.get("/v1/models/tiny").json() == model
    assert server.get("/health/live").json() == {"status": "live"}
    assert server.get("/health/ready").json() == {"status": "ready"}
    before = server.metric("octavo_generated_tokens_total")
    refused = server.metric("octavo_requests_total", outcome="invalid_request")
    server.complete(prompt="the cat", max_tokens=3, ignore_eos=True, service_class="batch")
    server.post(COMPLETIONS, {"prompt": "a", "n": 0})
    assert server.metric("octavo_generated_tokens_total") == before + 3
    assert server.metric("octavo_requests_total", outcome="invalid_request") == refused + 1
    assert server.metric("octavo_generated_tokens_total", service_class="batch") >= 3


def test_tokens_and_text_are_each_others_way_back(server: Server, tiny_path: Path) -> None:
    tokenizer, _ = open_text(tiny_path)
    for text in ("the cat sat", "<|im_start|>", "Zürich 東京 😀", " ", ""):
        tokens = server.post("/tokenize", {"prompt": text}).json()
        assert tokens["count"] == len(tokens["tokens"])
        assert tokens["max_model_len"] == 512
        assert server.post("/detokenize", {"tokens": tokens["tokens"]}).json()["prompt"] == text
        assert not any(tokenizer.is_control(token) for token in tokens["tokens"])
    chat = server.post("/tokenize", {"messages": HELLO}).json()["tokens"]
    shown = server.post("/detokenize", {"tokens": chat}).json()["prompt"]
    assert shown == "<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n"
    hidden = server.post("/detokenize", {"tokens": chat, "skip_special_tokens": True}).json()
    assert hidden["prompt"] == "user\nhello world\nassistant\n"


def test_a_cached_prompt_is_counted_and_changes_nothing(server: Server) -> None:
    prompt = "a prompt of its own " * 12
    first = server.complete(prompt=prompt, max_tokens=6, logprobs=3)
    second = server.complete(prompt=prompt, max_tokens=6, logprobs=3)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert json.dumps(first["choices"]) == json.dumps(second["choices"])
