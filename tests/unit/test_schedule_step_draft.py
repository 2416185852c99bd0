"""What a step in the making knows of its rows."""

from __future__ import annotations

from octavo.schedule.step_draft import StepDraft
from schedule_harness import driver, request


def test_rows_that_were_chosen_and_then_taken_away_are_no_work() -> None:
    driven = driver()
    driven.add(request("a", range(3)), request("b", range(5, 9)))
    driven.step()
    ledger = driven.scheduler._ledger
    (lane,) = ledger.lanes
    draft = StepDraft(ledger.lanes, ledger.cache, ledger.rows, number=2)
    draft.add_decodes(ledger.rows.decoding(lane)[0])
    first, second = list(ledger.running)
    draft.preempt(first, "room is wanted")
    assert draft.has_rows
    assert draft.decode_rows().request_ids == (second.id,)
    draft.preempt(second, "room is wanted")
    assert not draft.has_rows
    assert len(draft.decode_rows()) == 0
