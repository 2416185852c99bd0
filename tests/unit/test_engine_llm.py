"""`LLM` on tiny models with the reference back end: the whole way from file to text."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.core.errors import (
    CapacityError,
    EngineError,
    InvalidRequest,
    ModelFileError,
    ModelNotFound,
    SettingsError,
    TemplateError,
)
from octavo.core.request import FinishReason, RequestState, Transition
from octavo.core.settings import Settings
from octavo.engine.outputs import RequestOutput
from tiny import make_tiny_gguf

_LITERAL = {"add_special": False, "parse_special": False}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "m.gguf", context=256)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, backend="reference", kv_bytes="4MB") as opened:
        yield opened


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path_factory.getbasetemp() / "home"))


def test_generate_takes_text_ids_and_lists_of_them(llm: LLM) -> None:
    ids = llm.tokenizer.encode("the cat", add_special=False, parse_special=False)
    (from_text,) = llm.generate("the cat", GREEDY)
    (from_ids,) = llm.generate(llm.tokenizer.with_bos(ids), GREEDY)
    many = llm.generate(["the cat", "one two", from_text.prompt_token_ids], GREEDY)
    assert from_text.token_ids == from_ids.token_ids
    assert from_ids.prompt is None
    assert [output.prompt for output in many] == ["the cat", "one two", None]
    assert len(many[1].token_ids) == 12
    assert llm.generate([]) == []


def test_integers_of_numpy_are_token_ids(llm: LLM) -> None:
    (output,) = llm.generate(np.array([3, 4, 5]), GREEDY)  # type: ignore[arg-type]
    assert output.prompt_token_ids == (3, 4, 5)
    assert {type(token) for token in output.prompt_token_ids} == {int}
    assert output.token_ids == llm.generate([3, 4, 5], GREEDY)[0].token_ids
    (listed,) = llm.generate([np.array([3, 4, 5])], GREEDY)  # type: ignore[list-item]
    assert listed.token_ids == output.token_ids
    # Without dimensions an array is a number, as the items of a tensor are.
    (single,) = llm.generate([np.array(3), np.array(4), np.array(5)], GREEDY)  # type: ignore[list-item]
    assert single.token_ids == output.token_ids


@pytest.mark.parametrize(
    "prompts",
    [
        *(None, 5, {"a": 1}, [None], [1.5], [True]),
        *(b"abc", [b"abc"], bytearray(b"abc"), [memoryview(b"abc")]),
        *(np.array(5), [np.array([[1, 2]])]),
    ],
)
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: object) -> None:
    with pytest.raises(InvalidRequest, match=r"must be text|must hold integers"):
        llm.generate(prompts, GREEDY)  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [5, {"max_tokens": 3}, [{"max_tokens": 3}], ["a"]])
def test_what_are_no_parameters_is_refused(llm: LLM, params: object) -> None:
    with pytest.raises(InvalidRequest, match="params: must be SamplingParams"):
        llm.generate(["a"], params)  # type: ignore[arg-type]


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=number, ignore_eos=True) for number in (1, 3)]
    outputs = llm.generate(["a", "b"], params)
    assert [len(output.token_ids) for output in outputs] == [1, 3]
    with pytest.raises(InvalidRequest, match="1 parameter sets for 2 prompts"):
        llm.generate(["a", "b"], params[:1])


def test_one_bad_prompt_names_its_place_and_runs_nothing(llm: LLM) -> None:
    before = llm.assembly.engine.metrics.steps.value
    with pytest.raises(InvalidRequest, match=r"prompts\[1\]"):
        llm.generate(["good", "bad \ud800"], GREEDY)
    with pytest.raises(InvalidRequest, match=r"^prompt"):
        llm.generate("bad \ud800", GREEDY)
    assert llm.assembly.engine.metrics.steps.value == before


def test_stream_joined_is_generate(llm: LLM) -> None:
    params = SamplingParams(max_tokens=30, seed=4, ignore_eos=True)
    (whole,) = llm.generate("the cat", params)
    assert len(whole.token_ids) == 30
    assert "".join(delta.text for delta in llm.stream("the cat", params)) == whole.text


def test_chat_renders_the_template_and_streams_the_same(llm: LLM) -> None:
    messages = [{"role": "user", "content": "what is <|im_end|> in a text?"}]
    whole = llm.chat(messages, GREEDY)
    pieces = list(llm.chat_stream(messages, GREEDY))
    assert "".join(delta.text for delta in pieces) == whole.text
    ends = [name for name in llm.tokenizer.control_ids if name == "<|im_end|>"]
    for name in ends:
        token = llm.tokenizer.control_ids[name]
        assert list(whole.prompt_token_ids).count(token) == 1, "user text became a control token"


def test_chat_without_a_template_says_what_to_use(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", drop=frozenset({"tokenizer.chat_template"}))
    with LLM(path, backend="reference", kv_bytes="1MB") as llm, pytest.raises(TemplateError):
        llm.chat([{"role": "user", "content": "hello"}], GREEDY)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


def test_score_agrees_with_the_answer_s_own_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=1, ignore_eos=True)
    (answer,) = llm.generate("the cat sat", params)
    scored = llm.score([*answer.prompt_token_ids, *answer.token_ids], top=1)
    entries = scored.logprobs[-6:]
    generated = answer.outputs[0].logprobs
    assert generated is not None
    assert scored.logprobs[0] is None
    for scored_entry, drawn_entry in zip(entries, generated, strict=True):
        assert scored_entry is not None
        assert scored_entry.token_id == drawn_entry.token_id
        assert scored_entry.logprob == pytest.approx(drawn_entry.logprob, abs=1e-4)
        assert scored_entry.top[0].token_id == drawn_entry.top[0].token_id
    assert scored.predicted_tokens == len(scored.token_ids) - 1


def test_perplexity_is_that_of_its_windows(llm: LLM) -> None:
    text = "the cat sat on the mat and then the other cat came in from the cold rain " * 4
    result = llm.perplexity(text, window_tokens=24)
    ids = llm.tokenizer.encode(text, add_special=False, parse_special=False)
    step = 24 - (len(llm.tokenizer.with_bos(ids[:1])) - 1)
    windows = [llm.tokenizer.with_bos(ids[at : at + step]) for at in range(0, len(ids), step)]
    scored = [llm.score(window) for window in windows if len(window) > 1]
    predicted = sum(one.predicted_tokens for one in scored)
    mean = -sum(one.total_logprob for one in scored) / predicted
    assert result.predicted_tokens == predicted
    assert result.windows == len(scored)
    assert result.mean_negative_log_likelihood == pytest.approx(mean, rel=1e-6)
    # The exponential makes ten times as much of a difference in the last bits of the mean.
    assert result.value == pytest.approx(math.exp(mean), rel=1e-5)
    shorter = llm.perplexity(text, window_tokens=24, max_tokens=10)
    assert shorter.predicted_tokens < predicted


def test_perplexity_refuses_what_cannot_be_predicted(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="window_tokens"):
        llm.perplexity("the cat", window_tokens=1)
    with pytest.raises(InvalidRequest, match="window_tokens"):
        llm.perplexity("the cat", window_tokens=100_000)
    with pytest.raises(InvalidRequest, match="window_tokens: must be an integer"):
        llm.perplexity("the cat", window_tokens="8")  # type: ignore[arg-type]
    for count in (-2, 0, 1, 2.5):
        with pytest.raises(InvalidRequest, match="max_tokens"):
            llm.perplexity("the cat sat", max_tokens=count)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="text: must be text or a list"):
        llm.perplexity(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="nothing to predict"):
        llm.perplexity([])
    with pytest.raises(InvalidRequest, match="surrogate"):
        llm.perplexity("\udc00")


def test_token_bytes_of_prompt_scores_join_to_the_text(llm: LLM) -> None:
    text = "the cat 猫 🐈"
    scored = llm.score(text)
    shown = [entry.token_bytes for entry in scored.logprobs if entry is not None]
    assert b"".join(shown).decode() in text


def test_settings_reach_the_engine(path: Path) -> None:
    with LLM(path, backend="reference", kv_bytes="64KB", block_size="16tok") as llm:
        capacity = llm.assembly.capacity
        assert capacity.page_tokens == 16
        assert capacity.kv_bytes <= 64 * 1024
        assert llm.context_tokens == min(256, capacity.pages * 16)
    with pytest.raises(SettingsError, match="no such setting"):
        LLM(path, kv_byte=1)
    with pytest.raises(InvalidRequest, match="not both"):
        LLM(path, settings=Settings(), kv_bytes=1)
    with pytest.raises(SettingsError, match=r"compute\.threads"):
        LLM(path, backend="reference", threads=2)
    with pytest.raises(SettingsError, match=r"compute\.activations"):
        LLM(path, backend="reference", activations="int8x2")
    with pytest.raises(CapacityError, match="does not hold one page"):
        LLM(path, backend="reference", kv_bytes=64)


def test_lowered_context_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("octavo")
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.WARNING, logger="octavo")
    with LLM(path, backend="reference", kv_bytes="32KB") as llm:
        assert llm.context_tokens < 256
    logger.removeHandler(caplog.handler)
    assert "instead of 256" in caplog.text


def test_missing_and_damaged_models(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        LLM(tmp_path / "nothing.gguf")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelFileError):
        LLM(damaged)


def test_events_tell_every_move_of_a_request(llm: LLM) -> None:
    (output,) = llm.generate("the", GREEDY)
    assert output.finish_reason is FinishReason.LENGTH
    last = [event for event in llm.assembly.events.newest() if isinstance(event, Transition)][-2:]
    assert [event.after for event in last] == [RequestState.RUNNING, RequestState.FINISHED]


def test_closed_model_may_be_closed_again(path: Path) -> None:
    llm = LLM(path, backend="reference", kv_bytes="1MB")
    output = llm.generate("the", GREEDY)[0]
    assert isinstance(output, RequestOutput)
    llm.close()
    llm.close()


def test_closed_model_answers_nothing_more(path: Path) -> None:
    llm = LLM(path, backend="reference", kv_bytes="1MB")
    llm.close()
    with pytest.raises(EngineError, match="the model is closed"):
        llm.generate("the", GREEDY)


def test_importing_the_interface_loads_no_compute() -> None:
    code = (
        "import sys, octavo.engine.client, octavo.engine.llm;"
        "heavy = ('octavo.compute', 'torch', 'transformers');"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.strip() == "[]"


def test_a_file_without_pre_tokenizer_opens_with_the_setting(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", drop=frozenset({"tokenizer.ggml.pre"}))
    with pytest.raises(ModelFileError, match="set pre_tokenizer"):
        LLM(path, backend="reference")
    with LLM(path, backend="reference", pre_tokenizer="gpt-2", kv_bytes="1MB") as opened:
        assert opened.generate("the cat", GREEDY)[0].token_ids
        with LLM(make_tiny_gguf(tmp_path / "n.gguf"), backend="reference", kv_bytes="1MB") as named:
            assert named.tokenizer.encode("the cat 12", **_LITERAL) == opened.tokenizer.encode(
                "the cat 12", **_LITERAL
            )


@pytest.mark.parametrize(
    ("override", "drop", "field"),
    [
        ({"tokenizer.chat_template": "{% for %}"}, (), "chat_template"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, (), "tokens"),
        ({"tokenizer.ggml.pre": "gpt-5"}, (), "tokenizer.ggml.pre"),
        ({}, ("tokenizer.ggml.merges",), "merges"),
    ],
)
def test_damaged_text_is_refused_before_weights_are_loaded(
    override: dict[str, object],
    drop: tuple[str, ...],
    field: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loaded(*arguments: object, **options: object) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("octavo.compute.runner.open_model", loaded)
    path = make_tiny_gguf(tmp_path / "m.gguf", override=override, drop=frozenset(drop))
    with pytest.raises(ModelFileError, match=field):
        LLM(path, backend="reference")
