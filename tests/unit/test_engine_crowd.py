"""Two hundred requests against a pool too small for them, on a model without arithmetic."""

from __future__ import annotations

import random

from engine_harness import Rig, make_request, random_prompt
from fake_model import FakeModel
from octavo.core.request import FinishReason


def test_two_hundred_requests_on_a_pool_too_small() -> None:
    rng = random.Random(11)
    shared = random_prompt(rng, 30, 50)
    requests = [
        make_request(
            f"r{number}",
            (shared[: rng.choice((0, 0, 17, 30))]) + random_prompt(rng, rng.randrange(1, 60), 50),
            seed=number,
            max_new_tokens=rng.randrange(1, 40),
            temperature=rng.choice((0.0, 1.0)),
            stop_ids=rng.choice(((), (3,))),
        )
        for number in range(200)
    ]
    crowded = Rig(FakeModel(), pages=60, page_tokens=8, max_rows=32, token_budget=96)
    answers = crowded.run(requests)
    counters = crowded.scheduler.counters
    assert counters.preemptions > 0
    assert counters.evicted_pages > 0
    assert counters.hit_pages > 0
    for request in requests:
        alone = Rig(FakeModel(), pages=60, page_tokens=8).run([request])[request.id]
        answer = answers[request.id]
        assert answer.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
        assert (answer.token_ids, answer.finish_reason) == (alone.token_ids, alone.finish_reason)
        assert answer.bits() == alone.bits()
    assert crowded.scheduler.audit() == []
    assert crowded.scheduler.cache.pool.held_count == 0
