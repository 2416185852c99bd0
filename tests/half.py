"""A float16 GGUF file made from a quantised one, for tests of 16-bit weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from octavo.compute.load.source import GgufWeights
from octavo.compute.quant.dequantise import dequantise
from octavo.core.gguf import GgufFile


def make_half_gguf(source: Path, target: Path) -> Path:
    """Write `source` again with all matrices in F16 and all vectors in F32; returns `target`."""
    with GgufFile.open(source) as file:
        writer = gguf.GGUFWriter(target, file.text("general.architecture"))
        for key in file.metadata:
            if key != "general.architecture":
                _add(writer, key, file.metadata[key])
        weights = GgufWeights(file)
        for name in weights.names():
            values = dequantise(*weights.raw(name))
            writer.add_tensor(name, values.astype(np.float16) if values.ndim == 2 else values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return target


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        raise TypeError(f"{key}: {type(value).__name__}")
