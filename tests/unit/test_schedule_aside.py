"""Requests that are held back until whoever runs the steps lets them go."""

from __future__ import annotations

import pytest

from octavo.core.ids import RequestId
from schedule_harness import Driver, alone, request

WAITING = RequestId("waiting")


def held() -> Driver:
    """A driver with one request held back and another one to be run."""
    driven = Driver(pages=64, page_tokens=4, token_budget=32, max_rows=8)
    driven.add(request("waiting", range(9)))
    driven.scheduler.hold_back(WAITING)
    driven.add(request("other", range(20, 29)))
    return driven


def test_others_go_on_without_it_until_it_is_let_go() -> None:
    driven = held()
    first = driven.scheduler.plan()
    assert [row.request_id for row in first.rows] == ["other"]
    assert driven.scheduler.audit() == []
    driven.scheduler.let_go(WAITING)
    with pytest.raises(ValueError, match="void"):
        driven.scheduler.commit(first)
    second = driven.scheduler.plan()
    assert {row.request_id for row in second.rows} == {"waiting", "other"}
    driven.run()
    for asked in (request("waiting", range(9)), request("other", range(20, 29))):
        assert driven.answers[asked.id] == alone(asked, driven.scheduler.limit_tokens)
    assert driven.scheduler.audit() == []


def test_alone_it_leaves_nothing_to_plan() -> None:
    driven = held()
    driven.scheduler.cancel(RequestId("other"))
    assert driven.scheduler.plan().is_empty
    assert driven.scheduler.has_work
    assert driven.scheduler.waiting_count == 1


@pytest.mark.parametrize("end", ["cancel", "finish"])
def test_it_may_end_meanwhile(end: str) -> None:
    driven = held()
    assert getattr(driven.scheduler, end)(WAITING)
    driven.scheduler.let_go(WAITING)
    assert driven.scheduler.waiting_count == 1
    assert driven.scheduler.audit() == []


def test_holding_back_twice_is_holding_back_once() -> None:
    driven = held()
    driven.scheduler.hold_back(WAITING)
    driven.scheduler.let_go(WAITING)
    driven.scheduler.let_go(WAITING)
    assert driven.scheduler.audit() == []
    assert len(driven.scheduler.plan().rows) == 2
