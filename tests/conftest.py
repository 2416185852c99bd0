"""Fixtures every test may use: shared data and the three real models."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from octavo.core.catalog import models_dir as octavo_models_dir
from octavo.core.catalog import pull

REPOSITORY = Path(__file__).resolve().parent.parent

# A change is judged on the same examples as its parent; developers' runs go on drawing new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Give Ctrl-C its meaning back: a run started in the background of a shell ignores it.

    Programs that tests start would inherit that, and tests of interrupts would wait for ever.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def heard_log() -> None:
    """Let `caplog` hear the log again where a command that a test ran kept it for itself."""
    logger = logging.getLogger("octavo")
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the shared data sets: $OCTAVO_DATA, else `shared/data` beside the repository.

    A missing folder skips the test on a developer's machine and fails it where CI is set.
    """
    chosen = os.environ.get("OCTAVO_DATA")
    folder = Path(chosen) if chosen else REPOSITORY.parent / "shared" / "data"
    if not folder.is_absolute():
        folder = REPOSITORY / folder
    if not folder.is_dir():
        message = f"no shared data in {folder}; set OCTAVO_DATA"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """Folder of the real models, which persists between runs."""
    return octavo_models_dir()


@pytest.fixture(scope="session")
def smollm2_path(models_dir: Path) -> Path:
    """SmolLM2-135M-Instruct Q4_1 (llama family), fetched when absent."""
    return pull("smollm2-135m", folder=models_dir)


@pytest.fixture(scope="session")
def gemma3_path(models_dir: Path) -> Path:
    """Gemma 3 270M Q4_K_M (gemma3 family), fetched when absent."""
    return pull("gemma-3-270m", folder=models_dir)


@pytest.fixture(scope="session")
def qwen_path(models_dir: Path) -> Path:
    """Qwen2.5-Coder-0.5B-Instruct Q4_K_M (qwen2 family), fetched when absent."""
    return pull("qwen2.5-coder-0.5b", folder=models_dir)
