"""One request in every situation an engine can put it in; its bits must always be the same.

Each function runs a target request, asserts that the situation really came about, and returns what
was observed of the target: a digest of the logits behind each token, the tokens, and the bits of
all log-probabilities.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine_harness import RecordingModel, Rig, make_request, random_prompt
from octavo.compute.batch import StepModel
from octavo.core.ids import RequestId
from octavo.core.request import FinishReason, Request
from octavo.memory.elastic import ElasticMemory
from octavo.memory.layout import TableLayout

NEW_TOKENS = 24
_PREEMPTION_PAGE_TOKENS = 16


@dataclass(frozen=True)
class Observed:
    """Equal if and only if every bit is."""

    digests: tuple[str, ...]
    bits: tuple[object, ...]


def make_target(prompt: Sequence[int], *, seed: int, temperature: float) -> Request:
    return make_request(
        "target", prompt, seed=seed, max_new_tokens=NEW_TOKENS, temperature=temperature
    )


def pages_for(tokens: int, page_tokens: int) -> int:
    return -(-tokens // page_tokens)


def alone(
    model: StepModel,
    target: Request,
    *,
    page_tokens: int = 32,
    max_chunk_tokens: int | None = None,
    token_budget: int = 1024,
    logits_every: int = 1,
) -> Observed:
    """Nobody else; the prompt in chunks of `max_chunk_tokens`, at once if None."""
    recorder = RecordingModel(model, [target.seed], every=logits_every)
    rig = Rig(
        recorder,
        pages=pages_for(len(target.prompt) + NEW_TOKENS, page_tokens) + 2,
        page_tokens=page_tokens,
        max_chunk_tokens=max_chunk_tokens,
        token_budget=token_budget,
    )
    rig.run([target])
    chunk = min(max_chunk_tokens or token_budget, len(target.prompt))
    chunks = pages_for(len(target.prompt), chunk)
    sizes = [size for (size,) in recorder.steps]
    assert sum(sizes[:chunks]) == len(target.prompt)
    assert max(sizes[:chunks]) == chunk
    assert sizes[chunks:] == [1] * (NEW_TOKENS - 1)
    return _observed(rig, recorder, target, logits_every)


def among_others(
    model: StepModel, target: Request, rng: random.Random, *, logits_every: int = 1
) -> Observed:
    """Among more than 16 others of mixed lengths and settings, which come and go."""
    recorder = RecordingModel(model, [target.seed], every=logits_every)
    vocabulary_size = model.program.vocabulary_size
    others = [
        make_request(
            f"other-{number}",
            random_prompt(rng, rng.randrange(1, 90), vocabulary_size),
            seed=10**6 + number,
            max_new_tokens=rng.choice((4, NEW_TOKENS, 2 * NEW_TOKENS, 3 * NEW_TOKENS)),
            temperature=rng.choice((0.0, 0.7, 1.3)),
            top_k=rng.choice((0, 5)),
            top_p=rng.choice((1.0, 0.9)),
            logprobs=rng.choice((None, 0, 3)),
            repetition_penalty=rng.choice((1.0, 1.1)),
        )
        for number in range(24)
    ]
    rig = Rig(recorder, pages=400, token_budget=256)
    for other in others[:14]:
        rig.add(other)
    for _ in range(2):
        rig.step()
    rig.add(target)
    rig.run(others[14:])
    assert recorder.largest_batch >= 16, "the batch never got large"
    assert all(answer.error is None for answer in rig.answers.values())
    return _observed(rig, recorder, target, logits_every)


def with_cached_prefix(
    model: StepModel, target: Request, *, page_tokens: int = 16, logits_every: int = 1
) -> Observed:
    """After another request has left the same prompt in the cache."""
    recorder = RecordingModel(model, [target.seed], every=logits_every)
    pages = 2 * pages_for(len(target.prompt) + NEW_TOKENS, page_tokens) + 2
    rig = Rig(recorder, pages=pages, page_tokens=page_tokens, token_budget=1024)
    first = make_request("first", target.prompt, seed=target.seed + 1, max_new_tokens=2)
    rig.run([first])
    rig.run([target])
    reusable = (len(target.prompt) - 1) // page_tokens * page_tokens
    assert rig.answers[target.id].cached_tokens == reusable > 0, "nothing came from the cache"
    return _observed(rig, recorder, target, logits_every)


def with_copied_tail(model: StepModel, target: Request, *, logits_every: int = 1) -> Observed:
    """Beside another choice of the same prompt, whose last page it copies."""
    recorder = RecordingModel(model, [target.seed], every=logits_every)
    pages = 2 * pages_for(len(target.prompt) + NEW_TOKENS, 32) + 2
    rig = Rig(recorder, pages=pages, token_budget=1024)
    other = make_request("other", target.prompt, seed=target.seed + 1, max_new_tokens=NEW_TOKENS)
    rig.run([other, target])
    assert rig.scheduler.counters.copied_pages == ((len(target.prompt) - 1) % 32 > 0)
    assert rig.answers[target.id].cached_tokens == len(target.prompt) - 1
    return _observed(rig, recorder, target, logits_every)


def after_preemption(
    model: StepModel, target: Request, rng: random.Random, *, logits_every: int = 1
) -> Observed:
    """Preempted in the middle of its answer by an older request that needs its pages."""
    recorder = RecordingModel(model, [target.seed], every=logits_every)
    page_tokens = _PREEMPTION_PAGE_TOKENS
    elder = make_request(
        "elder",
        random_prompt(rng, 2 * page_tokens - 1, model.program.vocabulary_size),
        seed=target.seed + 1,
        max_new_tokens=3 * page_tokens,
    )
    # Room for both at first and one page to grow: the elder's next page is the target's.
    pages = 2 + pages_for(len(target.prompt), page_tokens) + 1
    rig = Rig(recorder, pages=max(pages, 6), page_tokens=page_tokens, token_budget=1024)
    rig.add(elder)
    rig.step()
    rig.run([target])
    assert rig.preemptions_of(target.id) > 0, "the target was never preempted"
    assert rig.preemptions_of(elder.id) == 0
    return _observed(rig, recorder, target, logits_every)


def after_release(model: StepModel, target: Request, *, logits_every: int = 1) -> Observed:
    """Into pages whose memory went back to the system, while it does so again and again."""
    recorder = RecordingModel(model, [target.seed], every=logits_every)
    page_tokens = 16
    pages = 4 * pages_for(len(target.prompt) + NEW_TOKENS, page_tokens)
    rig = Rig(recorder, pages=pages, page_tokens=page_tokens, token_budget=64)
    buffers = recorder.elastic()
    assert buffers is not None
    elastic = ElasticMemory(
        rig.scheduler.cache,
        buffers,
        page_bytes=recorder.page_bytes(page_tokens),
        idle_seconds=0.0,
        is_eager=True,
    )
    rig.engine.elastic = elastic
    rig.run([make_request("first", target.prompt, seed=target.seed + 1, max_new_tokens=2)])
    assert rig.engine.rest()
    assert elastic.backed_bytes == 0
    before = elastic.released_bytes
    short = [
        make_request(f"short-{number}", [number + 2] * 3, seed=10**6 + number, max_new_tokens=2)
        for number in range(8)
    ]
    rig.add(target)
    for each in short:
        rig.run_steps(2)
        rig.add(each)
    rig.run()
    assert rig.engine.rest()
    assert elastic.released_bytes > before
    assert rig.answers[target.id].cached_tokens == 0
    return _observed(rig, recorder, target, logits_every)


def in_groups(
    model: StepModel, target: Request, *, page_tokens: int = 16, logits_every: int = 1
) -> list[Observed]:
    """Where layers with a window keep that only: in chunks, from the cache, among choices."""
    groups = model.program.cache_groups()
    assert groups.count > 1, "no layer has a window"
    recorder = RecordingModel(model, [target.seed], every=logits_every)
    blocks = 2 * pages_for(len(target.prompt) + NEW_TOKENS, page_tokens) + 2
    rig = Rig(
        recorder,
        pages=blocks * groups.count,
        page_tokens=page_tokens,
        token_budget=64,
        grouped=True,
    )
    rig.add(target)
    most_held = 0
    while rig.engine.has_work:
        rig.step()
        most_held = max(most_held, rig.scheduler.cache.pool.held_count)
    if len(target.prompt) > 4 * groups.window_tokens:
        all_blocks = pages_for(len(target.prompt), page_tokens)
        assert most_held < groups.count * all_blocks, "no window has moved"
    observed = [_observed(rig, recorder, target, logits_every)]
    other = make_request("other", target.prompt, seed=target.seed + 1, max_new_tokens=NEW_TOKENS)
    for name, company, cached in (
        ("again", (), (len(target.prompt) - 1) // page_tokens * page_tokens),
        ("beside", (other,), len(target.prompt) - 1),
    ):
        again = replace(target, id=RequestId(name))
        rig.run([*company, again])
        assert rig.answers[name].cached_tokens == cached, "less was reused than could be"
        observed.append(_observed(rig, recorder, again, logits_every))
    return observed


def in_groups_after_preemption(model: StepModel, target: Request) -> Observed:
    """Preempted on a pool in which two requests fit at first, and windows move."""
    elder = make_request("elder", target.prompt[:9], seed=target.seed + 1, max_new_tokens=240)
    groups = model.program.cache_groups()
    layout = TableLayout(16, groups.count, groups.window_tokens, 16)
    least = layout.most_pages(max(len(target.prompt) + NEW_TOKENS, 9 + 240))
    for pages in range(least, 2 * least):
        recorder = RecordingModel(model, [target.seed])
        rig = Rig(recorder, pages=pages, page_tokens=16, token_budget=16, grouped=True)
        rig.add(elder)
        rig.step()
        rig.run([target])
        if rig.preemptions_of(target.id):
            return _observed(rig, recorder, target, 1)
    raise AssertionError("the target was never preempted")


def _observed(rig: Rig, recorder: RecordingModel, target: Request, logits_every: int) -> Observed:
    answer = rig.answers[target.id]
    assert (answer.finish_reason, answer.error) == (FinishReason.LENGTH, None)
    assert len(answer.token_ids) == len(answer.logprobs) == NEW_TOKENS
    assert rig.scheduler.audit() == []
    counters = range(0, NEW_TOKENS, logits_every)
    return Observed(
        tuple(recorder.digests[target.seed, counter] for counter in counters),
        tuple(answer.bits()),
    )


def check_every_situation(
    model: StepModel,
    target: Request,
    rng: random.Random,
    *,
    chunks: Sequence[int],
    logits_every: int = 1,
) -> Observed:
    """Assert equality in all of them; returns the bits, to compare with another model instance.

    The bits of every token's log-probabilities are always compared, the whole logits behind every
    `logits_every`-th.
    """
    every = {"logits_every": logits_every}
    expected = alone(model, target, **every)
    assert len(set(expected.digests)) > 1, "the logits never changed"
    for page_tokens in (16, 64):
        assert alone(model, target, page_tokens=page_tokens, **every) == expected, page_tokens
    for chunk in chunks:
        assert alone(model, target, max_chunk_tokens=chunk, **every) == expected, f"chunk {chunk}"
    assert among_others(model, target, rng, **every) == expected, "among others"
    assert with_cached_prefix(model, target, **every) == expected, "cached prefix"
    assert with_copied_tail(model, target, **every) == expected, "copied tail"
    assert after_preemption(model, target, rng, **every) == expected, "after a preemption"
    assert after_release(model, target, **every) == expected, "after its memory was given back"
    return expected
