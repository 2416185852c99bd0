"""Service classes and routes as people write them in settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from octavo.core.errors import SettingsError
from octavo.core.service_classes import (
    BUILT_IN,
    DEFAULT_CLASS,
    UNIFORM,
    Route,
    ServiceClass,
    check_classes,
)

_MOST_CLASSES = 32
_MOST_ROUTES = 256
_MOST_NUMBER = 1 << 53
# A name is the value of a header and of a label.
_CLASS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_ROUTE_KEY = re.compile(r"[0-9a-f]{16}|anonymous")


def parse_classes(value: object, name: str) -> tuple[ServiceClass, ...]:
    """`built-in`, `off` (everybody alike), or a mapping of names to what differs.

    The mapping (from YAML, or JSON text) changes built-in classes and adds others; `null` for a
    class takes it away.

    Raises:
        SettingsError: it is none of these, or a promise is out of range.
    """
    if isinstance(value, tuple) and all(isinstance(each, ServiceClass) for each in value):
        return check_classes(value)
    if isinstance(value, str) and value.strip() in ("built-in", "off"):
        return BUILT_IN if value.strip() == "built-in" else UNIFORM
    tree = _tree(value, name, "built-in, off, or a mapping of classes")
    if not isinstance(tree, Mapping):
        raise SettingsError("must be built-in, off, or a mapping of classes", field=name)
    found = {each.name: each for each in BUILT_IN}
    for key, changes in tree.items():
        if not isinstance(key, str) or not _CLASS_NAME.fullmatch(key):
            raise SettingsError(
                f"{key!a:.60} is not a name of a class",
                field=name,
                remedy="use at most 60 of the characters A-Z, a-z, 0-9, '.', '_' and '-'",
            )
        if changes is None and key not in found:
            raise SettingsError("is null, but there is no such class", field=f"{name}.{key}")
        if changes is None:
            del found[key]
        else:
            before = found.get(key, ServiceClass(key))
            found[key] = _class(before, changes, name)
    if DEFAULT_CLASS not in found:
        raise SettingsError(f"the class {DEFAULT_CLASS} cannot be taken away", field=name)
    if len(found) > _MOST_CLASSES:
        raise SettingsError(f"has more than {_MOST_CLASSES} classes", field=name)
    return check_classes(tuple(found.values()))


def parse_routes(value: object, name: str) -> tuple[Route, ...]:
    """A list of rules, the first that matches counts.

    Raises:
        SettingsError: it is no list of rules.
    """
    if isinstance(value, tuple) and all(isinstance(each, Route) for each in value):
        return value
    tree = _tree(value, name, "a list of rules")
    if not isinstance(tree, (list, tuple)) or len(tree) > _MOST_ROUTES:
        raise SettingsError(f"must be a list of at most {_MOST_ROUTES} rules", field=name)
    return tuple(_route(rule, f"{name}[{number}]") for number, rule in enumerate(tree))


def show_classes(classes: tuple[ServiceClass, ...]) -> str:
    """What `parse_classes` reads as these classes."""
    if classes in (BUILT_IN, UNIFORM):
        return "built-in" if classes == BUILT_IN else "off"
    taken_away = {each.name: None for each in BUILT_IN}
    tree = {each.name: _shown(each, ServiceClass(each.name)) for each in classes}
    return json.dumps({**taken_away, **tree})


def show_routes(routes: tuple[Route, ...]) -> str:
    """What `parse_routes` reads as these rules."""
    return json.dumps([_shown(each, Route("")) for each in routes])


def _shown(value: ServiceClass | Route, default: ServiceClass | Route) -> dict[str, object]:
    known = next((each for each in BUILT_IN if each.name == getattr(value, "name", "")), default)
    return {
        item.name: getattr(value, item.name)
        for item in fields(value)
        if getattr(value, item.name) != getattr(known, item.name)
    }


def check_routes(routes: tuple[Route, ...], classes: tuple[ServiceClass, ...], name: str) -> None:
    """Raises SettingsError if a rule leads to a class that is not there."""
    names = [each.name for each in classes]
    for number, route in enumerate(routes):
        if route.service_class not in names:
            raise SettingsError(
                f"leads to {route.service_class!r:.60}, which is no class",
                field=f"{name}[{number}].service_class",
                remedy=f"use {', '.join(names)}",
            )


def _tree(value: object, name: str, wanted: str) -> object:
    if not isinstance(value, str):
        return value

    def mapping(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, each in pairs:
            if key in found:
                raise SettingsError(f"has the key {key!a:.60} twice", field=name)
            found[key] = each
        return found

    try:
        return json.loads(value, object_pairs_hook=mapping)
    except (ValueError, RecursionError):
        raise SettingsError(f"must be {wanted}, as JSON", field=name) from None


def _class(before: ServiceClass, changes: object, name: str) -> ServiceClass:
    try:
        changed: ServiceClass = _changed(before, changes, f"{name}.{before.name}", ("name",))
    except SettingsError as error:
        if error.field is None or error.field.startswith(name):
            raise
        # Promises are checked where they are made, which knows the class only.
        raise SettingsError(error.message, field=f"{name}.{error.field}") from error
    return changed


def _route(rule: object, name: str) -> Route:
    route: Route = _changed(Route(""), rule, name)
    if route.key is not None and not _ROUTE_KEY.fullmatch(route.key):
        raise SettingsError(
            "is no hash of a bearer token",
            field=f"{name}.key",
            remedy="write the first 16 hexadecimal digits of its SHA-256, in small letters, or "
            "anonymous",
        )
    if route.path is not None and not route.path.startswith("/"):
        raise SettingsError("is no beginning of a path, such as /v1/chat", field=f"{name}.path")
    above, below = route.prompt_tokens_above, route.prompt_tokens_below
    if below is not None and below - 1 <= (0 if above is None else above):
        raise SettingsError("no prompt is so short", field=f"{name}.prompt_tokens_below")
    return route


def _changed(before: Any, changes: object, name: str, without: tuple[str, ...] = ()) -> Any:
    """A value with some fields replaced, each checked for its type."""
    if not isinstance(changes, Mapping):
        raise SettingsError("must be a mapping", field=name)
    kinds = {item.name: str(item.type) for item in fields(before) if item.name not in without}
    for key, value in changes.items():
        kind = kinds.get(key)
        if kind is None:
            raise SettingsError(
                "is not known", field=f"{name}.{key!s:.60}", remedy=f"known: {', '.join(kinds)}"
            )
        optional = kind.endswith(" | None")
        base = kind.removesuffix(" | None")
        good = {
            "str": isinstance(value, str),
            "int": isinstance(value, int)
            and not isinstance(value, bool)
            and 0 <= value < _MOST_NUMBER,
            "float": isinstance(value, (int, float)) and not isinstance(value, bool),
        }[base]
        if not good and not (optional and value is None):
            words = {"str": "text", "int": "a whole number from 0 to 2^53", "float": "a number"}[
                base
            ]
            suffix = " or null" if optional else ""
            raise SettingsError(f"must be {words}{suffix}", field=f"{name}.{key}")
    return replace(before, **{str(key): value for key, value in changes.items()})
