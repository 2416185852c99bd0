"""Checks a conversation and gives it the one shape that templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from octavo.core.errors import InvalidRequest, TemplateError
from octavo.text.checks import check_text
from octavo.text.literals import MAX_DEPTH

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

Message = dict[str, object]


def normalise_messages(messages: object) -> list[Message]:
    """Plain dictionaries with a known role and text as content.

    Parts of type "text" are joined by newlines. An assistant's missing content is empty text. Tool
    arguments sent as JSON text become objects, which is what templates print.

    Raises:
        TemplateError: with the index of the message at fault.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TemplateError("must be a list of messages", field="messages")
    if not messages:
        raise TemplateError(
            "the conversation is empty", field="messages", remedy="send at least one user message"
        )
    return [_message(message, index) for index, message in enumerate(messages)]


def _message(message: object, index: int) -> Message:
    if not isinstance(message, Mapping):
        raise TemplateError(f"must be an object, not {type(message).__name__}", message_index=index)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise TemplateError(
            f"unknown role {str(role)[:40]!r}" if role is not None else "no role",
            message_index=index,
            remedy=f"use one of: {', '.join(ROLES)}",
        )
    plain = {
        key: plain_value(value, f"messages[{index}].{key}")
        for key, value in message.items()
        if isinstance(key, str) and key != "content" and value is not None
    }
    calls = plain.get("tool_calls")
    if calls is not None:
        plain["tool_calls"] = _tool_calls(calls, index)
    return {**plain, "role": role, "content": _content(message, role, index)}


def _content(message: Mapping[object, object], role: str, index: int) -> str:
    content = message.get("content")
    field = f"messages[{index}].content"
    if isinstance(content, str):
        return _text(content, field, index)
    if content is None:
        if role == "assistant":
            return ""
        raise TemplateError("no content", message_index=index, remedy="send text as content")
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        parts = enumerate(content)
        return "\n".join(_part(part, f"{field}[{place}]", index) for place, part in parts)
    raise TemplateError(
        f"content must be text, not {type(content).__name__}", field=field, message_index=index
    )


def _part(part: object, field: str, index: int) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise TemplateError(
            f"part of type {str(kind)[:40]!r} is not supported",
            field=field,
            message_index=index,
            remedy='send parts like {"type": "text", "text": "..."}',
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise TemplateError("the part has no text", field=field, message_index=index)
    return _text(text, field, index)


def _text(text: str, field: str, index: int) -> str:
    try:
        return check_text(text, field)
    except InvalidRequest as error:
        raise TemplateError(
            error.message, field=field, message_index=index, remedy=error.remedy
        ) from None


def _tool_calls(calls: object, index: int) -> list[object]:
    field = f"messages[{index}].tool_calls"
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise TemplateError("must be a list of objects", field=field, message_index=index)
    return [_tool_call(call, field) for call in calls]


def _tool_call(call: dict[str, object], field: str) -> dict[str, object]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call  # not JSON: the template prints what the model once wrote
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": plain_value(arguments, field)}}


def plain_value(value: object, field: str, *, depth: int = 0) -> object:
    """A copy made of JSON types only, its text checked.

    Raises:
        InvalidRequest: another type, half of a surrogate pair, or nested too deep.
    """
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"nested deeper than {MAX_DEPTH} levels", field=field)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return check_text(value, field)
    if isinstance(value, Mapping):
        return plain_object(value, field, depth=depth)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [plain_value(item, field, depth=depth + 1) for item in value]
    raise InvalidRequest(f"not a JSON value: {type(value).__name__}", field=field)


def plain_object(value: Mapping[str, object], field: str, *, depth: int = 0) -> dict[str, object]:
    """`plain_value` of a JSON object."""
    return {
        check_text(key, field): plain_value(item, field, depth=depth + 1)
        for key, item in value.items()
    }


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """Put the text of system messages in front of the user turn that follows them.

    Raises:
        TemplateError: no user turn follows.
    """
    folded: list[Message] = []
    waiting: list[str] = []
    waiting_index = 0
    for index, message in enumerate(messages):
        if message["role"] in ("system", "developer"):
            waiting.append(str(message["content"]))
            waiting_index = index
        elif message["role"] == "user" and waiting:
            text = "\n\n".join([*waiting, str(message["content"])])
            folded.append({**message, "content": text})
            waiting = []
        else:
            folded.append(message)
    if waiting and not folded:
        return [{"role": "user", "content": "\n\n".join(waiting)}]
    if waiting:
        raise TemplateError(
            "this model knows no system role, and no user message follows this one",
            message_index=waiting_index,
            remedy="put system messages before a user message",
        )
    return folded
