"""A model with sliding windows behind the library: what its cache takes, and the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_harness import float_bits
from octavo import LLM, SamplingParams
from octavo.engine.outputs import RequestOutput
from tiny import make_tiny_gguf

PROMPT = [5 + number * 7 % 300 for number in range(200)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers, five of which see 24 tokens."""
    return make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "m.gguf", "gemma3", context=512)


def params(**more: object) -> SamplingParams:
    chosen: dict[str, object] = {"max_tokens": 6, "ignore_eos": True, "logprobs": 2, **more}
    return SamplingParams(**chosen)  # type: ignore[arg-type]


def bits(output: RequestOutput) -> list[object]:
    return [
        (entry.token_id, float_bits(entry.logprob))
        for choice in output.outputs
        for entry in choice.logprobs or ()
    ]


def test_windows_serve_longer_contexts_from_the_same_memory(path: Path) -> None:
    """Whole caches of 200 tokens would not fit beside what these bytes hold."""
    answers, contexts = [], []
    for layout in ("paged", "contiguous"):
        settings = {"kv_bytes": "170KB", "block_size": "16tok", "token_budget": 64}
        with LLM(path, layout=layout, threads=1, **settings) as llm:  # type: ignore[arg-type]
            scheduler = llm.assembly.engine.scheduler
            assert scheduler.layout.groups == (6 if layout == "paged" else 1)
            contexts.append(llm.context_tokens)
            answers.append(llm.generate([PROMPT[:150]], params(temperature=0.0))[0])
            assert scheduler.audit() == []
    assert contexts[0] > 2 * contexts[1] >= 300
    assert bits(answers[0]) == bits(answers[1])


def test_choices_compute_their_prompt_once(path: Path) -> None:
    alone: list[object] = []
    with LLM(path, kv_bytes="4MB", block_size="16tok", prefix_cache=False, threads=1) as llm:
        one = llm.generate([PROMPT], params(seed=3, n=3, temperature=2.0))[0]
        alone = bits(one)
        assert llm.assembly.engine.scheduler.counters.copied_pages == 0
    # Classes may let the later choices wait for company until the first one has ended.
    with LLM(path, kv_bytes="4MB", block_size="16tok", service_classes="off", threads=1) as llm:
        output = llm.generate([PROMPT], params(seed=3, n=3, temperature=2.0))[0]
        counters = llm.assembly.engine.scheduler.counters
        # Each answer after the first copies a block, a page of each group.
        assert counters.copied_pages == 2 * 6
        assert counters.computed_tokens == len(PROMPT) + 2 + 3 * 5
    assert bits(output) == alone
    assert len({choice.token_ids for choice in output.outputs}) == 3
