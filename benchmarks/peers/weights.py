"""The model file that a peer is given: the user's own, or the same weights as Q4_0."""

from __future__ import annotations

import subprocess
from pathlib import Path

from octavo.core.gguf import GgufFile

OPENVINO_TYPES = frozenset({"F32", "F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"})


class WeightsError(Exception):
    """A file in a format that the peer reads could not be had; the message says why."""


def types_in(model_file: Path) -> frozenset[str]:
    """Names of the element types of a GGUF file's tensors."""
    with GgufFile.open(model_file) as opened:
        return frozenset(tensor.ggml_type.name for tensor in opened.tensors.values())


def as_q4_0(model_file: Path, folder: Path, quantize: Path) -> Path:
    """The same weights as Q4_0, made once with llama.cpp's own tool and kept in `folder`.

    The tool leaves the matrix of the output at a higher precision, as it does for everybody.

    Raises:
        WeightsError: the tool is missing or failed.
    """
    made = folder / f"{model_file.stem}.as-Q4_0.gguf"
    if made.exists() and made.stat().st_mtime >= model_file.stat().st_mtime:
        return made
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = made.with_suffix(".part")
    command = [str(quantize), "--allow-requantize", str(model_file), str(unfinished), "Q4_0"]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except OSError as error:
        raise WeightsError(f"{quantize} cannot be run: {error}") from error
    except subprocess.CalledProcessError as error:
        last = "\n".join(str(error.stderr).splitlines()[-4:])
        raise WeightsError(f"{quantize} failed: {last}") from error
    unfinished.replace(made)
    return made
