"""What the engine needs of whatever computes its steps."""

from __future__ import annotations

from typing import Protocol

from octavo.schedule.plan import StepPlan, StepResult


class Executor(Protocol):
    """Runs step plans in the order they were committed.

    A row that fails alone comes back with `RowResult.error`. An exception means that nothing of
    the plan can be relied on; the executor must stay usable for the next plan.
    """

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply preemptions and admissions, compute every row, draw its tokens."""
        ...

    def close(self) -> None:
        """Free weights and cache; safe to call twice."""
        ...
