"""Settings: what there is, with types, units and ranges. `settings_load` finds their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from octavo.core.errors import SettingsError
from octavo.core.service_class_settings import parse_classes, parse_routes
from octavo.core.service_classes import BUILT_IN, Route, ServiceClass
from octavo.core.shown import shown
from octavo.core.units import format_bytes, parse_bytes, parse_tokens

PAGE_SIZES_TOKENS = (16, 32, 64, 128, 256)
"""Page sizes that the kernels take."""

AUTO_PAGE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class BlockSize:
    """Size of a KV page: tokens, or bytes a layer (both None: chosen by Octavo)."""

    tokens: int | None = None
    bytes_per_layer: int | None = None

    def __str__(self) -> str:
        if self.tokens is not None:
            return f"{self.tokens}tok"
        if self.bytes_per_layer is not None:
            return format_bytes(self.bytes_per_layer)
        return "auto"


_AUTO = BlockSize()


@dataclass(frozen=True, slots=True)
class HostNames:
    """Names that a Host header may have."""

    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ",".join(self.names) or "none"


def page_tokens(block_size: BlockSize, bytes_per_token_per_layer: int) -> int:
    """Tokens of a page: a size in bytes is rounded down to one that the kernels take.

    Raises:
        SettingsError: the size in bytes holds less than the smallest page of this model.
    """
    if block_size.tokens is not None:
        return block_size.tokens
    if block_size.bytes_per_layer is None:
        return AUTO_PAGE_TOKENS
    fitting = block_size.bytes_per_layer // bytes_per_token_per_layer
    sizes = [size for size in PAGE_SIZES_TOKENS if size <= fitting]
    if not sizes:
        smallest = PAGE_SIZES_TOKENS[0] * bytes_per_token_per_layer
        raise SettingsError(
            f"{block_size} a layer holds {fitting} tokens of this model, "
            f"a page has at least {PAGE_SIZES_TOKENS[0]}",
            field="memory.block_size",
            remedy=f"use at least {format_bytes(smallest)}, or auto",
        )
    return sizes[-1]


Parser = Callable[[object, str], Any]


def _setting(default: object, parse: Parser, unit: str, about: str) -> Any:
    return field(default=default, metadata={"parse": parse, "unit": unit, "about": about})


def _integer(low: int, high: int, *, none: str | None = None) -> Parser:
    """An integer in [low, high]; the word `none` (and null) stands for no value."""

    def parse(value: object, name: str) -> int | None:
        text = value.strip() if isinstance(value, str) else value
        if none is not None and (text is None or text in (none, "null")):
            return None
        if isinstance(text, str) and text.lstrip("+-").isdecimal() and len(text) < 20:
            text = int(text)
        if isinstance(text, bool) or not isinstance(text, int) or not low <= text <= high:
            words = f" or {none}" if none else ""
            raise SettingsError(
                f"must be a whole number from {low} to {high}{words}, not {shown(value)}",
                field=name,
            )
        return text

    return parse


def _number(low: float, high: float, *, none: str | None = None) -> Parser:
    """A number in [low, high]; the word `none` (and null) stands for no value."""

    def parse(value: object, name: str) -> float | None:
        text = value.strip() if isinstance(value, str) else value
        if none is not None and (text is None or text in (none, "null")):
            return None
        try:
            number = float(text) if isinstance(text, (int, float, str)) else None
        except (ValueError, OverflowError):
            number = None
        if number is None or isinstance(text, bool) or not low <= number <= high:
            words = f" or {none}" if none else ""
            raise SettingsError(
                f"must be a number from {low:g} to {high:g}{words}, not {shown(value)}", field=name
            )
        return number

    return parse


def _choice(*choices: str) -> Parser:
    def parse(value: object, name: str) -> str:
        if isinstance(value, str) and value.strip() in choices:
            return value.strip()
        raise SettingsError(f"must be one of {', '.join(choices)}, not {shown(value)}", field=name)

    return parse


def _switch(value: object, name: str) -> bool:
    text = value.strip() if isinstance(value, str) else value
    for state, words in ((True, (True, "on", "true")), (False, (False, "off", "false"))):
        if any(text is word or (isinstance(text, str) and text == word) for word in words):
            return state
    raise SettingsError(f"must be on or off, not {shown(value)}", field=name)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(f"must be a name or a path, not {shown(value)}", field=name)
    return value.strip()


def _name_or_auto(value: object, name: str) -> str | None:
    if value is None or (isinstance(value, str) and value.strip() == "auto"):
        return None
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(f"must be a name or auto, not {shown(value)}", field=name)
    return value.strip()


def _host_names(value: object, name: str) -> HostNames:
    """A list of names, or a text with commas between them; the word `none` stands for no name."""
    if isinstance(value, HostNames):
        return value
    if value is None or (isinstance(value, str) and value.strip() == "none"):
        return HostNames()
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        raise SettingsError(f"must be a list of names, not {shown(value)}", field=name)
    for each in names:
        if not isinstance(each, str) or not each.strip() or set(each.strip()) & set("/: \t"):
            raise SettingsError(
                f"must hold names without scheme and port, not {shown(each)}", field=name
            )
    return HostNames(tuple(each.strip() for each in names))


def _block_size(value: object, name: str) -> BlockSize:
    if isinstance(value, BlockSize):
        return value
    if isinstance(value, str) and value.strip() == "auto":
        return _AUTO
    tokens = parse_tokens(value, name)
    if tokens is None:
        return BlockSize(bytes_per_layer=parse_bytes(value, name))
    if tokens not in PAGE_SIZES_TOKENS:
        raise SettingsError(
            f"a page of {tokens} tokens is not supported",
            field=name,
            remedy="use " + ", ".join(f"{size}tok" for size in PAGE_SIZES_TOKENS),
        )
    return BlockSize(tokens=tokens)


def _bytes_or_auto(value: object, name: str) -> int | None:
    if value is None or (isinstance(value, str) and value.strip() == "auto"):
        return None
    return parse_bytes(value, name)


def _bytes_or_off(value: object, name: str) -> int | None:
    if value is None or value is False or (isinstance(value, str) and value.strip() == "off"):
        return None
    return parse_bytes(value, name)


def _folder_or_auto(value: object, name: str) -> str | None:
    if value is None or value == "auto":
        return None
    return _text(value, name)


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """How requests share a step."""

    max_batch_size: int = _setting(
        64, _integer(1, 1024), "requests", "most requests that run at the same time"
    )
    token_budget: int = _setting(
        2048, _integer(16, 65536), "tokens", "most tokens computed in one step"
    )
    max_chunk_tokens: int | None = _setting(
        None,
        _integer(1, 65536, none="auto"),
        "tokens",
        "most prompt tokens of one request in a step (auto: the token budget)",
    )
    max_step_ms: float | None = _setting(
        100.0,
        _number(1, 60_000, none="off"),
        "milliseconds",
        "longest step that may be predicted (off: steps are bounded in tokens only)",
    )
    profile: str | None = _setting(
        None,
        _name_or_auto,
        "",
        "file with the cost of steps (auto: what octavo plan calibrate has stored for the model)",
    )
    starvation_seconds: float = _setting(
        5.0, _number(0.01, 3600), "seconds", "after so long without time a class gets a minimum"
    )
    batching: str = _setting(
        "continuous",
        _choice("continuous", "dynamic", "static"),
        "",
        "when requests may join: at any time, or in batches",
    )
    static_padding: bool = _setting(
        False, _switch, "", "compute every prompt of a static batch as if it were the longest"
    )
    max_wait_ms: float = _setting(
        100.0, _number(0, 60_000), "milliseconds", "how long a dynamic batch waits to be full"
    )
    service_classes: tuple[ServiceClass, ...] = _setting(
        BUILT_IN, parse_classes, "", "promises: built-in, off, or a mapping of what differs"
    )
    routes: tuple[Route, ...] = _setting(
        (), parse_routes, "", "rules that give requests which name no class theirs"
    )


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """The paged KV cache."""

    block_size: BlockSize = _setting(  # noqa: RUF009 - it returns a dataclass field
        _AUTO, _block_size, "tokens, or bytes a layer", "size of a KV page"
    )
    kv_bytes: int | None = _setting(
        None, _bytes_or_auto, "bytes", "KV cache in all (auto: from the memory that is free)"
    )
    total_bytes: int | None = _setting(
        None, _bytes_or_auto, "bytes", "all that the engine holds (auto: what the system has)"
    )
    kv_format: str = _setting("fp16", _choice("fp16", "int8", "fp32"), "", "how K and V are stored")
    idle_release_seconds: float | None = _setting(
        300.0,
        _number(1, 10_000_000, none="off"),
        "seconds",
        "memory that was not used for so long goes back to the system (cpu)",
    )
    layout: str = _setting(
        "paged",
        _choice("paged", "contiguous"),
        "",
        "pages as they are needed, or one run reserved for prompt and answer (to compare with)",
    )
    prefix_cache: bool = _setting(
        True, _switch, "", "requests reuse pages of equal beginnings (layout paged)"
    )
    tenant_salts: bool = _setting(
        True, _switch, "", "callers with different keys never share pages, so none can probe others"
    )
    reclaim: str = _setting(
        "lazy",
        _choice("lazy", "eager"),
        "",
        "pages nobody holds: kept until their memory is wanted, or given back at once",
    )
    swap_space: int | None = _setting(
        None, _bytes_or_off, "bytes", "disk space for pages that the KV cache has no room for"
    )
    swap_dir: str | None = _setting(
        None, _folder_or_auto, "", "folder of those pages (auto: in Octavo's own folder)"
    )
    swap_threshold: float = _setting(
        0.7, _number(0, 1), "", "part of the KV cache in use from which cold pages are written"
    )
    swap_timeout_ms: float = _setting(
        5000.0, _number(1, 600_000), "milliseconds", "how long a request waits for pages from disk"
    )

    @property
    def reuses_pages(self) -> bool:
        """Whether a request can find pages that nobody holds any more."""
        return self.prefix_cache and self.layout == "paged" and self.reclaim == "lazy"


@dataclass(frozen=True, slots=True)
class ComputeSettings:
    """The interpreter that runs the model."""

    backend: str = _setting(
        "cpu", _choice("cpu", "reference"), "", "cpu (native kernels) or reference (numpy, slow)"
    )
    threads: int | None = _setting(
        None, _integer(1, 1024, none="auto"), "threads", "threads of the native kernels"
    )
    activations: str = _setting(
        "int8",
        _choice("int8", "int8x2", "fp32"),
        "",
        "precision of activations in matrix products (cpu)",
    )
    cpu_tier: str = _setting(
        "auto",
        _choice("auto", "avx512-vnni", "avx2", "scalar"),
        "",
        "instruction set of the native kernels",
    )


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The HTTP server."""

    host: str = _setting("127.0.0.1", _text, "", "address to listen at (this machine's own only)")
    http_port: int = _setting(8000, _integer(0, 65535), "", "port to listen at (0: any free one)")
    max_body_bytes: int = _setting(32 << 20, parse_bytes, "bytes", "longest body of a request")
    max_connections: int = _setting(
        4096, _integer(1, 1_000_000), "connections", "most connections at the same time"
    )
    allowed_hosts: HostNames = _setting(  # noqa: RUF009 - it returns a dataclass field
        HostNames(),
        _host_names,
        "names",
        "names that requests may be addressed to, besides loopback ones",
    )
    ready_seconds: int = _setting(
        30, _integer(1, 86_400), "seconds", "silence of the engine that makes the server not ready"
    )
    stuck_seconds: int = _setting(
        300, _integer(2, 86_400), "seconds", "silence of the engine after which it is started again"
    )
    drain_seconds: int = _setting(
        30, _integer(0, 86_400), "seconds", "time for running answers when the server is to end"
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set; defaults are here."""

    model: str = _setting("smollm2-135m", _text, "", "known name, GGUF file, or folder with one")
    pre_tokenizer: str | None = _setting(
        None, _name_or_auto, "", "how text is cut before it becomes tokens (auto: as the file says)"
    )
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    server: ServerSettings = field(default_factory=ServerSettings)


@dataclass(frozen=True, slots=True)
class SettingKind:
    """One setting: dotted key, default, parser (value, key) -> typed value, unit, explanation."""

    key: str
    default: object
    parse: Parser
    unit: str
    about: str


def _kinds() -> dict[str, SettingKind]:
    found: dict[str, SettingKind] = {}
    defaults = Settings()

    def walk(section: Any, prefix: str) -> None:
        for item in fields(section):
            value = getattr(section, item.name)
            if "parse" in item.metadata:
                found[prefix + item.name] = SettingKind(
                    prefix + item.name,
                    value,
                    item.metadata["parse"],
                    item.metadata["unit"],
                    item.metadata["about"],
                )
            else:
                walk(value, f"{prefix}{item.name}.")

    walk(defaults, "")
    return found


SETTING_KINDS: dict[str, SettingKind] = _kinds()
"""Every setting by its dotted key, in the order of this file."""
