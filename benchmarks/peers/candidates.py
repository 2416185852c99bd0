"""Which engines can be measured here, with which weights, and why the others cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.peers import servers
from benchmarks.peers.engine import Engine, id_maker
from benchmarks.peers.environments import (
    LLAMA_CPP,
    OPENVINO,
    PEERS,
    VLLM,
    Peer,
    installed_version,
    python_of,
)
from benchmarks.peers.openvino_engine import openvino
from benchmarks.peers.rounds import OURS
from benchmarks.peers.weights import OPENVINO_TYPES, WeightsError, as_q4_0, types_in
from benchmarks.serving.processes import StartError, llama_cpp_binary

from octavo import __version__


class Skipped(Exception):
    """A peer that cannot be measured here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """What there is: `environments` by peer, `weights_folder` for files made of `model_file`,
    `settings` of Octavo, `openvino_step_tokens` instead of its default, `vllm_model` the same model
    as vLLM reads it."""

    model_file: Path
    environments: Mapping[str, Path]
    weights_folder: Path
    settings: tuple[str, ...] = ()
    openvino_step_tokens: int | None = None
    vllm_model: Path | None = None

    def python(self, peer: Peer) -> Path:
        return python_of(self.environments[peer.name])

    def q4_0(self) -> Path:
        """The model as Q4_0, made by the tool beside llama.cpp's server.

        Raises:
            WeightsError, StartError: there is no such tool, or it failed.
        """
        server = Path(llama_cpp_binary(self.python(LLAMA_CPP)))
        return as_q4_0(self.model_file, self.weights_folder, server.with_name("llama-quantize"))


def engines_of(place: Place, names: Sequence[str]) -> tuple[list[Engine], dict[str, str]]:
    """Octavo and every one of these peers that can be measured, and why the others cannot."""
    ours = partial(servers.octavo, place.model_file, place.settings)
    engines = [Engine(OURS, f"octavo {__version__}", place.model_file, ours)]
    skipped: dict[str, str] = {}
    for name in names:
        try:
            found = installed(PEERS[name], place.environments[name])
            engines.append(_BUILDERS[name](place, found))
        except (Skipped, WeightsError, StartError) as error:
            skipped[name] = str(error)
    return engines, skipped


def installed(peer: Peer, environment: Path) -> str:
    """Name and version of the peer's package.

    Raises:
        Skipped: it is not there; the message tells how to install it.
    """
    found = installed_version(peer, environment)
    if found is None:
        raise Skipped(
            f"{environment} has no package {peer.package}; install it with "
            f"`make bench-peers PEERS={peer.name}`, or: {peer.how_to_install(environment)}"
        )
    return f"{peer.package} {found}"


def llama_cpp_engine(place: Place, found: str) -> Engine:
    weights = place.q4_0()
    start = partial(servers.llama_cpp, place.python(LLAMA_CPP), weights, place.model_file)
    return Engine(LLAMA_CPP.name, found, weights, start)


def openvino_engine(place: Place, found: str) -> Engine:
    """With the user's own file where OpenVINO GenAI reads it, else with its Q4_0 form."""
    weights = place.model_file
    unread = types_in(weights) - OPENVINO_TYPES
    if unread:
        if installed_version(LLAMA_CPP, place.environments[LLAMA_CPP.name]) is None:
            raise Skipped(
                f"it does not read {', '.join(sorted(unread))} of {weights.name}, and without "
                f"{LLAMA_CPP.name} there is no tool that makes a Q4_0 file of it"
            )
        weights = place.q4_0()
    maker = id_maker(place.model_file)
    start = partial(openvino, place.python(OPENVINO), weights, maker, place.openvino_step_tokens)
    return Engine(OPENVINO.name, found, weights, start)


def vllm_engine(place: Place, found: str) -> Engine:
    if place.vllm_model is None:
        raise Skipped("it reads no GGUF file on a CPU: give --vllm-model FOLDER with safetensors")
    start = partial(servers.vllm, place.python(VLLM), place.vllm_model, place.model_file)
    return Engine(VLLM.name, found, place.vllm_model, start)


_BUILDERS: Mapping[str, Callable[[Place, str], Engine]] = {
    LLAMA_CPP.name: llama_cpp_engine,
    OPENVINO.name: openvino_engine,
    VLLM.name: vllm_engine,
}
