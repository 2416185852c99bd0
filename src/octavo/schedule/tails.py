"""Where the last, partly filled page of a prompt can be copied from instead of computed again."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import chain

from octavo.schedule.sequence import Sequence


class PromptTails:
    """Running requests by the key of their prompt's tail.

    The tail is what stands between the full pages that can be reused and the prompt's last token,
    which everybody computes for its logits. It is written once the prompt is computed, and stays as
    it is while its request runs and writes behind it. So it is copied, never shared.
    """

    def __init__(self) -> None:
        self._holders: dict[bytes, list[Sequence]] = {}

    @property
    def holders(self) -> Iterator[Sequence]:
        """Everybody whose tail may be copied."""
        return chain.from_iterable(self._holders.values())

    def add(self, sequence: Sequence, tail: bytes) -> None:
        """The prompt of `sequence` has been computed, whose tail has this key."""
        self._holders.setdefault(tail, []).append(sequence)
        sequence.holds_tail = True

    def remove(self, sequence: Sequence) -> None:
        """A holder of its tail gives up its pages."""
        assert sequence.tail is not None
        holders = self._holders[sequence.tail]
        holders.remove(sequence)
        if not holders:
            del self._holders[sequence.tail]
        sequence.holds_tail = False

    def find(
        self, sequence: Sequence, found_blocks: int, leaving: Container[int]
    ) -> tuple[int, ...] | None:
        """The pages with the tail of a waiting request that has `found_blocks` from the cache.

        None if there are none, or only with requests whose `order` is in `leaving`.
        """
        tail = sequence.tail_after(found_blocks)
        for holder in () if tail is None else self._holders.get(tail, ()):
            if holder.order not in leaving and holder.window_block <= sequence.tail_page:
                start = sequence.tail_page * holder.layout.groups
                return tuple(holder.table[start : start + holder.layout.groups])
        return None
