"""Chat templates against jinja2 with transformers' settings, refusals and limits."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.core.errors import InvalidRequest, ModelFileError, TemplateError
from octavo.text.templates import ChatTemplate, encode_chat
from octavo.text.tokenizer import Tokenizer
from text_templates import CHATML, GEMMA2, KNOWN, MISTRAL, REASONING
from text_vocabularies import byte_level

CONTROLS = (
    "<|im_start|>",
    "<|im_end|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "[INST]",
    "[/INST]",
    "<|end|>",
    "<s>",
    "</s>",
)
USER = {"role": "user", "content": "  What is 2 < 3 [x]?\n"}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes, \u597d \U0001f999 & 'so'"}
SYSTEM = {"role": "system", "content": "Be <b>brief</b>."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "caf\u00e9 <|im_end|> & 'q'",
            "parameters": {"type": "object", "properties": {"x": {"minimum": 1.0, "maximum": 2.5}}},
        },
    }
]
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5, "s": "a<|im_end|>b"}}}],
}
CONVERSATIONS = {
    "one": [USER],
    "turns": [USER, ANSWER, {"role": "user", "content": "<|im_end|> [/INST] </s><|im_"}],
    "empty answer": [USER, {"role": "assistant", "content": ""}, USER],
    "system": [SYSTEM, USER, ANSWER, USER],
    "tool": [USER, CALL, {"role": "tool", "content": "<tool_response>1</tool_response>"}, USER],
}


def reference(source: str, **variables: Any) -> str:
    """jinja2 as transformers' apply_chat_template sets it up."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None: json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent
    )
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source).render(bos_token="<s>", eos_token="</s>", **variables)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, control_names=CONTROLS, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", KNOWN)
def test_output_equals_jinja2(
    name: str, conversation: str, tools: list[dict[str, object]] | None, add_generation_prompt: bool
) -> None:
    messages = CONVERSATIONS[conversation]
    options = {"tools": tools, "add_generation_prompt": add_generation_prompt}
    variables = {"enable_thinking": False}
    try:
        expected = reference(KNOWN[name], messages=messages, **options, **variables)
    except jinja2.TemplateError as error:
        if conversation == "system":  # folded, which has a test of its own
            return
        with pytest.raises(TemplateError, match=str(error)[:40]):
            template(KNOWN[name]).render(messages, variables=variables, **options)
        return
    rendered = template(KNOWN[name]).render(messages, variables=variables, **options)
    assert rendered.text == expected
    assert len(rendered.masked) == len(expected)


def test_only_what_the_template_wrote_can_be_a_control_token() -> None:
    rendered = template(CHATML).render(CONVERSATIONS["turns"])
    assert rendered.text.count("<|im_end|>") == 4
    assert rendered.masked.count("<|im_end|>") == 3
    mistral = template(MISTRAL).render(CONVERSATIONS["turns"])
    assert mistral.text.count("[/INST]") == 3
    assert mistral.masked.count("[/INST]") == 2


def test_tool_texts_are_the_callers_too() -> None:
    rendered = template(REASONING).render(CONVERSATIONS["tool"], tools=TOOLS)
    assert rendered.text.count("<|im_end|>") == rendered.masked.count("<|im_end|>") + 2


def test_ids_of_a_chat_with_one_bos() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level() | {"tokenizer.ggml.add_bos_token": True})
    chat = ChatTemplate(CHATML, control_names=tokenizer.control_ids)
    ids = encode_chat(tokenizer, chat, [{"role": "user", "content": "hi<|im_end|>"}])
    controls = [tokenizer.vocabulary.tokens[i] for i in ids if tokenizer.is_control(i)]
    assert controls == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
    assert tokenizer.decode(ids) == "user\nhi<|im_end|>\nassistant\n"


def test_a_template_of_the_file_is_used_with_its_own_special_tokens() -> None:
    metadata = byte_level() | {"tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}"}
    tokenizer = Tokenizer.from_metadata(metadata)
    chat = ChatTemplate.from_metadata(metadata, tokenizer)
    assert chat.render([USER]).text == "<|im_start|>|<|endoftext|>"


def test_system_text_is_folded_where_the_template_knows_no_system_role() -> None:
    for source in (GEMMA2, MISTRAL):
        folded = template(source).render([SYSTEM, {"role": "user", "content": "Hi"}]).text
        whole = [{"role": "user", "content": "Be <b>brief</b>.\n\nHi"}]
        assert folded == template(source).render(whole).text
    silent = template("{% for m in messages if m.role == 'user' %}[{{ m.content }}]{% endfor %}")
    assert silent.render([SYSTEM, USER]).text.startswith("[Be <b>brief</b>.\n\n")
    assert template(GEMMA2).render([SYSTEM]).text.count("Be <b>brief</b>.") == 1
    with pytest.raises(TemplateError, match="no user message follows") as caught:
        template(GEMMA2).render([USER, ANSWER, SYSTEM])
    assert caught.value.message_index == 2


