"""What the scheduler decided and why; state changes are `core.request.Transition`."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.ids import RequestId


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one request.

    `kind` is "chunked" (its prompt is computed in parts, told at each admission), "lent" (it
    computes a prefix for a stricter class, or got pages beyond the share of its class), "degraded"
    (moved to the next lower class), "refused" or "prefix_missed" (less than possible came from the
    cache). Admission and preemption are transitions and carry their reasons there; a class that
    starves is told by `Starved`.
    """

    kind: str
    request_id: RequestId
    service_class: str
    at_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Starved:
    """A class with work got no time for `seconds`; the next step gives it its minimum share."""

    service_class: str
    at_seconds: float
    seconds: float
