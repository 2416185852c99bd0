"""Which running request computes which page, and who waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered

from octavo.schedule.sequence import Sequence

Producers = Mapping[bytes, Sequence]


def find_producer(
    keys: Ordered[bytes], first_page: int, producers: Producers, more: Producers
) -> tuple[Sequence, int] | None:
    """Who computes page `first_page` of those that a request may reuse, and the last one of them.

    That is the end of the run of pages with this producer. `producers` and `more` are searched for
    each of `keys`.
    """
    last_page = len(keys) - 1
    producer = None
    for page in range(first_page, last_page + 1):
        key = keys[page]
        found = producers.get(key) or more.get(key)
        if found is None or (producer is not None and found is not producer):
            last_page = page - 1
            break
        producer = found
    return None if producer is None else (producer, last_page)


class PrefixProducers:
    """Marks of pages being computed in prefill, and the requests parked on them.

    Only running requests have marks and only waiting ones are parked, so nobody can wait in a
    circle; whatever removes a mark (the page is computed; its producer ended or was preempted)
    wakes those parked on it.
    """

    def __init__(self) -> None:
        self.marks: dict[bytes, Sequence] = {}
        self._parked: dict[bytes, list[Sequence]] = {}

    @property
    def parked_count(self) -> int:
        return sum(map(len, self._parked.values()))

    def mark(self, sequence: Sequence, first_page: int) -> None:
        """`sequence` computes its full pages from `first_page` on."""
        sequence.marked_pages = len(sequence.keys)
        for key in sequence.keys[first_page:]:
            self.marks.setdefault(key, sequence)

    def has_waiters(self, sequence: Sequence) -> bool:
        """Somebody is parked on a page that `sequence` computes."""
        return any(
            self.marks.get(key) is sequence
            for key in sequence.keys[sequence.published_pages : sequence.marked_pages]
            if key in self._parked
        )

    def park(self, sequence: Sequence, key: bytes) -> None:
        """`sequence` waits until the mark of `key` goes away."""
        sequence.parked_on = key
        self._parked.setdefault(key, []).append(sequence)

    def unpark(self, sequence: Sequence) -> bool:
        """Stop waiting; False if `sequence` was not parked."""
        key = sequence.parked_on
        if key is None:
            return False
        sequence.parked_on = None
        waiting = self._parked[key]
        waiting.remove(sequence)
        if not waiting:
            del self._parked[key]
        return True

    def clear(self, sequence: Sequence, first_page: int, last_page: int) -> list[Sequence]:
        """Remove its marks from `first_page` up to, not including, `last_page`; who wakes up."""
        woken = []
        for key in sequence.keys[first_page : min(last_page, sequence.marked_pages)]:
            if self.marks.get(key) is sequence:
                del self.marks[key]
                woken += self._parked.pop(key, [])
        for waiting in woken:
            waiting.parked_on = None
        return woken