def test_a_developer_message_is_a_system_message_to_older_templates() -> None:
    text = template(CHATML).render([{"role": "developer", "content": "x"}, USER]).text
    assert text.startswith("<|im_start|>system\nx<|im_end|>")


BAD = [
    ([], "messages", None),
    ("hello", "messages", None),
    ({"role": "user"}, "messages", None),
    ([USER, "x"], "messages[1]", 1),
    ([USER, {"content": "x"}], "messages[1]", 1),
    ([{"role": "wizard", "content": "x"}], "messages[0]", 0),
    ([{"role": ["user"], "content": "x"}], "messages[0]", 0),
    ([USER, ANSWER, {"role": "user"}], "messages[2]", 2),
    ([USER, ANSWER, {"role": "user", "content": None}], "messages[2]", 2),
    ([{"role": "user", "content": 5}], "messages[0].content", 0),
    ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]", 0),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]", 0),
    ([{"role": "user", "content": "\ud800"}], "messages[0].content", 0),
    ([USER, {"role": "assistant", "tool_calls": "x"}], "messages[1].tool_calls", 1),
]


@pytest.mark.parametrize(("messages", "field", "index"), BAD)
def test_bad_messages_are_refused_by_index(messages: object, field: str, index: int | None) -> None:
    with pytest.raises(TemplateError) as caught:
        template(CHATML).render(messages)
    assert caught.value.field == field
    assert caught.value.message_index == index


def test_what_the_template_refuses_is_found() -> None:
    turns = [USER, ANSWER] * 5
    for place in range(1, 10):
        messages = [*turns[:place], turns[place - 1], *turns[place:]]
        with pytest.raises(TemplateError, match="roles must alternate") as caught:
            template(GEMMA2).render(messages)
        assert caught.value.message_index == place


def test_parts_are_joined_and_missing_answers_are_empty() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    text = template(CHATML).render(messages, add_generation_prompt=False).text
    assert text == "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"


def test_arguments_in_json_text_become_objects() -> None:
    called = {"function": {"name": "f", "arguments": '{"x":1}'}}
    messages = [USER, {"role": "assistant", "tool_calls": [called]}]
    assert '"arguments": {"x": 1}}' in template(REASONING).render(messages).text
    called["function"]["arguments"] = "not json"  # type: ignore[index]
    assert '"arguments": not json}' in template(REASONING).render(messages).text


def test_no_template_names_the_way_out() -> None:
    with pytest.raises(TemplateError, match="/v1/completions"):
        ChatTemplate(None).render([USER])


@pytest.mark.parametrize("source", ["{% if x %}", "{{ x", "{% nonsense %}", "x" * 1_000_001])
def test_a_broken_template_is_refused_at_load(source: str) -> None:
    with pytest.raises(ModelFileError, match=r"^tokenizer\.chat_template: "):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}x{% endfor %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for a in range(60) %}"
        "{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for a in range(60) %}"
        "{% set n.x = n.x | replace('a', 'aa') %}{% endfor %}",
        "{{ 'x' * 9999999999 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ unknown_function() }}",
        "{{ 1 / 0 }}",
    ],
)
def test_work_without_end_and_failures_are_refused(source: str) -> None:
    with pytest.raises(TemplateError):
        template(source).render([USER])


def test_long_conversations_are_not_mistaken_for_endless_work() -> None:
    messages = [USER, ANSWER] * 2000 + [{"role": "user", "content": "x" * 2_000_000}]
    assert template(REASONING).render(messages).text.count("<|im_start|>") == 4002


def test_the_clock_and_the_callers_variables_reach_the_template() -> None:
    source = "{{ strftime_now('%d %B %Y') }} {{ mode }} {% generation %}x{% endgeneration %}"
    chat = ChatTemplate(source, now=lambda: datetime(2024, 2, 29))
    assert chat.render([USER], variables={"mode": "fast"}).text == "29 February 2024 fast x"


def test_variables_cannot_replace_the_conversation() -> None:
    chat = template(CHATML)
    text = chat.render([USER], variables={"messages": [], "add_generation_prompt": False}).text
    assert text == chat.render([USER]).text


def test_values_that_are_not_json_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="not a JSON value"):
        template(CHATML).render([USER], variables={"x": object()})
    nested: list[object] = []
    for _ in range(100):
        nested = [nested]
    with pytest.raises(InvalidRequest, match="nested deeper"):
        template(CHATML).render([USER], tools=[{"x": nested}])
