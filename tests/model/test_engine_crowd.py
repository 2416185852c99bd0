"""Two hundred requests, 32 at a time, on a pool too small for them; about two minutes."""

from __future__ import annotations

import json
import random
from pathlib import Path

from engine_harness import Rig, make_request
from octavo.compute.runner import ComputeOptions, open_model
from octavo.core.gguf import GgufFile
from octavo.core.request import FinishReason, Request
from octavo.text.tokenizer import Tokenizer

ROWS = 32
PAGE_TOKENS = 16
POOL_PAGES = 108
LONGEST_PROMPT = 128


def requests_from(tokenizer: Tokenizer, data_dir: Path) -> list[Request]:
    """Mixed lengths; a third ask about the same paragraph, so that prefixes are shared."""
    rng = random.Random(29)
    articles = json.loads((data_dir / "xquad" / "xquad.en.head12.json").read_text("utf-8"))["data"]
    paragraphs = [
        (paragraph["context"], [item["question"] for item in paragraph["qas"]])
        for article in articles
        for paragraph in article["paragraphs"]
    ]
    questions = [question for _, asked in paragraphs for question in asked]
    shared_context, _ = paragraphs[0]
    requests = []
    for number in range(200):
        # Forty in a row that grow together: admission leaves each only one page to grow.
        is_long = 60 <= number < 100
        text = questions[number % len(questions)]
        if number % 3 == 0:
            text = f"{shared_context}\n{text}"
        elif number % 8 == 1:
            text = f"{paragraphs[number % len(paragraphs)][0]}\n{text}"
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        requests.append(
            make_request(
                f"r{number}",
                tokenizer.with_bos(ids[:LONGEST_PROMPT]),
                seed=number,
                max_new_tokens=64 if is_long else rng.choice((1, 3, 6, 12)),
                temperature=rng.choice((0.0, 0.8)),
                stop_ids=() if is_long else sorted(tokenizer.eos_ids),
                logprobs=None,
            )
        )
    return requests


def test_two_hundred_requests_on_a_pool_too_small(smollm2_path: Path, data_dir: Path) -> None:
    with GgufFile.open(smollm2_path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        requests = requests_from(tokenizer, data_dir)
        wanted_pages = sorted(
            (-(-(len(one.prompt) + one.max_new_tokens) // PAGE_TOKENS) for one in requests),
            reverse=True,
        )
        assert sum(wanted_pages[:ROWS]) > 2 * POOL_PAGES
        model = open_model(file, ComputeOptions(max_batch_tokens=1024)).model
        crowded = Rig(
            model,
            pages=POOL_PAGES,
            page_tokens=PAGE_TOKENS,
            max_rows=ROWS,
            token_budget=512,
        )
        largest_batch = 0
        for request in requests:
            crowded.add(request)
        while crowded.engine.has_work:
            crowded.step()
            largest_batch = max(largest_batch, int(crowded.engine.metrics.rows.value))
        together = crowded.answers
        assert largest_batch == ROWS
        assert crowded.scheduler.counters.preemptions > 0
        assert crowded.scheduler.counters.hit_pages > 0
        assert crowded.scheduler.audit() == []
        assert crowded.scheduler.cache.pool.held_count == 0
        assert not crowded.engine.has_work
        alone_rig = Rig(model, pages=POOL_PAGES, page_tokens=PAGE_TOKENS, token_budget=1024)
        for request in requests:
            alone = alone_rig.run([request])[request.id]
            answer = together[request.id]
            assert answer.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
            assert answer.token_ids == alone.token_ids, request.id
            assert answer.finish_reason is alone.finish_reason
        model.close()
