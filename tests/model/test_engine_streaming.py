"""Streamed pieces joined are the unstreamed text, whatever the script; about a minute."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams

EMOJI = (
    "Reply with emoji only: 😀😃😄 🤖",
    "👩‍👩‍👧‍👦 👨🏽‍🚀 🏳️‍🌈 means",
    "Translate to emoji: I love cats and dogs. 🐱",
    "🇫🇷🇩🇪🇯🇵 are the flags of",
    "1️⃣ 2️⃣ 3️⃣ and then",
    "Write a story with 🐉 and 🏰:",
    "❤️🧡💛💚💙💜",
    "Ünïcödé ﬁnds ẞ and Ǆ:",
    "ﷺ ﷽ ‏ RTL ‎ LTR",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝕙𝕖𝕝𝕝𝕠",
)
LANGUAGES = {"zh": "xquad.zh.json", "th": "xquad.th.head6.json", "ar": "xquad.ar.head6.json"}


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(smollm2_path, kv_bytes="512MB") as opened:
        yield opened


@pytest.fixture(scope="module")
def prompts(data_dir: Path) -> list[str]:
    """Fifty prompts: emoji, Chinese, Thai, Arabic."""
    found = list(EMOJI)
    for name in LANGUAGES.values():
        data = json.loads((data_dir / "xquad" / name).read_text("utf-8"))["data"]
        questions = [
            item["question"]
            for article in data
            for paragraph in article["paragraphs"]
            for item in paragraph["qas"]
        ]
        found += questions[:14]
    return found[:50]


@pytest.mark.parametrize(
    ("temperature", "top_k", "stop"),
    [(0.7, 0, ()), (1.8, 100, ()), (1.8, 100, ("the", "\n\n", "�"))],
)
def test_streamed_is_unstreamed(
    llm: LLM, prompts: list[str], temperature: float, top_k: int, stop: tuple[str, ...]
) -> None:
    assert len(prompts) == 50
    params = [
        SamplingParams(max_tokens=32, temperature=temperature, top_k=top_k, seed=number, stop=stop)
        for number in range(50)
    ]
    unstreamed = llm.generate(prompts, params)
    streams = [llm.stream(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
    texts = ["".join(delta.text for delta in stream) for stream in streams]
    assert texts == [output.text for output in unstreamed]
    assert [stream.result().token_ids for stream in streams] == [
        output.token_ids for output in unstreamed
    ]
    if not stop:
        shown = [llm.tokenizer.decode(output.token_ids, continuation=True) for output in unstreamed]
        assert texts == shown
    if temperature > 1 and not stop:
        assert any("�" in text for text in texts), "no broken bytes were met"
    if stop:
        assert sum(output.finish_reason.value == "stop" for output in unstreamed) > 5
        assert not any(word in text for word in stop for text in texts)
