"""Where settings come from: a YAML file, the environment, flags, in rising order.

An unknown key is an error with a suggestion, in every source.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from octavo.core.errors import SettingsError
from octavo.core.service_class_settings import check_routes, show_classes, show_routes
from octavo.core.settings import SETTING_KINDS, BlockSize, Settings
from octavo.core.units import format_bytes

_OFF_WITHOUT_VALUE = (
    "scheduler.max_step_ms",
    "memory.idle_release_seconds",
    "memory.swap_space",
)
_MAX_FILE_BYTES = 1 << 16
_PREFIX = "OCTAVO_"
_SECTIONS = tuple(dict.fromkeys(key.split(".")[0] for key in SETTING_KINDS if "." in key))


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings and, for every key that was set, the source of its value."""

    settings: Settings
    origins: Mapping[str, str]

    def value(self, key: str) -> object:
        """The value of a dotted key."""
        found: Any = self.settings
        for name in key.split("."):
            found = getattr(found, name)
        return found

    def origin(self, key: str) -> str:
        return self.origins.get(key, "default")


def load_settings(
    *,
    file: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
    overrides_origin: str = "the call",
) -> LoadedSettings:
    """Read all sources; later ones win: file, environment, flags ("key=value"), overrides.

    The file is `file`, else the one that OCTAVO_CONFIG names, else none. `environment` defaults to
    the process's. Keys of `overrides` may be dotted, nested, or the last name alone where it is
    unique ("token_budget"); `overrides_origin` is what explanations call them.

    Raises:
        SettingsError: the file cannot be read, a key is unknown, or a value is wrong.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    file = file or environment.get("OCTAVO_CONFIG")

    def put(key: str, value: object, origin: str) -> None:
        try:
            values[key] = SETTING_KINDS[key].parse(value, key)
        except SettingsError as error:
            raise SettingsError(
                f"{error.message} [from {origin}]", field=error.field, remedy=error.remedy
            ) from error
        origins[key] = origin

    if file:
        for key, value in _flatten(_read_yaml(Path(file).expanduser()), f"file {file}"):
            put(key, value, f"file {file}")
    for key, value, variable in _from_environment(environment):
        put(key, value, f"environment {variable}")
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not equals:
            raise SettingsError(
                f"{flag!r} is not key=value",
                field="--set",
                remedy="write for example --set scheduler.token_budget=512",
            )
        put(_known_key(name.strip(), "--set"), text, "flag --set")
    for key, value in _flatten(overrides or {}, overrides_origin):
        put(key, value, overrides_origin)
    return LoadedSettings(_build(values), origins)


def explain(loaded: LoadedSettings) -> str:
    """A table of every setting: value, unit, source, meaning."""
    rows = [("setting", "value", "unit", "source", "meaning")]
    for key, kind in SETTING_KINDS.items():
        value = show_value(key, loaded.value(key))
        rows.append((key, value, kind.unit or "-", loaded.origin(key), kind.about))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    )


def show_value(key: str, value: object) -> str:
    """A value as it may be written in any source."""
    if value is None:
        return "off" if key in _OFF_WITHOUT_VALUE else "auto"
    if key == "scheduler.service_classes" and isinstance(value, tuple):
        return show_classes(value)
    if key == "scheduler.routes" and isinstance(value, tuple):
        return show_routes(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if (key.endswith("_bytes") or key == "memory.swap_space") and isinstance(value, int):
        return format_bytes(value)
    return str(value)


def _build(values: Mapping[str, object]) -> Settings:
    settings = Settings()
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        change: dict[str, Any] = {name: value}
        if section:
            change = {section: replace(getattr(settings, section), **change)}
        settings = replace(settings, **change)
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    scheduler = settings.scheduler
    if scheduler.token_budget < scheduler.max_batch_size:
        raise SettingsError(
            f"{scheduler.token_budget} tokens a step are fewer than the "
            f"{scheduler.max_batch_size} requests that may run",
            field="scheduler.token_budget",
            remedy="raise it, or lower scheduler.max_batch_size",
        )
    if scheduler.static_padding and scheduler.batching != "static":
        raise SettingsError(
            f"pads no batch while scheduler.batching is {scheduler.batching}",
            field="scheduler.static_padding",
            remedy="add scheduler.batching=static",
        )
    check_routes(scheduler.routes, scheduler.service_classes, "scheduler.routes")


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """OCTAVO_MODEL and OCTAVO_SECTION__NAME; other OCTAVO_ variables are not settings."""
    for variable in sorted(environment):
        if not variable.startswith(_PREFIX):
            continue
        rest = variable.removeprefix(_PREFIX).lower()
        if "__" in rest:
            yield _known_key(rest.replace("__", "."), variable), environment[variable], variable
        elif rest in SETTING_KINDS:
            yield rest, environment[variable], variable
        elif rest.startswith(tuple(f"{section}_" for section in _SECTIONS)):
            section, _, name = rest.partition("_")
            raise SettingsError(
                "a section and its setting are joined by two underscores",
                field=variable,
                remedy=f"did you mean {_PREFIX}{section.upper()}__{name.upper()}?",
            )


def _flatten(tree: Mapping[str, object], origin: str) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if not isinstance(name, str):
            raise SettingsError(f"{name!r} is not a key", field=origin)
        if name in _SECTIONS:
            if is_dataclass(value) and not isinstance(value, (type, BlockSize)):
                value = {item.name: getattr(value, item.name) for item in fields(value)}
            if value is None:
                continue
            if not isinstance(value, Mapping):
                raise SettingsError(
                    f"must be a section of settings, not {type(value).__name__}",
                    field=f"{name} in {origin}",
                )
            for inner, setting in value.items():
                yield _known_key(f"{name}.{inner}", origin), setting
        else:
            yield _known_key(name, origin), value


def _known_key(name: str, origin: str) -> str:
    """The dotted key meant by `name`: itself, or the only one that ends in it."""
    if name in SETTING_KINDS:
        return name
    if "." not in name:
        ending = [key for key in SETTING_KINDS if key.endswith(f".{name}")]
        if len(ending) == 1:
            return ending[0]
    names = {key: key for key in SETTING_KINDS}
    names.update({key.rpartition(".")[2]: key for key in SETTING_KINDS})
    # A key in the wrong section is nearer by its last name than by the whole.
    last = name.rpartition(".")[2]
    close = [names[last]] if last in names else []
    close = close or [names[key] for key in difflib.get_close_matches(name[:100], names, n=1)]
    close = close or [names[key] for key in difflib.get_close_matches(last[:100], names, n=1)]
    remedy = f"did you mean {close[0]}?" if close else f"known: {', '.join(SETTING_KINDS)}"
    raise SettingsError("no such setting", field=f"{name[:100]} in {origin}", remedy=remedy)


def _read_yaml(path: Path) -> Mapping[str, object]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is given twice, where YAML libraries keep the last one silently."""

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        seen = [loader.construct_object(key) for key, _ in node.value]
        for key in seen:
            if not isinstance(key, str) or seen.count(key) > 1:
                problem = "given twice" if isinstance(key, str) else "not a text key"
                raise SettingsError(
                    f"{key!r} is {problem}, line {node.start_mark.line + 1}", field=f"file {path}"
                )
        return {
            key: loader.construct_object(value, deep=True)
            for key, (_, value) in zip(seen, node.value, strict=True)
        }

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        with path.open("rb") as stream:
            text = stream.read(_MAX_FILE_BYTES + 1)
        if len(text) > _MAX_FILE_BYTES:
            raise SettingsError(f"has more than {_MAX_FILE_BYTES} bytes", field=f"file {path}")
        tree = yaml.load(text, Loader)  # a subclass of SafeLoader
    except OSError as error:
        raise SettingsError(
            f"cannot be read: {error.strerror}",
            field=f"file {path}",
            remedy="give the path of a YAML file",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(
            f"is not YAML: {' '.join(str(error).split())[:200]}", field=f"file {path}"
        ) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsError("must hold sections of settings", field=f"file {path}")
    return tree
