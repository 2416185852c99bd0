"""Which running request computes which page, and who waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.schedule.sequence import Sequence

Producers = Mapping[bytes, Sequence]


def find_producer(
    sequence: Sequence, keys: list[bytes], first_page: int, producers: Producers, more: Producers
) -> tuple[Sequence, bytes] | None:
    """Who computes page `first_page` of `sequence`, and the last key that it could wait for.

    That is the end of the run of pages with this producer, within the `keys` of what `sequence` may
    reuse; behind them comes the tail of its prompt. `producers` and `more` are searched for each.
    """
    wanted = keys[first_page:]
    tail = sequence.tail_after(first_page + len(wanted))
    if tail is not None:
        wanted.append(tail)
    run = None
    for key in wanted:
        found = producers.get(key) or more.get(key)
        if found is None or (run is not None and found is not run[0]):
            break
        run = found, key
    return run


def computed_keys(sequence: Sequence, first_page: int) -> list[bytes]:
    """Keys of what a request that has `first_page` pages from the cache is going to compute.

    Without the tail of a prompt whose first token is the last one too: it would be gone before
    anybody could copy it.
    """
    keys, tail = sequence.keys[first_page:], sequence.tail
    if tail is None or sequence.end_tokens <= sequence.prompt_tokens + 1:
        return keys
    return [*keys, tail]


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
        """`sequence` computes its full pages from `first_page` on, and its tail."""
        sequence.marked_pages = len(sequence.keys)
        for key in computed_keys(sequence, first_page):
            self.marks.setdefault(key, sequence)

    def has_waiters(self, sequence: Sequence) -> bool:
        """Somebody is parked on a page that `sequence` computes."""
        return any(
            self.marks.get(key) is sequence
            for key in self.marked_keys(sequence)
            if key in self._parked
        )

    @staticmethod
    def marked_keys(sequence: Sequence) -> list[bytes]:
        """Keys of what `sequence` has marked and not computed."""
        keys = sequence.keys[sequence.published_pages : sequence.marked_pages]
        return keys if sequence.tail is None or sequence.holds_tail else [*keys, sequence.tail]

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

    def forget(self) -> list[Sequence]:
        """Remove all marks; who was parked."""
        self.marks.clear()
        aside = [sequence for waiting in self._parked.values() for sequence in waiting]
        self._parked.clear()
        for sequence in aside:
            sequence.parked_on = None
        return aside

    def clear(self, sequence: Sequence, keys: Iterable[bytes]) -> list[Sequence]:
        """Remove its marks of `keys`; who wakes up."""
        woken = []
        for key in keys:
            if self.marks.get(key) is sequence:
                del self.marks[key]
                woken += self._parked.pop(key, [])
        for waiting in woken:
            waiting.parked_on = None
        return woken
