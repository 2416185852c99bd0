"""The in-process client on a model without arithmetic and a real (tiny) tokenizer."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_harness import Rig
from fake_model import FakeModel
from octavo.core.errors import InvalidRequest, PromptTooLong
from octavo.core.gguf import GgufFile
from octavo.core.request import FinishReason
from octavo.core.sampling import SamplingParams
from octavo.core.seeds import derive_seed
from octavo.engine.client import Client, Stream
from octavo.engine.engine import Engine
from octavo.engine.outputs import RequestOutput
from octavo.engine.prompts import Limits
from octavo.text.tokenizer import Tokenizer
from tiny import make_tiny_gguf

VOCABULARY = 512
CONTEXT = 256
PAGE_TOKENS = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = make_tiny_gguf(
        tmp_path_factory.mktemp("tiny") / "m.gguf", vocabulary=VOCABULARY, quant="F32"
    )
    with GgufFile.open(path) as file:
        return Tokenizer.from_metadata(dict(file.metadata.items()), vocabulary_size=VOCABULARY)


class Bench:
    """A client with what is beneath it."""

    def __init__(self, tokenizer: Tokenizer, model: FakeModel | None = None, **rig: object):
        self.model = model or FakeModel(VOCABULARY)
        options = {"pages": 64, "page_tokens": PAGE_TOKENS, "max_context": CONTEXT, **rig}
        self.rig = Rig(self.model, **options)  # type: ignore[arg-type]
        ticks = itertools.count()
        seeds = itertools.count(1000)
        self.client = Client(
            self.rig.engine,
            tokenizer,
            Limits(CONTEXT, VOCABULARY),
            clock=lambda: float(next(ticks)),
            draw_seed=lambda: next(seeds),
        )

    def one(self, prompt: object, params: SamplingParams) -> RequestOutput:
        call = self.client.prepare(prompt, params)  # type: ignore[arg-type]
        return self.client.complete([call])[0]

    def assert_idle(self) -> None:
        assert not self.client.has_work
        assert not self.rig.engine.has_work
        assert self.rig.scheduler.audit() == []
        assert self.rig.scheduler.cache.pool.held_count == 0


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(tokenizer: Tokenizer) -> MakeBench:
    return lambda *arguments, **options: Bench(tokenizer, *arguments, **options)


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


def sampled(seed: int, **more: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 40, "seed": seed, "ignore_eos": True, **more})  # type: ignore[arg-type]


def test_answers_come_in_order_with_text_usage_and_timing(
    bench: Bench, tokenizer: Tokenizer
) -> None:
    prompts = ["the cat", "one two three", "what is"]
    calls = [bench.client.prepare(prompt, sampled(number)) for number, prompt in enumerate(prompts)]
    finished: list[None] = []
    outputs = bench.client.complete(calls, on_finished=lambda: finished.append(None))
    assert len(finished) == 3
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt == prompt
        assert list(output.prompt_token_ids) == tokenizer.with_bos(
            tokenizer.encode(prompt, add_special=False, parse_special=False)
        )
        assert output.text == tokenizer.decode(output.token_ids, continuation=True)
        assert output.finish_reason is FinishReason.LENGTH
        assert output.usage.completion_tokens == len(output.token_ids) == 40
        assert output.usage.prompt_tokens == len(output.prompt_token_ids)
        assert output.usage.total_tokens == 40 + len(output.prompt_token_ids)
        assert output.timing.first_token_seconds is not None
        assert 0 < output.timing.first_token_seconds < output.timing.total_seconds
    bench.assert_idle()


@pytest.mark.parametrize("seed", range(20))
def test_streamed_pieces_joined_are_the_unstreamed_text(bench: Bench, seed: int) -> None:
    params = sampled(seed, max_tokens=60, stop=("\ufffd\ufffd\ufffd", "th"))
    unstreamed = bench.one("the cat", params)
    stream = bench.client.stream("the cat", params)
    deltas = list(stream)
    assert "".join(delta.text for delta in deltas) == unstreamed.text
    joined_ids = [token for delta in deltas for token in delta.token_ids]
    assert joined_ids == list(unstreamed.token_ids)
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason is unstreamed.finish_reason
    assert stream.result().text == unstreamed.text
    assert all(not 0xD800 <= ord(character) <= 0xDFFF for character in unstreamed.text)
    bench.assert_idle()


@pytest.fixture
def plain(make_bench: MakeBench, tokenizer: Tokenizer) -> Bench:
    """Answers of printable ASCII only, to cut in."""
    words = [
        token
        for token in range(VOCABULARY)
        if not tokenizer.is_control(token)
        and tokenizer.token_bytes(token).isascii()
        and tokenizer.token_bytes(token).decode().isprintable()
    ]
    return make_bench(FakeModel(VOCABULARY, answers=words))


def test_stop_string_cuts_exactly_and_ends_the_request(plain: Bench) -> None:
    seed = 1
    text = plain.one("the cat", sampled(seed)).text
    assert len(text) >= 30
    for start, length in ((10, 1), (10, 5), (13, 9), (0, 3)):
        stop = text[start : start + length]
        output = plain.one("the cat", sampled(seed, stop=("never in it", stop)))
        assert output.text == text[: text.index(stop)]
        assert output.finish_reason is FinishReason.STOP
        assert output.outputs[0].stopped_by == stop
        assert output.usage.completion_tokens < 40
        streamed = list(plain.client.stream("the cat", sampled(seed, stop=(stop,))))
        assert "".join(delta.text for delta in streamed) == output.text
        plain.assert_idle()


def test_held_back_text_is_flushed_when_no_stop_string_came(plain: Bench) -> None:
    seed = 1
    text = plain.one("the cat", sampled(seed)).text
    assert len(text) >= 30
    unfinished = text[-4:] + "never"
    output = plain.one("the cat", sampled(seed, stop=(unfinished,)))
    assert output.text == text
    assert output.finish_reason is FinishReason.LENGTH
    assert output.outputs[0].stopped_by is None


def test_stop_strings_count_from_min_tokens_on(plain: Bench) -> None:
    seed = 1
    text = plain.one("the cat", sampled(seed)).text
    assert len(text) >= 30
    output = plain.one("the cat", sampled(seed, stop=(text[0],), min_tokens=8))
    assert output.usage.completion_tokens >= 8
    assert len(output.text) > 0


def test_stop_id_is_reported_but_not_shown(bench: Bench, tokenizer: Tokenizer) -> None:
    free = bench.one("the cat", GREEDY)
    stop = free.token_ids[12]
    cut = free.token_ids.index(stop)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, stop_token_ids=(stop,))
    output = bench.one("the cat", params)
    assert output.token_ids == free.token_ids[: cut + 1]
    assert output.text == tokenizer.decode(free.token_ids[:cut], continuation=True)
    assert output.finish_reason is FinishReason.STOP
    assert output.outputs[0].stopped_by == stop


def test_min_tokens_keeps_stop_ids_away(bench: Bench) -> None:
    free = bench.one("the cat", GREEDY)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=40,
        ignore_eos=True,
        min_tokens=5,
        stop_token_ids=tuple(free.token_ids[:5]),
    )
    output = bench.one("the cat", params)
    assert output.usage.completion_tokens >= 5
    assert not set(output.token_ids[:5]) & set(free.token_ids[:5])


def test_end_of_turn_ids_end_the_answer_unless_ignored(bench: Bench, tokenizer: Tokenizer) -> None:
    call = bench.client.prepare("the", SamplingParams())
    assert call.stop_ids == frozenset(tokenizer.eos_ids) != frozenset()
    call = bench.client.prepare("the", SamplingParams(ignore_eos=True, stop_token_ids=(7,)))
    assert call.stop_ids == {7}


def test_choices_draw_from_streams_of_their_own_and_share_the_prompt(bench: Bench) -> None:
    prompt = list(range(1, 3 * PAGE_TOKENS + 6))
    three = bench.one(prompt, sampled(5, n=3, prompt_logprobs=0))
    assert [choice.index for choice in three.outputs] == [0, 1, 2]
    assert len({choice.token_ids for choice in three.outputs}) == 3
    assert three.usage.prompt_tokens == len(prompt)
    assert three.usage.completion_tokens == 120
    assert three.prompt_logprobs is not None
    assert len(three.prompt_logprobs) == len(prompt)
    assert bench.rig.scheduler.counters.hit_pages == 2 * 3
    for index, choice in enumerate(three.outputs):
        alone = bench.one(prompt, sampled(derive_seed(5, index)))
        assert alone.token_ids == choice.token_ids
    bench.assert_idle()


def test_streamed_choices_carry_their_index(bench: Bench) -> None:
    params = sampled(5, n=3)
    unstreamed = bench.one("the cat", params)
    texts = ["", "", ""]
    for delta in bench.client.stream("the cat", params):
        texts[delta.index] += delta.text
    assert texts == [choice.text for choice in unstreamed.outputs]


def test_calls_without_a_seed_differ(bench: Bench) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    first, second = bench.one("the cat", params), bench.one("the cat", params)
    assert first.token_ids != second.token_ids


def test_logprobs_carry_the_bytes_of_tokens(bench: Bench, tokenizer: Tokenizer) -> None:
    output = bench.one("the cat", sampled(3, logprobs=2))
    entries = output.outputs[0].logprobs
    assert entries is not None
    assert [entry.token_id for entry in entries] == list(output.token_ids)
    for entry in entries:
        assert entry.token_bytes == tokenizer.token_bytes(entry.token_id)
        assert len(entry.top) == 2
    assert bench.one("the cat", sampled(3)).outputs[0].logprobs is None
    streamed = bench.client.stream("the cat", sampled(3, logprobs=2))
    assert tuple(e for delta in streamed for e in delta.logprobs) == entries


def test_prompt_logprobs_without_an_answer(bench: Bench) -> None:
    output = bench.one([5, 6, 7], SamplingParams(max_tokens=0, prompt_logprobs=1))
    assert output.prompt_logprobs is not None
    first, *rest = output.prompt_logprobs
    assert first is None
    assert [entry.token_id for entry in rest if entry is not None] == [6, 7]
    assert output.token_ids == ()
    assert output.finish_reason is FinishReason.LENGTH
    bench.assert_idle()


def test_second_call_reports_the_cached_part_of_its_prompt(bench: Bench) -> None:
    prompt = list(range(1, 40))
    assert bench.one(prompt, GREEDY).usage.cached_tokens == 0
    assert bench.one(prompt, GREEDY).usage.cached_tokens == 2 * PAGE_TOKENS


def test_open_end_runs_to_the_end_of_the_context(bench: Bench) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    output = bench.one(list(range(1, 200)), params)
    assert len(output.prompt_token_ids) + len(output.token_ids) == CONTEXT
    assert output.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ("a\ud800b", {}, "prompt"),
        ([1, VOCABULARY], {}, r"prompt\[1\]"),
        ([1, -1], {}, r"prompt\[1\]"),
        ([1, 2.0], {}, r"prompt\[1\]"),
        ([True], {}, r"prompt\[0\]"),
        (b"bytes", {}, "prompt"),
        (7, {}, "prompt"),
        ([1], {"logit_bias": {VOCABULARY: 1.0}}, "logit_bias"),
        ([1], {"stop_token_ids": (VOCABULARY,)}, "stop_token_ids"),
        ([1], {"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ],
)
def test_bad_calls_are_refused_before_any_work(
    bench: Bench, prompt: object, params: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidRequest, match=field):
        bench.client.stream(prompt, SamplingParams(**params))  # type: ignore[arg-type]
    assert bench.model.batches == []
    bench.assert_idle()


def test_prompt_too_long_names_both_numbers(bench: Bench) -> None:
    with pytest.raises(PromptTooLong, match=f"256 tokens, the served context {CONTEXT}"):
        bench.client.prepare([1] * CONTEXT, SamplingParams())
    bench.client.prepare([1] * CONTEXT, SamplingParams(max_tokens=0))
    call = bench.client.prepare([1] * (CONTEXT - 1), SamplingParams(max_tokens=99))
    assert call.max_new_tokens == 1


def test_empty_prompt_starts_from_bos(bench: Bench, tokenizer: Tokenizer) -> None:
    assert bench.client.prepare("", SamplingParams()).token_ids == (tokenizer.bos_id,)
    assert bench.client.prepare([], SamplingParams()).token_ids == (tokenizer.bos_id,)


def test_empty_prompt_without_bos_is_refused(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", drop=frozenset({"tokenizer.ggml.bos_token_id"}))
    with GgufFile.open(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        assert tokenizer.bos_id is None
        with pytest.raises(InvalidRequest, match="empty"):
            Bench(tokenizer).client.prepare("", SamplingParams())


def test_names_of_control_tokens_in_a_prompt_are_plain_text(
    bench: Bench, tokenizer: Tokenizer
) -> None:
    name, token = next(iter(tokenizer.control_ids.items()))
    ids = bench.client.prepare(f"the {name} cat", SamplingParams()).token_ids
    assert token not in ids[1:]


def test_closing_a_stream_early_frees_its_pages(bench: Bench) -> None:
    stream = bench.client.stream(list(range(1, 60)), sampled(1, n=2))
    next(stream)
    assert bench.rig.scheduler.cache.pool.held_count > 0
    stream.close()
    bench.assert_idle()
    assert stream.result().finish_reason is FinishReason.CANCELLED
    with bench.client.stream("the cat", sampled(1)) as second:
        next(second)
    bench.assert_idle()


def test_dropped_stream_is_cancelled_by_the_next_step(bench: Bench) -> None:
    stream = bench.client.stream("the cat", sampled(1))
    next(stream)
    del stream
    gc.collect()
    bench.client.pump()
    bench.assert_idle()


def test_dropped_finished_stream_cancels_nothing(bench: Bench) -> None:
    stream = bench.client.stream("the cat", sampled(1))
    list(stream)
    del stream
    gc.collect()
    assert bench.rig.scheduler.counters.cancelled == 0


def test_many_streams_move_each_other_in_one_thread(bench: Bench) -> None:
    expected = [bench.one("the cat", sampled(seed)).text for seed in range(6)]
    streams = [bench.client.stream("the cat", sampled(seed)) for seed in range(6)]
    texts = [""] * 6
    open_streams = set(range(6))
    while open_streams:
        for number in sorted(open_streams):
            delta = next(streams[number], None)
            if delta is None:
                open_streams.remove(number)
            else:
                texts[number] += delta.text
    assert texts == expected
    assert max(len(batch) for batch in bench.model.batches) == 6
    bench.assert_idle()


def test_streams_in_many_threads(bench: Bench) -> None:
    expected = [bench.one("the cat", sampled(seed)).text for seed in range(8)]
    texts: dict[int, str] = {}

    def read(seed: int) -> None:
        stream = bench.client.stream("the cat", sampled(seed))
        texts[seed] = "".join(delta.text for delta in stream)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert [texts[seed] for seed in range(8)] == expected
    bench.assert_idle()


def test_failing_request_ends_with_an_error_and_touches_nobody(make_bench: MakeBench) -> None:
    bench = make_bench(FakeModel(VOCABULARY, poison=[511], nan=[510]))
    calls = [bench.client.prepare(prompt, GREEDY) for prompt in ([5, 6], [511], [510], [7])]
    good, poisoned, not_finite, other = bench.client.complete(calls)
    assert poisoned.finish_reason is not_finite.finish_reason is FinishReason.ERROR
    assert "poisoned" in (poisoned.outputs[0].error or "")
    assert not_finite.outputs[0].error == "bad logits"
    assert good.finish_reason is other.finish_reason is FinishReason.LENGTH
    (delta,) = bench.client.stream([511], GREEDY)
    assert delta.finish_reason is FinishReason.ERROR
    bench.assert_idle()


def test_interrupt_cancels_what_complete_had_started(bench: Bench, monkeypatch) -> None:
    step = Engine.step
    calls = [bench.client.prepare("the cat", GREEDY) for _ in range(3)]
    countdown = itertools.count()

    def interrupted(engine: Engine):  # type: ignore[no-untyped-def]
        if next(countdown) == 3:
            raise KeyboardInterrupt
        return step(engine)

    monkeypatch.setattr(Engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.client.complete(calls)
    bench.assert_idle()
    assert bench.one("the cat", GREEDY).finish_reason is FinishReason.LENGTH


def test_close_cancels_everything_and_closes_the_model_once(bench: Bench) -> None:
    stream = bench.client.stream("the cat", GREEDY)
    assert isinstance(stream, Stream)
    bench.client.close()
    bench.client.close()
    assert bench.model.closed == 1
    assert stream.result().finish_reason is FinishReason.CANCELLED
