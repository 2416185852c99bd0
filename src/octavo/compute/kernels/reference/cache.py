"""The paged KV cache of the reference interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.compute.kernels.reference.operators import Floats, quantise_heads
from octavo.compute.program import KvLayout
from octavo.core.cache_groups import CacheGroups, one_group

FORMATS: dict[str, type[np.float16] | type[np.float32] | type[np.int8]] = {
    "fp16": np.float16,
    "int8": np.int8,
    "fp32": np.float32,
}
_LARGEST_HALF = 65504.0


def head_bytes(kv_format: str, head_dim: int) -> int:
    """Bytes of K (or V) of one head of one token: int8 codes have a float32 scale beside them."""
    codes = head_dim * np.dtype(FORMATS[kv_format]).itemsize
    return codes + (4 if kv_format == "int8" else 0)


class PagedCache:
    """Pages [page][layer of a group][K or V][kv head][token][element]; unwritten slots hold NaN.

    The NaN makes a read of a slot that nobody wrote show in the logits. Of int8 it is the scale
    [page][layer][K or V][kv head][token] that is NaN.
    """

    def __init__(
        self,
        layout: KvLayout,
        kv_format: str,
        pages: int,
        page_tokens: int,
        groups: CacheGroups | None = None,
    ) -> None:
        self.page_tokens = page_tokens
        self.groups = groups = groups or one_group(layout.layers)
        self.pages = pages
        self._kv_format = kv_format
        heads = (pages, groups.layers, 2, layout.kv_heads, page_tokens)
        unwritten = 0 if kv_format == "int8" else np.nan
        self._slots: NDArray[Any] = np.full(
            (*heads, layout.head_dim), unwritten, dtype=FORMATS[kv_format]
        )
        self._scales: NDArray[np.float32] | None = None
        if kv_format == "int8":
            self._scales = np.full(heads, np.nan, dtype=np.float32)

    def page_bytes(self) -> NDArray[np.uint8]:
        """All pages as bytes [pages, bytes of a page], not a copy."""
        return self._slots.reshape(self.pages, -1).view(np.uint8)

    def write(self, layer: int, table: NDArray[np.int32], start: int, k: Floats, v: Floats) -> None:
        """Store k, v [tokens, kv_heads, head_dim] at positions from `start`.

        float16 saturates at its largest number instead of becoming infinite.
        """
        layer, pages, offsets = self._places(layer, table, np.arange(start, start + len(k)))
        for part, values in enumerate((k, v)):
            at = (pages, layer, part, slice(None), offsets)
            if self._scales is not None:
                self._slots[at], self._scales[at] = quantise_heads(values)
            elif self._kv_format == "fp16":
                self._slots[at] = np.clip(values, -_LARGEST_HALF, _LARGEST_HALF)
            else:
                self._slots[at] = values

    def read(
        self,
        layer: int,
        table: NDArray[np.int32],
        tokens: int,
        dtype: np.dtype[np.floating],
        first: int = 0,
    ) -> tuple[Floats, Floats]:
        """K and V [tokens, kv_heads, head_dim] as stored; zeros for positions before `first`."""
        layer, pages, offsets = self._places(layer, table, np.arange(first, tokens))
        halves = []
        for part in (0, 1):
            seen = self._part(pages, layer, part, offsets, dtype)
            halves.append(np.concatenate([np.zeros((first, *seen.shape[1:]), dtype), seen]))
        return halves[0], halves[1]

    def _places(
        self, layer: int, table: NDArray[np.int32], positions: NDArray[np.intp]
    ) -> tuple[int, NDArray[np.int32], NDArray[np.intp]]:
        """The layer in its group, and page and slot of each position."""
        group, place = self.groups.places[layer]
        blocks = positions // self.page_tokens
        return place, table[blocks * self.groups.count + group], positions % self.page_tokens

    def _part(
        self,
        pages: NDArray[np.int32],
        layer: int,
        part: int,
        offsets: NDArray[np.intp],
        dtype: np.dtype[np.floating],
    ) -> Floats:
        at = (pages, layer, part, slice(None), offsets)
        values: Floats = self._slots[at].astype(dtype)
        return (
            values if self._scales is None else values * self._scales[at].astype(dtype)[..., None]
        )
