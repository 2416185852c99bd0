"""The bit contract on three real models; five minutes on two cores, mostly single-token chunks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine_bits import alone, check_every_situation, in_groups, make_target
from octavo.compute.runner import ComputeOptions, open_model
from octavo.core.gguf import GgufFile
from octavo.text.tokenizer import Tokenizer

# More than the largest chunk, so that 512 is not the whole prompt (gemma's window is 512 too).
PROMPT_TOKENS = 530
CHUNKS = (1, 7, 64, 512)


@pytest.mark.parametrize(
    ("fixture", "kv_format"),
    [
        ("smollm2_path", "fp16"),
        ("smollm2_path", "int8"),
        ("gemma3_path", "fp16"),
        ("qwen_path", "fp16"),
    ],
)
def test_bits_of_real_models(
    fixture: str, kv_format: str, request: pytest.FixtureRequest, data_dir: Path
) -> None:
    path: Path = request.getfixturevalue(fixture)
    rng = random.Random(17)
    with GgufFile.open(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        text = wikitext(data_dir)
        ids = tokenizer.with_bos(tokenizer.encode(text, add_special=False, parse_special=False))
        target = make_target(ids[:PROMPT_TOKENS], seed=23, temperature=0.8)
        assert len(target.prompt) == PROMPT_TOKENS
        one, two = (
            ComputeOptions(threads=threads, kv_format=kv_format, max_batch_tokens=1024)
            for threads in (1, 2)
        )
        model = open_model(file, one).model
        one_thread = alone(model, target, logits_every=6)
        model.close()
        model = open_model(file, two).model
        observed = check_every_situation(model, target, rng, chunks=CHUNKS, logits_every=6)
        assert observed == one_thread, "one thread and two"
        if model.program.cache_groups().count > 1:
            assert set(in_groups(model, target, logits_every=6)) == {observed}
        model.close()


def wikitext(data_dir: Path) -> str:
    """Some thousand characters of English prose."""
    return (data_dir / "wikitext-2" / "test.txt").read_text(encoding="utf-8")[:8000]
