"""The shape of a step plan, which decides how long it takes."""

from __future__ import annotations

from octavo.schedule.cost import StepShape
from octavo.schedule.plan import StepPlan


def shape_of(plan: StepPlan) -> StepShape:
    """The shape of a plan; a prompt's last single token counts as a decode, being one in size."""
    shape = StepShape()
    shape.add_decodes(len(plan.decodes), sum(plan.decodes.starts))
    for row in plan.chunks:
        if len(row.tokens) == 1 and row.wants_token:
            shape.add_decodes(1, row.start)
        else:
            shape.add_chunk(len(row.tokens), row.start)
    return shape
