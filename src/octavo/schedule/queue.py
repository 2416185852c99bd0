"""Requests of one class that wait for a row, in the order in which they are admitted."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.schedule.sequence import Key, Sequence

COARSE_TOKENS = 1024
"""Tenants whose served tokens differ by less than about this count as equal."""
_MOST_ACCOUNTS = 4096

_Entry = tuple[int, int, int, Sequence]
_Place = tuple[int, int, int, int, str]
"""Of a tenant among the others: less served first, then by its first request."""


class _Account:
    """What one tenant was served, its waiting requests in order, its place if it has some."""

    __slots__ = ("entries", "name", "place", "served_tokens")

    def __init__(self, name: str, served_tokens: int):
        self.name = name
        self.served_tokens = served_tokens
        self.entries: list[_Entry] = []
        self.place: _Place | None = None


class LaneQueue:
    """Preempted requests first, then by (tenant's served tokens, deadline, remaining, arrival).

    Tenants are served by tokens: one that begins to wait starts level with the least served of
    those who wait, so nobody saves up (the virtual token counter of Sheng et al., "Fairness in
    Serving Large Language Models", OSDI 2024). Every change is a few binary searches.
    """

    def __init__(self) -> None:
        self._returning: list[tuple[Key, Sequence]] = []
        self._accounts: dict[str, _Account] = {}
        self._active: list[_Place] = []
        self._floor_tokens = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        """In the order of admission, as if each were admitted in turn."""
        for _, sequence in self._returning:
            yield sequence
        if len(self._active) == 1:
            for entry in self._accounts[self._active[0][4]].entries:
                yield entry[3]
            return
        heap: list[tuple[int, int, int, int, str, int, int]] = []
        number = 0
        while True:
            if number < len(self._active) and (not heap or self._active[number] < heap[0][:5]):
                place = self._active[number]
                served = self._accounts[place[4]].served_tokens
                heapq.heappush(heap, (*place, 0, served))
                number += 1
                continue
            if not heap:
                return
            *_, name, index, served = heapq.heappop(heap)
            entries = self._accounts[name].entries
            sequence = entries[index][3]
            yield sequence
            index += 1
            if index < len(entries):
                served += sequence.token_count
                level = served // COARSE_TOKENS
                heapq.heappush(heap, (level, *entries[index][:3], name, index, served))

    def level(self, tenant: str) -> int:
        """Coarse served tokens of a tenant."""
        return self._account(tenant).served_tokens // COARSE_TOKENS

    def push(self, sequence: Sequence) -> None:
        """Queue a sequence; one that was preempted goes ahead of those that never ran."""
        if sequence.was_preempted:
            insort(self._returning, (sequence.key, sequence))
        else:
            account = self._account(sequence.request.tenant)
            if not account.entries:
                account.served_tokens = max(account.served_tokens, self._least_served())
            insort(account.entries, self._entry(sequence))
            if account.entries[0][3] is sequence:
                self._rank(account)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; its state and deadline must be what they were when it was pushed.

        Raises:
            ValueError: it is not in the queue.
        """
        if sequence.was_preempted:
            place = bisect_left(self._returning, (sequence.key, sequence))
            if place == len(self._returning) or self._returning[place][1] is not sequence:
                raise ValueError(f"request {sequence.id} is not in the queue")
            del self._returning[place]
        else:
            account = self._account(sequence.request.tenant)
            entry = self._entry(sequence)
            place = bisect_left(account.entries, entry)
            if place == len(account.entries) or account.entries[place][3] is not sequence:
                raise ValueError(f"request {sequence.id} is not in the queue")
            del account.entries[place]
            if not place:
                self._rank(account)
        self._count -= 1

    def charge(self, tenant: str, tokens: int) -> None:
        """Tokens were computed for a tenant."""
        account = self._account(tenant)
        account.served_tokens += tokens
        place = account.place
        if place is not None and account.served_tokens // COARSE_TOKENS != place[0]:
            self._rank(account)

    def _rank(self, account: _Account) -> None:
        """Put a tenant where it stands now."""
        if account.place is not None:
            del self._active[bisect_left(self._active, account.place)]
            account.place = None
        if account.entries:
            level = account.served_tokens // COARSE_TOKENS
            account.place = (level, *account.entries[0][:3], account.name)
            insort(self._active, account.place)

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= _MOST_ACCOUNTS:
                self._accounts = {n: a for n, a in self._accounts.items() if a.entries}
            account = self._accounts[tenant] = _Account(tenant, self._least_served())
        return account

    def _least_served(self) -> int:
        if self._active:
            least = self._accounts[self._active[0][4]].served_tokens
            self._floor_tokens = max(self._floor_tokens, least)
        return self._floor_tokens

    @staticmethod
    def _entry(sequence: Sequence) -> _Entry:
        remaining_tokens = sequence.prompt_tokens + sequence.request.max_new_tokens
        return (sequence.deadline_step, remaining_tokens, sequence.order, sequence)
