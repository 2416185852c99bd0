"""The bytes of KV pages as the tiers below them read and write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.compute.batch import ByteRows


class KvPages:
    """Pages of a model's cache by their ids, for whoever runs the steps, between two of them."""

    def __init__(self, pages: ByteRows):
        self.page_bytes: int = pages.shape[1]
        self._pages = pages

    def read(self, page: int) -> bytes:
        """A copy of a page."""
        return bytes(memoryview(self._pages[page]))

    def write(self, page: int, content: memoryview) -> None:
        """Overwrite a page that no request holds."""
        memoryview(self._pages[page])[:] = content
