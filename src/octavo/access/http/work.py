"""A request that has passed every check, and how its answer is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from octavo.access.http.fields import warning_headers
from octavo.access.http.treatment import CLASS_HEADER, Treatment
from octavo.engine.client import Delta, Prepared, RequestOutput

if TYPE_CHECKING:
    from octavo.engine.client import AsyncCall

MAX_CHOICES = 1024
"""Answers of one request, over all of its prompts."""


class Shape(Protocol):
    """How one route writes answers; one object serves one request.

    Every object of the answer begins with `base`.
    """

    answer_id: str
    base: dict[str, object]

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, object]:
        """The body of an answer that is not streamed."""

    def events(self, place: int, call: AsyncCall, delta: Delta) -> bytes:
        """The events that a delta of prompt number `place` gives; none if nothing shows."""

    def usage_chunk(self, outputs: Sequence[RequestOutput]) -> dict[str, object]:
        """The event that tells the usage at the end of a stream."""


@dataclass(frozen=True, slots=True)
class Work:
    """A request that has passed every check; one `Prepared` a prompt."""

    prepared: Sequence[Prepared]
    shape: Shape
    arrival_seconds: float
    treatment: Treatment
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]

    def note_class(self, service_class: str) -> None:
        """The engine has taken it in this class; what is answered from now on says so."""
        self.shape.base.update(self.treatment.told(service_class))

    @property
    def headers(self) -> dict[str, str]:
        """Headers of an answer, once the class is known."""
        return {
            "x-request-id": self.shape.answer_id,
            CLASS_HEADER: str(self.shape.base["service_class"]),
            **warning_headers(self.ignored),
        }
