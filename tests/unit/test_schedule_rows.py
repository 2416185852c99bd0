"""The columns of rows: what a step changes of those who only decode."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.schedule._steps import KeyOrder, RowColumns
from octavo.schedule.plan import NO_TOKEN

PAGE_TOKENS = 4


def seated(
    rows: int, *, computed: int = 5, end_tokens: int = 100, stop_ids: Iterable[int] = ()
) -> RowColumns:
    columns = RowColumns(rows, PAGE_TOKENS)
    for row in range(rows):
        columns.seat(row, computed, end_tokens, row, 1.0, stop_ids)
        columns.set_decoding(row, 0, 10 + row, True, 0.5)
    return columns


def output(*fields: object) -> tuple[object, ...]:
    return fields


def take(
    columns: RowColumns, rows: list[int], tokens: list[int], *, step: int = 3, now: float = 2.0
) -> tuple[list[tuple[object, ...]], list[tuple[int, int]], list[int], list[int], list[int]]:
    starts = columns.computed[rows].tolist()
    names = tuple("abcdef"[row] for row in rows)
    return columns.take(rows, starts, names, tokens, [], step, now, 2, output)  # type: ignore[arg-type]


def test_a_step_brings_plain_rows_forward() -> None:
    columns = seated(3)
    outputs, others, ended, gaps, missed = take(columns, [2, 0], [7, 8])
    assert outputs == [("c", (7,), None, None, 2), ("a", (8,), None, None, 0)]
    assert (others, ended, gaps, missed) == ([], [], [2, 0], [2, 0])
    assert columns.computed.tolist() == [6, 5, 6]
    assert columns.served_step.tolist() == [3, 0, 3]
    assert columns.token_seconds.tolist() == [2.0, 1.0, 2.0]
    assert columns.fetch(2, 6) == [7]


@pytest.mark.parametrize(("end_tokens", "token"), [(7, 1), (100, 9)], ids=["last token", "stop id"])
def test_rows_to_which_more_happens_stay_as_they_are(end_tokens: int, token: int) -> None:
    columns = seated(1, end_tokens=end_tokens, stop_ids=frozenset({3, 9}))
    outputs, others, *_ = take(columns, [0], [token])
    assert (outputs, others) == ([], [(0, token)])
    assert columns.computed.tolist() == [5]


def test_rows_without_a_token_are_neither() -> None:
    columns = seated(1)
    outputs, others, ended, gaps, _ = take(columns, [0], [NO_TOKEN])
    assert (outputs, others, ended, gaps) == ([], [], [], [0, 0])


def test_who_waited_longest_decodes_first() -> None:
    columns = seated(4)
    take(columns, [1, 3], [1, 1])
    rows, past = columns.decoding(0)
    assert rows == [0, 2, 1, 3]
    assert past == columns.computed.sum()
    assert columns.decoding(1)[0] == []


def test_decode_columns_leave_out_who_lost_its_row() -> None:
    columns = seated(4)
    columns.room[:] = (8, 8, 4, 8)
    found = columns.decodes([[3, 2], [0, 1]], {2}, list("abcd"), [1])  # type: ignore[arg-type]
    rows, names, starts, tokens, table_starts, places = found
    assert (rows, names) == ([3, 0, 1], ("d", "a", "b"))
    assert (starts, tokens) == ([5, 5, 5], [13, 10, 11])
    assert (table_starts, places) == ([2, 2, 2], [2])
    assert columns.without_room([3, 2, 0]) == [2]


def test_arguments_are_checked() -> None:
    columns = seated(2)
    for wrong in ([2], [-1]):
        with pytest.raises(IndexError, match="no such row"):
            columns.past(wrong)
    with pytest.raises(TypeError):
        columns.past([0.9])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        columns.decodes([[0.5]], set(), ["a", "b"], [])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="equally long"):
        columns.take([0], [5], ("a",), [1, 2], [], 1, 1.0, 1, output)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="no such token"):
        columns.fetch(0, -1)
    with pytest.raises(ValueError, match="at least 1"):
        RowColumns(1, 0)
    columns.lane[0] = -1
    with pytest.raises(IndexError, match="no such class"):
        take(columns, [0], [1])


def test_an_order_has_each_key_once() -> None:
    order = KeyOrder()
    order.add((1, 2, 3, 4), 7)
    with pytest.raises(ValueError, match="is there"):
        order.add((1, 2, 3, 4), 8)
    with pytest.raises(IndexError, match="not there"):
        order.remove((1, 2, 3, 5))
    with pytest.raises(OverflowError):
        order.add((2**63, 2, 3, 4), 8)
    assert order.rows() == [7]


@settings(deadline=None)
@given(
    pasts=st.lists(st.integers(0, 1000), min_size=1, max_size=20),
    each=st.floats(1e-6, 1.0),
    per_past=st.floats(0.0, 1e-3),
    seconds=st.floats(0.0, 20.0),
)
def test_a_run_within_a_time_is_the_longest(
    pasts: list[int], each: float, per_past: float, seconds: float
) -> None:
    columns = seated(len(pasts))
    columns.computed[:] = pasts
    rows = list(range(len(pasts)))
    times = each * np.arange(1, len(pasts) + 1) + per_past * np.cumsum(pasts)
    count = int(np.searchsorted(times, seconds, side="right"))
    found = columns.run_within(rows, each, per_past, seconds)
    assert found[:2] == (count, sum(pasts[:count]))
    assert found[2] == (times[count - 1] if count else 0.0)


@settings(deadline=None)
@given(steps=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3 * PAGE_TOKENS))
def test_tokens_are_there_until_their_page_is_full(steps: list[int]) -> None:
    columns = seated(1, computed=6)
    known = list(range(7))
    for token in steps:
        _, _, ended, *_ = take(columns, [0], [token])
        if ended:
            known += columns.fetch(0, len(known))
    known += columns.fetch(0, len(known))
    assert known == [*range(7), *steps]
