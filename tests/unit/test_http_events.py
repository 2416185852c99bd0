"""Server-sent events whose constant part is written once."""

from __future__ import annotations

import pytest

from octavo.access.http.events import TextEvents, event


@pytest.mark.parametrize("text", ["", "hello", 'a "b"\n\\', "\0\x1f", "\u4f60\U0001f999", "data: "])
def test_an_event_around_a_text_is_the_event_of_the_whole(text: str) -> None:
    def chunk(text: object) -> object:
        return {"id": 'say "\u597d"', "choices": [{"index": 3, "text": text, "logprobs": None}]}

    events = TextEvents(chunk)
    assert events.event(text) == event(chunk(text))
    assert events.event("other") == event(chunk("other"))
