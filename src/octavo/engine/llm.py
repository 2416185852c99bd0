"""The Python interface: a model that answers prompts and conversations in this process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from octavo.core.catalog import DEFAULT_MODEL, resolve_model
from octavo.core.clock import Clock, monotonic
from octavo.core.errors import EngineError, InvalidRequest
from octavo.core.request import FinishReason
from octavo.core.sampling import SamplingParams, as_integer
from octavo.core.settings import Settings
from octavo.core.settings_load import load_settings
from octavo.engine.assemble import Assembly, assemble
from octavo.engine.client import Client, Prompt, Stream
from octavo.engine.outputs import LogprobEntry, RequestOutput
from octavo.engine.prompts import NO_LISTS, Prepared, checked_ids
from octavo.text.templates import encode_chat
from octavo.text.tokenizer import Tokenizer

Message = Mapping[str, Any]

_WINDOWS_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probability of every token of a text after those before it; None for the first."""

    token_ids: tuple[int, ...]
    logprobs: tuple[LogprobEntry | None, ...]

    @property
    def total_logprob(self) -> float:
        return math.fsum(entry.logprob for entry in self.logprobs if entry is not None)

    @property
    def predicted_tokens(self) -> int:
        return sum(entry is not None for entry in self.logprobs)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """`value` = exp(mean negative log-likelihood), in nats, over `predicted_tokens`."""

    value: float
    mean_negative_log_likelihood: float
    predicted_tokens: int
    windows: int
    window_tokens: int


