"""What of a step decides how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.schedule.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepShape:
    """Size of one step.

    `tokens` are computed, `sampled_rows` of its rows draw a token. Attention reads
    `past_pairs` (tokens before the step, summed over the computed tokens) and `chunk_pairs`
    (the sum of the squared tokens of each row).
    """

    tokens: int = 0
    sampled_rows: int = 0
    past_pairs: int = 0
    chunk_pairs: int = 0

    @property
    def features(self) -> tuple[float, ...]:
        """Factors of the coefficients of `StepCost`, in its order."""
        return (1.0, self.tokens, self.sampled_rows, self.past_pairs, self.chunk_pairs)


def shape_of(plan: StepPlan) -> StepShape:
    """The shape of a plan."""
    tokens = sampled_rows = past_pairs = chunk_pairs = 0
    for row in plan.rows:
        count = len(row.tokens)
        tokens += count
        sampled_rows += row.wants_token
        past_pairs += row.start * count
        chunk_pairs += count * count
    return StepShape(tokens, sampled_rows, past_pairs, chunk_pairs)
