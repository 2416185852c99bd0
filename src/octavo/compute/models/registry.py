"""Families by the name a file gives its architecture."""

from __future__ import annotations

from collections.abc import Callable

from octavo.compute.models import gemma3, llama, qwen2
from octavo.compute.models.checkpoint import Checkpoint
from octavo.compute.program import Program
from octavo.core.errors import ModelFileError
from octavo.core.gguf import GgufFile

FAMILIES: dict[str, Callable[[Checkpoint], Program]] = {
    "gemma3": gemma3.build,
    "llama": llama.build,
    "qwen2": qwen2.build,
}


def load_program(file: GgufFile) -> Program:
    """The program of a model file, with every key and tensor it needs checked; reads no weights.

    Raises:
        ModelFileError: the architecture or a variant is not supported, or a key or tensor is
            missing or wrong.
    """
    key = "general.architecture"
    architecture = file.text(key)
    if architecture not in FAMILIES:
        raise ModelFileError(
            "the architecture is not supported",
            field=key,
            expected="one of " + ", ".join(sorted(FAMILIES)),
            found=architecture[:60],
        )
    return FAMILIES[architecture](Checkpoint(file, architecture))