class LLM:
    """A loaded model with its engine.

    `model` is a known name (fetched when it is not cached), a GGUF file or a folder with one.
    Settings come from `settings`, or from the configuration file, the environment and `overrides`
    (dotted keys in a mapping, or last names alone: `LLM(model, token_budget=512)`).

    Raises:
        ModelNotFound, ModelFileError, SettingsError, CapacityError: it cannot be opened.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock = monotonic,
        **overrides: object,
    ):
        if settings is not None and overrides:
            raise InvalidRequest(
                "give settings or single values, not both", field=", ".join(overrides)
            )
        self.settings = settings or load_settings(overrides=overrides).settings
        chosen = model if model is not None else self.settings.model or DEFAULT_MODEL
        self._assembly: Assembly = assemble(resolve_model(chosen), self.settings, clock=clock)

    @property
    def client(self) -> Client:
        """The client underneath, for many streams at a time."""
        return self._assembly.client

    @property
    def tokenizer(self) -> Tokenizer:
        return self._assembly.client.tokenizer

    @property
    def context_tokens(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._assembly.client.limits.context_tokens

    @property
    def assembly(self) -> Assembly:
        """What was opened: model file, engine, capacity, template."""
        return self._assembly

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Complete prompts, batched as the engine sees fit; answers in the order of the prompts.

        A prompt is text or token ids; `params` is one for all or one for each. A request that fails
        while running ends with `FinishReason.ERROR`, the others are not touched.

        Raises:
            InvalidRequest: a prompt or its parameters are refused; then nothing was run.
        """
        listed, single = _listed(prompts)
        each = _params_of(params, len(listed))
        calls = [
            self.client.prepare(prompt, one, field="prompt" if single else f"prompts[{index}]")
            for index, (prompt, one) in enumerate(zip(listed, each, strict=True))
        ]
        return self._complete(calls, progress, "answers")

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Complete one prompt piece by piece; closing the stream early cancels the request."""
        return self.client.stream(prompt, params or SamplingParams())

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> RequestOutput:
        """Answer a conversation.

        Raises:
            TemplateError: the model has no chat template or the messages do not fit it.
        """
        call = self._prepare_chat(messages, params or SamplingParams(max_tokens=None))
        return self.client.complete([call])[0]

    def chat_stream(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> Stream:
        """Answer a conversation piece by piece; closing the stream early cancels the request."""
        call = self._prepare_chat(messages, params or SamplingParams(max_tokens=None))
        return Stream(self.client, self.client.submit(call))

    def score(self, prompt: Prompt, *, top: int = 0) -> Scored:
        """Log-probabilities of the prompt's own tokens, with the `top` most likely at each place.

        Raises:
            EngineError: the model failed on it.
        """
        return self._score([prompt], top)[0]

    def perplexity(
        self,
        text: Prompt,
        *,
        window_tokens: int | None = None,
        max_tokens: int | None = None,
        progress: bool = False,
    ) -> Perplexity:
        """Perplexity of a text in windows that do not overlap.

        Each window starts afresh (with BOS where the file says so) and its first token is not
        predicted. `window_tokens` includes BOS and defaults to the served context, at most 2048;
        `max_tokens` shortens the text.

        Raises:
            InvalidRequest: fewer than two tokens, or a window that does not fit the context.
        """
        size = min(self.context_tokens, 2048)
        if window_tokens is not None:
            size = as_integer(window_tokens, "window_tokens", 2, self.context_tokens)
        if max_tokens is not None:
            max_tokens = as_integer(max_tokens, "max_tokens", 2, 2**31 - 1)
        windows = list(self._windows(text, size, max_tokens))
        total = 0.0
        predicted = 0
        for scored in self._scored_in_lots(windows, progress):
            total -= scored.total_logprob
            predicted += scored.predicted_tokens
        if predicted == 0:
            raise InvalidRequest("has fewer than two tokens, nothing to predict", field="text")
        mean = total / predicted
        value = math.exp(mean) if mean < 700 else math.inf
        return Perplexity(value, mean, predicted, len(windows), size)

    def close(self) -> None:
        """Cancel what runs and free the model; safe to call twice."""
        self._assembly.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _prepare_chat(self, messages: Sequence[Message], params: SamplingParams) -> Prepared:
        ids = encode_chat(self.tokenizer, self._assembly.template(), messages)
        return self.client.prepare(ids, params, field="messages")

    def _complete(
        self, calls: Sequence[Prepared], progress: bool, unit: str
    ) -> list[RequestOutput]:
        if not progress:
            return self.client.complete(calls)
        from tqdm import tqdm

        with tqdm(total=len(calls), unit=unit) as bar:
            return self.client.complete(calls, on_finished=lambda: bar.update(1))

    def _score(self, prompts: Sequence[Prompt], top: int) -> list[Scored]:
        params = SamplingParams(max_tokens=0, prompt_logprobs=top)
        calls = [self.client.prepare(prompt, params) for prompt in prompts]
        return [_scored(output) for output in self.client.complete(calls)]

    def _windows(self, text: Prompt, size: int, max_tokens: int | None) -> Iterator[list[int]]:
        ids: Sequence[int] = (
            self.tokenizer.encode(text, add_special=False, parse_special=False)
            if isinstance(text, str)
            else checked_ids(text, self.client.limits.vocabulary_size, "text")
        )[:max_tokens]
        step = size - (len(self.tokenizer.with_bos(ids[:1])) - len(ids[:1]))
        for start in range(0, len(ids), step):
            window = self.tokenizer.with_bos(ids[start : start + step])
            if len(window) > 1:
                yield window

    def _scored_in_lots(self, windows: Sequence[list[int]], progress: bool) -> Iterator[Scored]:
        from tqdm import tqdm

        total = sum(len(window) for window in windows)
        with tqdm(total=total, unit="tok", unit_scale=True, disable=not progress) as bar:
            for first in range(0, len(windows), _WINDOWS_AT_A_TIME):
                lot = windows[first : first + _WINDOWS_AT_A_TIME]
                yield from self._score(lot, 0)
                bar.update(sum(len(window) for window in lot))


def _listed(prompts: object) -> tuple[list[Prompt], bool]:
    """The prompts, and whether one alone (text, or a flat list of ids) was given."""
    if isinstance(prompts, (str, *NO_LISTS)):
        return [prompts], True  # type: ignore[list-item]
    try:
        listed: list[Any] = list(prompts)  # type: ignore[call-overload]
    except TypeError:
        raise InvalidRequest(
            f"must be text, token ids, or a list of these, not {type(prompts).__name__}",
            field="prompts",
        ) from None
    # Arrays have the method too; without dimensions they are numbers.
    first_is_number = listed and hasattr(listed[0], "__index__")
    if first_is_number and not getattr(listed[0], "ndim", 0):
        return [listed], True
    return listed, False


def _params_of(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if not isinstance(params, Sequence):
        return [params] * count
    if len(params) != count:
        raise InvalidRequest(
            f"{len(params)} parameter sets for {count} prompts",
            field="params",
            remedy="give one for all or one for each prompt",
        )
    return params


def _scored(output: RequestOutput) -> Scored:
    completion = output.outputs[0]
    if completion.finish_reason is FinishReason.ERROR or output.prompt_logprobs is None:
        raise EngineError(completion.error or "the prompt was not scored")
    return Scored(output.prompt_token_ids, output.prompt_logprobs)
