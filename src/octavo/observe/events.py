"""The last events of an engine, kept in a ring of fixed size."""

from __future__ import annotations

from collections import Counter, deque


class EventRing:
    """An event sink: keeps the newest `capacity` events and counts all of them by type.

    Events are frozen values. Appending is O(1); `newest` copies, so a reader never sees a change.
    """

    def __init__(self, capacity: int = 4096):
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._events: deque[object] = deque(maxlen=capacity)
        self._seen: Counter[str] = Counter()

    def __call__(self, event: object) -> None:
        self._events.append(event)
        self._seen[type(event).__name__] += 1

    def __len__(self) -> int:
        return len(self._events)

    def newest(self, count: int | None = None) -> list[object]:
        """The newest `count` events (all that are kept if None), oldest first."""
        events = list(self._events)
        return events if count is None else events[max(len(events) - count, 0) :]

    def seen(self, event_type: type) -> int:
        """How many events of this type there were, also those that left the ring."""
        return self._seen[event_type.__name__]
