"""How a request asks to be treated: its class, its tenant, its limits of time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from octavo.access.http.errors import invalid
from octavo.access.http.fields import Fields
from octavo.access.http.service import INLINE_CHARACTERS, Service
from octavo.core.request import ANONYMOUS
from octavo.core.sampling import as_number
from octavo.core.service_classes import ON_MISS, ServiceClass, choose_class, tier_of
from octavo.engine.client import Prepared

CLASS_HEADER = "x-octavo-service-class"
MAX_TIMEOUT_SECONDS = 86_400.0
_TENANT_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Treatment:
    """What a request says about its treatment. None: it says nothing."""

    named: str | None
    tier: str | None
    on_miss: str | None
    timeout_seconds: float | None
    queue_timeout_seconds: float | None
    path: str
    tenant: str

    @classmethod
    def take(cls, fields: Fields, request: Request, service: Service) -> Treatment:
        """Take the fields.

        Raises:
            ApiError, InvalidRequest: one is of a wrong kind, or there is no such class.
        """
        on_miss = fields.text("on_miss")
        if on_miss is not None and on_miss not in ON_MISS:
            raise invalid(f"must be one of {', '.join(ON_MISS)}", "on_miss")
        found = cls(
            named=fields.text("service_class"),
            tier=fields.text("service_tier"),
            on_miss=on_miss,
            timeout_seconds=_seconds(fields, "timeout_seconds"),
            queue_timeout_seconds=_seconds(fields, "queue_timeout_seconds"),
            path=request.url.path,
            tenant=tenant_of(request),
        )
        found._choose(service, 0)
        return found

    def check_room(self, service: Service, characters: int) -> None:
        """Refuse before a long prompt is tokenized what the engine has no room for.

        A class that depends on the number of tokens is left to the engine.

        Raises:
            Overloaded: too many requests of the class wait.
        """
        shortest, longest = self._choose(service, 1), self._choose(service, characters)
        if characters > INLINE_CHARACTERS and shortest == longest:
            service.client.check_room(service.class_named(shortest))

    def service_class(self, service: Service, prepared: Sequence[Prepared]) -> ServiceClass:
        """The class it belongs to, the longest of its prompts being known.

        Raises:
            ApiError: the answers asked for would not find room in an empty queue, now or later.
        """
        tokens = max(len(each.token_ids) for each in prepared)
        found = service.class_named(self._choose(service, tokens))
        answers = sum(each.params.n for each in prepared)
        whole_tokens = sum(each.params.n * len(each.token_ids) for each in prepared)
        for wanted, most, what in (
            (answers, found.queue_requests, "answers"),
            (whole_tokens, found.queue_tokens, "prompt tokens"),
        ):
            # One alone is taken whatever its length.
            if answers > 1 and most is not None and wanted > most:
                raise invalid(
                    f"asks for {answers} answers at once: class {found.name} lets no more than "
                    f"{most} {what} wait, these are {wanted}",
                    "n" if len(prepared) == 1 else "prompt",
                )
        return found

    def told(self, service_class: str) -> dict[str, object]:
        """What an answer says about the class that it was computed in."""
        told: dict[str, object] = {"service_class": service_class}
        if self.tier is not None:
            told["service_tier"] = tier_of(service_class)
        return told

    def _choose(self, service: Service, prompt_tokens: int) -> str:
        return choose_class(
            service.classes,
            named=self.named,
            tier=self.tier,
            routes=service.routes,
            prompt_tokens=prompt_tokens,
            path=self.path,
            key=self.tenant,
        )


def tenant_of(request: Request) -> str:
    """Who asks: the first digits of the SHA-256 of the bearer token, which itself goes nowhere."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return ANONYMOUS
    digest = hashlib.sha256(token.strip().encode("latin-1"))
    return digest.hexdigest()[:_TENANT_DIGITS]


def _seconds(fields: Fields, name: str) -> float | None:
    value = fields.take(name)
    if value is None:
        return None
    seconds = as_number(value, name, 0.0, MAX_TIMEOUT_SECONDS)
    if seconds == 0.0:
        raise invalid("must be more than 0", name)
    return seconds
