"""What is promised to which requests: service classes, and rules that give a request its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.core.errors import InvalidRequest, SettingsError

DEFAULT_CLASS = "standard"

SERVICE_TIERS: Mapping[str, str] = {
    "auto": "standard",
    "default": "standard",
    "priority": "realtime",
    "flex": "batch",
}
"""Classes by the names of the OpenAI field `service_tier`."""

DEFAULT_TIER = "default"

ON_MISS = ("run", "degrade", "refuse")


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """The promise to one class of requests; None stands for no target and no limit.

    `weight` divides the time that is left after the promises. From `admit_min` on, up to
    `admit_max` waiting requests get a row in one step; fewer wait up to `longest_wait_seconds` for
    company, unless the engine would be idle. A class may hold more than `kv_share` of the pages
    only while nobody else wants them. `on_miss` says what becomes of a request that will miss its
    first-token target. The queue is bounded by requests, prompt tokens and predicted wait. A
    request that names no limits of its own ends after `queue_timeout_seconds` without a row, and
    after `timeout_seconds` in all.
    """

    name: str
    first_token_seconds: float | None = None
    inter_token_seconds: float | None = None
    weight: float = 1.0
    admit_min: int = 1
    admit_max: int = 1024
    longest_wait_seconds: float = 0.0
    kv_share: float = 1.0
    on_miss: str = "run"
    queue_requests: int | None = None
    queue_tokens: int | None = None
    queue_seconds: float | None = None
    queue_timeout_seconds: float | None = None
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in (
            "first_token_seconds",
            "inter_token_seconds",
            "queue_seconds",
            "queue_timeout_seconds",
            "timeout_seconds",
        ):
            value = getattr(self, name)
            self._check(value is None or 0 < value < 1e6, name, "must be more than 0 seconds")
        self._check(0 < self.weight < 1e6, "weight", "must be more than 0")
        self._check(0 < self.kv_share <= 1, "kv_share", "must be more than 0 and at most 1")
        self._check(0 <= self.longest_wait_seconds < 1e6, "longest_wait_seconds", "must not be < 0")
        self._check(self.admit_min >= 1, "admit_min", "must be at least 1")
        self._check(self.admit_min <= self.admit_max, "admit_max", "is less than admit_min")
        self._check(self.on_miss in ON_MISS, "on_miss", f"must be one of {', '.join(ON_MISS)}")
        for name in ("queue_requests", "queue_tokens"):
            value = getattr(self, name)
            self._check(value is None or value >= 1, name, "must be at least 1")

    def _check(self, holds: bool, name: str, problem: str) -> None:
        if not holds:
            raise SettingsError(problem, field=f"{self.name[:60]}.{name}")

    @property
    def strictness(self) -> tuple[float, float, float]:
        """Stricter classes compare lower: by inter-token target, first-token target, weight."""
        infinite = float("inf")
        return (
            self.inter_token_seconds or infinite,
            self.first_token_seconds or infinite,
            -self.weight,
        )


UNIFORM: tuple[ServiceClass, ...] = (ServiceClass(DEFAULT_CLASS),)
"""Everybody alike: one class without promises, which requests of any name belong to."""

BUILT_IN: tuple[ServiceClass, ...] = (
    ServiceClass(
        "realtime",
        first_token_seconds=0.5,
        inter_token_seconds=0.05,
        weight=3,
        admit_min=1,
        admit_max=4,
        kv_share=0.3,
        queue_requests=1024,
    ),
    ServiceClass(
        "standard",
        first_token_seconds=2.0,
        inter_token_seconds=0.2,
        weight=2,
        admit_min=4,
        admit_max=16,
        longest_wait_seconds=0.01,
        kv_share=0.6,
        queue_requests=2048,
    ),
    ServiceClass(
        "batch",
        weight=1,
        admit_min=16,
        admit_max=64,
        longest_wait_seconds=0.25,
        kv_share=0.9,
        queue_requests=8192,
    ),
)


def check_classes(classes: Sequence[ServiceClass]) -> tuple[ServiceClass, ...]:
    """The classes, strictest first.

    Raises:
        SettingsError: there is none, or two have one name.
    """
    names = [each.name for each in classes]
    if not names:
        raise SettingsError("at least one class is needed", field="service_classes")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(f"{twice[0]!r} is there twice", field="service_classes")
    return tuple(sorted(classes, key=lambda each: each.strictness))


@dataclass(frozen=True, slots=True)
class Route:
    """A rule: requests that meet every condition which is set belong to `service_class`.

    `prompt_tokens_above` and `prompt_tokens_below` exclude their bound; `path` is the start of the
    request's path; `key` is the name of its API key.
    """

    service_class: str
    prompt_tokens_above: int | None = None
    prompt_tokens_below: int | None = None
    path: str | None = None
    key: str | None = None

    def matches(self, prompt_tokens: int, path: str, key: str | None) -> bool:
        above, below = self.prompt_tokens_above, self.prompt_tokens_below
        return (
            (above is None or prompt_tokens > above)
            and (below is None or prompt_tokens < below)
            and (self.path is None or path.startswith(self.path))
            and (self.key is None or key == self.key)
        )


def choose_class(
    classes: Sequence[ServiceClass],
    *,
    named: str | None = None,
    tier: str | None = None,
    routes: Sequence[Route] = (),
    prompt_tokens: int = 0,
    path: str = "",
    key: str | None = None,
) -> str:
    """The class a request belongs to: the one it names, else its tier's, else the first route's.

    The tiers "auto" and "default" leave the choice to the routes. Where everybody is alike
    (`UNIFORM`) the names of the built-in classes are taken too and mean the one class.

    Raises:
        InvalidRequest: it names a class or tier that is not there.
    """
    names = [each.name for each in classes]
    if named is not None:
        known = [each.name for each in BUILT_IN] if tuple(classes) == UNIFORM else names
        if named not in known:
            raise InvalidRequest(f"must be one of {', '.join(known)}", field="service_class")
        return named if named in names else DEFAULT_CLASS
    if tier is not None and tier not in SERVICE_TIERS:
        raise InvalidRequest(f"must be one of {', '.join(SERVICE_TIERS)}", field="service_tier")
    wanted = SERVICE_TIERS.get(tier or "auto", DEFAULT_CLASS)
    if wanted == DEFAULT_CLASS:
        for route in routes:
            if route.service_class in names and route.matches(prompt_tokens, path, key):
                return route.service_class
    if wanted in names:
        return wanted
    return DEFAULT_CLASS if DEFAULT_CLASS in names else names[-1]


def tier_of(service_class: str) -> str:
    """The OpenAI name of the tier that a class amounts to."""
    tiers = {name: tier for tier, name in SERVICE_TIERS.items()}
    return tiers.get(service_class, DEFAULT_TIER)
