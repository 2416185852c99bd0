"""Metrics and the event ring."""

from __future__ import annotations

import pytest

from octavo.observe.events import EventRing
from octavo.observe.metrics import Counter, EngineMetrics, Histogram


def test_counter_never_goes_down() -> None:
    counter = Counter("c", "help")
    counter.add(2)
    with pytest.raises(ValueError, match="cannot go down"):
        counter.add(-1)
    assert counter.value == 2


def test_histogram_bounds_are_inclusive_and_the_last_bucket_is_open() -> None:
    histogram = Histogram("h", "help", bounds=(1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.count == 5
    assert histogram.total == 104.0
    histogram.observe(1.5, 3)
    assert (histogram.counts, histogram.total) == ([2, 5, 1], 108.5)
    with pytest.raises(ValueError, match="must rise"):
        Histogram("h", "help", bounds=(2.0, 1.0))


def test_snapshot_names_everything_and_shares_are_of_the_whole() -> None:
    metrics = EngineMetrics()
    assert metrics.outside_native_share == 0.0
    metrics.step_seconds.observe(2.0)
    metrics.native_seconds.add(1.5)
    numbers = metrics.snapshot()
    assert numbers["step_seconds_sum"] == 2.0
    assert numbers["step_seconds_count"] == 1.0
    assert numbers["native_seconds"] == 1.5
    assert metrics.outside_native_share == pytest.approx(0.25)
    assert len({metric.name for metric in metrics.all()}) == len(metrics.all())


def test_ring_keeps_the_newest_and_counts_all() -> None:
    ring = EventRing(3)
    for number in range(5):
        ring(number)
    ring("text")
    assert ring.newest() == [3, 4, "text"]
    assert ring.newest(2) == [4, "text"]
    assert ring.newest(0) == []
    assert (ring.seen(int), ring.seen(str), ring.seen(float)) == (5, 1, 0)
    with pytest.raises(ValueError, match="at least 1"):
        EventRing(0)
