"""Token ids that stand for prompts and answers whose text nobody knows."""

from __future__ import annotations

from octavo.core.ids import RequestId
from octavo.core.request import ANONYMOUS, Request
from octavo.core.sampling import SamplingParams
from octavo.plan.traces import TraceRequest

_LAST_TOKEN = 2**31 - 1


def request_id(number: int) -> RequestId:
    """Id of the request of that number; `answer_token` reads the number back."""
    return RequestId(str(number))


def answer_token(identity: str) -> int:
    """The token of which a request's whole answer consists; no other request has it."""
    return _LAST_TOKEN - int(identity)


class SyntheticPrompts:
    """Gives equal blocks of a trace equal tokens and everything else tokens of its own.

    Block tokens count up from 0 in order of appearance, those of single requests down from the
    last id, so they never meet. Answers are never part of a later prompt: traces do not say
    whether they were.
    """

    def __init__(self) -> None:
        self._block_tokens: dict[tuple[str, int], int] = {}

    def request(self, traced: TraceRequest, number: int, service_class: str) -> Request:
        """The request as the scheduler takes it; its answer ends by length alone."""
        return Request(
            id=request_id(number),
            prompt=self._prompt(traced, number),
            params=SamplingParams(max_tokens=traced.output_tokens, ignore_eos=True),
            seed=number,
            max_new_tokens=traced.output_tokens,
            arrival_seconds=traced.arrival_seconds,
            service_class=service_class,
            tenant=traced.tenant or ANONYMOUS,
        )

    def _prompt(self, traced: TraceRequest, number: int) -> tuple[int, ...]:
        if not traced.block_ids:
            return (answer_token(request_id(number)),) * traced.prompt_tokens
        tokens: list[int] = []
        for block in traced.block_ids:
            known = self._block_tokens
            token = known.setdefault((traced.source, block), len(known))
            tokens += [token] * traced.block_tokens
        return tuple(tokens[: traced.prompt_tokens])
