"""Where a back end gets weights from, whatever the file format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.core.gguf import GgufFile
from octavo.core.gguf_types import GgmlType


class RawTensor(NamedTuple):
    """A tensor as stored: block bytes [any] uint8, format, shape row-major ((N, K) or (N,))."""

    data: NDArray[np.uint8]
    ggml_type: GgmlType
    shape: tuple[int, ...]


class WeightSource(Protocol):
    """Named tensors in their stored format."""

    def names(self) -> Iterable[str]:
        """All tensors there are."""
        ...

    def raw(self, name: str) -> RawTensor:
        """One tensor; no copy where the file is mapped.

        Raises:
            ModelFileError: there is no such tensor.
        """
        ...

    def release(self, name: str) -> None:
        """The tensor was copied: its stored bytes need not stay in memory."""
        ...


class GgufWeights:
    """Weights of an open GGUF file; the arrays are read-only views of its mapping."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def names(self) -> Iterable[str]:
        return self._file.tensors.keys()

    def raw(self, name: str) -> RawTensor:
        data = np.frombuffer(self._file.raw(name), dtype=np.uint8)
        info = self._file.tensors[name]
        return RawTensor(data, info.ggml_type, info.shape)

    def release(self, name: str) -> None:
        self._file.release(name)
