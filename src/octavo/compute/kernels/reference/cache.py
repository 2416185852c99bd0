"""The paged KV cache of the reference interpreter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.compute.kernels.reference.operators import Floats
from octavo.compute.program import KvLayout

FORMATS: dict[str, type[np.float16] | type[np.float32]] = {"fp16": np.float16, "fp32": np.float32}
_LARGEST_HALF = 65504.0


class PagedCache:
    """Pages [page][layer][K or V][kv head][token][element]; unwritten slots hold NaN.

    The NaN makes a read of a slot that nobody wrote show in the logits.
    """

    def __init__(self, layout: KvLayout, kv_format: str, pages: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.pages = pages
        shape = (pages, layout.layers, 2, layout.kv_heads, page_tokens, layout.head_dim)
        self._slots = np.full(shape, np.nan, dtype=FORMATS[kv_format])

    def write(self, layer: int, table: NDArray[np.int32], start: int, k: Floats, v: Floats) -> None:
        """Store k, v [tokens, kv_heads, head_dim] at positions from `start`.

        float16 saturates at its largest number instead of becoming infinite.
        """
        positions = np.arange(start, start + len(k))
        pages, offsets = table[positions // self.page_tokens], positions % self.page_tokens
        for part, values in enumerate((k, v)):
            stored = values
            if self._slots.dtype == np.float16:
                stored = np.clip(values, -_LARGEST_HALF, _LARGEST_HALF)
            self._slots[pages, layer, part, :, offsets] = stored

    def read(
        self, layer: int, table: NDArray[np.int32], tokens: int, dtype: np.dtype[np.floating]
    ) -> tuple[Floats, Floats]:
        """K and V [tokens, kv_heads, head_dim] of positions 0 to `tokens` - 1, as stored."""
        positions = np.arange(tokens)
        pages, offsets = table[positions // self.page_tokens], positions % self.page_tokens
        k = self._slots[pages, layer, 0, :, offsets].astype(dtype)
        v = self._slots[pages, layer, 1, :, offsets].astype(dtype)
        return k, v
