"""Everything an engine process holds in memory, in one place, under one ceiling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.core.errors import CapacityError
from octavo.core.units import format_bytes
from octavo.engine.frontends import OutboxLimits

_PAGE_RECORD_BYTES = 256
"""Integers of the pool, key and index entry of one page."""


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """The most that each part of an engine process may hold; nothing else grows with requests.

    `process` is the interpreter with its libraries, as measured when the weights were loaded.
    `ceiling_bytes` is `memory.total_bytes`, or else what the system had at the start.
    """

    parts: Mapping[str, int]
    ceiling_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class FixedMemory:
    """Parts that do not depend on the size of the KV cache; the first two are taken already.

    `staged_bytes` is what pages on their way to the disk and back may take.
    """

    process_bytes: int
    weight_bytes: int
    workspace_bytes: int
    table_bytes: int
    staged_bytes: int

    @property
    def message_bytes(self) -> int:
        """What one frontend that does not read may leave in its outbox."""
        return OutboxLimits().size_bytes

    @property
    def taken_bytes(self) -> int:
        return self.process_bytes + self.weight_bytes

    @property
    def coming_bytes(self) -> int:
        """What will be taken beside the KV cache."""
        return self.workspace_bytes + self.table_bytes + self.staged_bytes + self.message_bytes

    def ceiling(self, available_bytes: int, total_bytes: int | None) -> int:
        """The most that the process may hold, everything counted.

        Raises:
            CapacityError: `total_bytes` leaves nothing for a KV cache.
        """
        system_bytes = self.taken_bytes + available_bytes
        if total_bytes is None:
            return system_bytes
        least_bytes = self.taken_bytes + self.coming_bytes
        if total_bytes <= least_bytes:
            raise CapacityError(
                f"{format_bytes(total_bytes)} are not enough: {least_bytes} bytes are needed"
                " before the first page of the KV cache",
                field="memory.total_bytes",
                remedy="give more, or lower scheduler.token_budget",
            )
        return min(total_bytes, system_bytes)

    def room_for_pages(self, ceiling_bytes: int) -> int:
        """What a ceiling leaves for pages and what is remembered about them."""
        return max(ceiling_bytes - self.taken_bytes - self.coming_bytes, 0)

    def ledger(self, *, pages: int, kv_bytes: int, ceiling_bytes: int) -> MemoryLedger:
        """All parts, with a KV cache of this size."""
        parts = {
            "process": self.process_bytes,
            "weights": self.weight_bytes,
            "workspace": self.workspace_bytes,
            "kv_cache": kv_bytes,
            "page_index": pages * _PAGE_RECORD_BYTES,
            "tables": self.table_bytes,
            "staging": self.staged_bytes,
            "messages": self.message_bytes,
        }
        return MemoryLedger(parts, ceiling_bytes)


def pages_within(room_bytes: int, page_bytes: int) -> int:
    """Bytes of the pages that fit into a room together with what is remembered about them."""
    return room_bytes // (page_bytes + _PAGE_RECORD_BYTES) * page_bytes
