"""A server that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from http_harness import LONG_SETTINGS, Server, octavo_serve
from tiny import make_tiny_gguf


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of the llama family with a byte-level vocabulary of 512 and 512 positions."""
    return make_tiny_gguf(tmp_path_factory.mktemp("served") / "tiny.gguf", seed=3)


@pytest.fixture(scope="session")
def long_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with 8,192 positions: an answer that lasts, for tests of what happens meanwhile."""
    return make_tiny_gguf(tmp_path_factory.mktemp("long") / "long.gguf", seed=3, context=8192)


@pytest.fixture(scope="session")
def long_server(long_path: Path) -> Iterator[Server]:
    """`octavo serve` on the model with many positions."""
    with octavo_serve(long_path, settings=LONG_SETTINGS) as running:
        yield running


@pytest.fixture(scope="session")
def server(tiny_path: Path) -> Iterator[Server]:
    """`octavo serve` on the tiny model; tests leave it as they find it."""
    with octavo_serve(tiny_path) as running:
        yield running
