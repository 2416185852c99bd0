"""One call on its way: its choices, and the deltas that are kept for its reader."""

from __future__ import annotations

from collections import deque

from octavo.core.output import EngineOutput
from octavo.core.request import Request
from octavo.engine.answer import Answer, logprob_entry
from octavo.engine.outputs import Delta, LogprobEntry, RequestOutput, Timing, Usage
from octavo.engine.prompts import Prepared
from octavo.text.tokenizer import Tokenizer


class Handle:
    """Made by a client's `submit`; `Client` changes it only inside its lock."""

    def __init__(
        self,
        prepared: Prepared,
        requests: list[Request],
        tokenizer: Tokenizer,
        submitted_seconds: float,
    ):
        self.prepared = prepared
        self.submitted_seconds = submitted_seconds
        self.answers = [Answer(request, index, tokenizer) for index, request in enumerate(requests)]
        self._tokenizer = tokenizer
        self._inbox: deque[Delta] = deque()
        self._prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None
        self._first_token_seconds: float | None = None
        self._finished_seconds: float | None = None

    @property
    def done(self) -> bool:
        """Every choice is finished (deltas may still wait to be taken)."""
        return self._finished_seconds is not None

    @property
    def prompt_logprobs(self) -> tuple[LogprobEntry | None, ...] | None:
        """One entry a prompt token, the first None; None until they have come (if asked for)."""
        return self._prompt_logprobs

    def put(self, delta: Delta) -> None:
        """Keep a delta until it is taken."""
        self._inbox.append(delta)

    def take(self) -> list[Delta]:
        """The deltas since the last call, oldest first."""
        deltas = list(self._inbox)
        self._inbox.clear()
        return deltas

    def take_one(self) -> Delta | None:
        """The oldest delta that was not taken."""
        return self._inbox.popleft() if self._inbox else None

    def result(self) -> RequestOutput:
        """The whole answer, whatever was streamed.

        Raises:
            ValueError: a choice is not finished.
        """
        if self._finished_seconds is None:
            raise ValueError("the call is not finished")
        first = self._first_token_seconds
        return RequestOutput(
            prompt=self.prepared.text,
            prompt_token_ids=self.prepared.token_ids,
            outputs=tuple(answer.completion() for answer in self.answers),
            usage=Usage(
                prompt_tokens=len(self.prepared.token_ids),
                completion_tokens=sum(answer.token_count for answer in self.answers),
                cached_tokens=self.answers[0].cached_tokens,
            ),
            timing=Timing(
                first_token_seconds=None if first is None else first - self.submitted_seconds,
                total_seconds=self._finished_seconds - self.submitted_seconds,
            ),
            prompt_logprobs=self._prompt_logprobs,
        )

    def accept(self, index: int, output: EngineOutput, now_seconds: float) -> Delta | None:
        """Take an output of choice `index`; the delta that it brings, if any."""
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = tuple(
                None if entry is None else logprob_entry(self._tokenizer, entry)
                for entry in output.prompt_logprobs
            )
        if output.token_ids and self._first_token_seconds is None:
            self._first_token_seconds = now_seconds
        answer = self.answers[index]
        delta = answer.accept(output)
        if answer.finish_reason is not None and all(each.finish_reason for each in self.answers):
            self._finished_seconds = now_seconds
        return delta
