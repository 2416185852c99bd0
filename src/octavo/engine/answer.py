"""One choice of a call while it grows: tokens become characters, stop strings cut it."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.output import EngineOutput, TokenLogprob
from octavo.core.request import FinishReason, Request
from octavo.engine.outputs import Alternative, Completion, Delta, LogprobEntry
from octavo.text.detokenize import IncrementalDecoder
from octavo.text.stops import StopSearch
from octavo.text.tokenizer import Tokenizer


def logprob_entry(tokenizer: Tokenizer, logprob: TokenLogprob) -> LogprobEntry:
    """Adds each token's bytes."""
    return LogprobEntry(
        token_id=logprob.token_id,
        token_bytes=tokenizer.token_bytes(logprob.token_id),
        logprob=logprob.logprob,
        top=tuple(
            Alternative(token, tokenizer.token_bytes(token), value) for token, value in logprob.top
        ),
    )


class Answer:
    """Accepts the engine's outputs of one request in order and gives deltas.

    The deltas' texts joined are the answer's text. A token that is a stop id ends the answer and
    shows no text. Stop strings are looked for from the `min_tokens`-th token on; the answer is cut
    right before the first one, and tokens after the one that completed it are dropped.
    """

    def __init__(self, request: Request, index: int, tokenizer: Tokenizer):
        self.request = request
        self.index = index
        self.cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._tokenizer = tokenizer
        self._decoder = IncrementalDecoder(tokenizer, continuation=True)
        self._stops = StopSearch(request.params.stop) if request.params.stop else None
        self._token_ids: list[int] = []
        self._logprobs: list[LogprobEntry] = []
        self._pieces: list[str] = []
        self._stopped_by: str | int | None = None
        self._error: str | None = None

    @property
    def token_count(self) -> int:
        return len(self._token_ids)

    @property
    def cut_by_stop_string(self) -> bool:
        """The answer ended here, not in the engine, which then must be told."""
        return isinstance(self._stopped_by, str)

    def accept(self, output: EngineOutput) -> Delta | None:
        """Take one output; None if it brings nothing a caller can see."""
        if output.cached_tokens:
            self.cached_tokens = output.cached_tokens
        if output.finish_reason is None and self._stops is None:
            # Nothing can end it here.
            self._token_ids += output.token_ids
            text, accepted = self._decoder.push(output.token_ids), len(output.token_ids)
        else:
            text, accepted = self._accept_end(output)
        if not (text or accepted or self.finish_reason):
            return None
        self._pieces.append(text)
        return Delta(
            self.index,
            text,
            output.token_ids[:accepted],
            () if output.logprobs is None else self._accept_logprobs(output.logprobs[:accepted]),
            self.finish_reason,
            output.error,
        )

    def completion(self) -> Completion:
        """The finished answer.

        Raises:
            ValueError: it is not finished.
        """
        if self.finish_reason is None:
            raise ValueError(f"request {self.request.id} is not finished")
        asked = self.request.params.logprobs is not None
        return Completion(
            index=self.index,
            text="".join(self._pieces),
            token_ids=tuple(self._token_ids),
            finish_reason=self.finish_reason,
            logprobs=tuple(self._logprobs) if asked else None,
            stopped_by=self._stopped_by,
            error=self._error,
        )

    def _accept_end(self, output: EngineOutput) -> tuple[str, int]:
        """Take an output that may end the answer; its text, and how many tokens were accepted."""
        pieces: list[str] = []
        accepted = self._accept_tokens(output, pieces)
        reason = output.finish_reason
        if reason is not None and not self.cut_by_stop_string:
            self._flush(pieces)
        self.finish_reason = FinishReason.STOP if self.cut_by_stop_string else reason
        self._error = output.error
        return "".join(pieces), accepted

    def _accept_tokens(self, output: EngineOutput, pieces: list[str]) -> int:
        """Decode tokens until a stop string; returns how many were accepted."""
        last = len(output.token_ids) - 1
        for position, token in enumerate(output.token_ids):
            self._token_ids.append(token)
            ended = output.finish_reason is FinishReason.STOP and position == last
            if ended and token in self.request.stop_ids:
                self._stopped_by = token
                continue
            self._search(self._decoder.push([token]), pieces)
            if self.cut_by_stop_string:
                return position + 1
        return len(output.token_ids)

    def _search(self, piece: str, pieces: list[str]) -> None:
        if self._stops is None or len(self._token_ids) < self.request.params.min_tokens:
            pieces.append(piece)
            return
        emitted, matched = self._stops.push(piece)
        pieces.append(emitted)
        if matched is not None:
            self._stopped_by = matched

    def _flush(self, pieces: list[str]) -> None:
        self._search(self._decoder.flush(), pieces)
        if self._stops is not None and not self.cut_by_stop_string:
            pieces.append(self._stops.flush())

    def _accept_logprobs(self, logprobs: Sequence[TokenLogprob]) -> tuple[LogprobEntry, ...]:
        entries = tuple(logprob_entry(self._tokenizer, logprob) for logprob in logprobs)
        self._logprobs += entries
        return entries
