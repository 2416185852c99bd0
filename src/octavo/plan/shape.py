"""The shape of a step plan, which decides how long it takes."""

from __future__ import annotations

from octavo.schedule.cost import StepShape
from octavo.schedule.plan import StepPlan


def shape_of(plan: StepPlan) -> StepShape:
    """The shape of a plan; a prompt's last single token counts as a decode, being one in size."""
    tokens = decode_rows = past_tokens = chunk_square = 0
    for row in plan.rows:
        count = len(row.tokens)
        tokens += count
        past_tokens += row.start * count
        chunk_square += count * count
        if count == 1 and row.wants_token:
            decode_rows += 1
    return StepShape(tokens, decode_rows, past_tokens, chunk_square)
