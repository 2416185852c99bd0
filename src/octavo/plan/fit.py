"""Step costs from measured steps: non-negative least squares of relative errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.errors import InvalidRequest
from octavo.plan.statistics import percentile
from octavo.schedule.cost import FEATURES, CostProfile, StepShape

_OUTLIER_FACTOR = 3.0
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step that was measured."""

    shape: StepShape
    seconds: float

    @property
    def features(self) -> tuple[float, ...]:
        """What the coefficients are multiplied by, in the order of `FEATURES`."""
        shape = self.shape
        return (1.0, shape.tokens, shape.decode_rows, shape.past_tokens, shape.chunk_square)


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost whose `error` is the median relative one of the samples, and their 90th percentile."""

    cost: CostProfile
    p90_error: float


def fit_cost(samples: Sequence[StepSample], *, machine: str = "", model: str = "") -> Fit:
    """The cost that explains the samples best.

    Errors count relative to the measured time, so that short steps matter as much as long ones.
    Samples further off than three times the median error lose weight in proportion (Huber's
    weights, iteratively reweighted). A coefficient that would be negative is 0 (active set).

    Raises:
        InvalidRequest: there are fewer samples than coefficients, or they are all alike.
    """
    features = [sample.features for sample in samples]
    seconds = [sample.seconds for sample in samples]
    if min(seconds, default=0.0) <= 0 or len(samples) < len(FEATURES):
        raise InvalidRequest("are too few to fit a cost to, or took no time", field="samples")
    weights = [1.0] * len(samples)
    values: list[float] = []
    for _ in range(_ROUNDS):
        values = _non_negative(features, seconds, weights)
        errors = _relative_errors(features, seconds, values)
        limit = _OUTLIER_FACTOR * max(percentile(errors, 50), 1e-9)
        weights = [min(1.0, limit / max(error, 1e-12)) for error in errors]
    errors = _relative_errors(features, seconds, values)
    constant, token, decode_row, past_token, chunk_square = values
    cost = CostProfile(
        constant=constant,
        token=token,
        decode_row=decode_row,
        past_token=past_token,
        chunk_square=chunk_square,
        error=percentile(errors, 50),
        machine=machine,
        model=model,
    )
    return Fit(cost, percentile(errors, 90))


def _relative_errors(
    features: Sequence[Sequence[float]], seconds: Sequence[float], values: Sequence[float]
) -> list[float]:
    return [
        abs(sum(value * factor for value, factor in zip(values, row, strict=True)) / measured - 1)
        for row, measured in zip(features, seconds, strict=True)
    ]


def _non_negative(
    features: Sequence[Sequence[float]], seconds: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """Least squares over the columns left after dropping the most negative, one at a time."""
    columns = list(range(len(features[0])))
    while True:
        solved = _solve_columns(columns, features, seconds, weights)
        worst = min(range(len(columns)), key=lambda place: solved[place])
        if solved[worst] >= 0:
            break
        del columns[worst]
    values = [0.0] * len(features[0])
    for column, value in zip(columns, solved, strict=True):
        values[column] = value
    return values


def _solve_columns(
    columns: Sequence[int],
    features: Sequence[Sequence[float]],
    seconds: Sequence[float],
    weights: Sequence[float],
) -> list[float]:
    """Normal equations of rows divided by their measured time, columns scaled to length 1."""
    rows = [
        [row[column] / measured for column in columns]
        for row, measured in zip(features, seconds, strict=True)
    ]
    lengths = [
        sum(weight * row[place] ** 2 for row, weight in zip(rows, weights, strict=True)) ** 0.5
        for place in range(len(columns))
    ]
    if not all(lengths):
        raise InvalidRequest("are too much alike to fit a cost to", field="samples")
    scaled = [[value / length for value, length in zip(row, lengths, strict=True)] for row in rows]
    matrix = [
        [
            sum(weight * row[i] * row[j] for row, weight in zip(scaled, weights, strict=True))
            for j in range(len(columns))
        ]
        for i in range(len(columns))
    ]
    right = [
        sum(weight * row[i] for row, weight in zip(scaled, weights, strict=True))
        for i in range(len(columns))
    ]
    solved = _eliminate(matrix, right)
    return [value / length for value, length in zip(solved, lengths, strict=True)]


def _eliminate(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination with partial pivoting."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) < 1e-12:
            raise InvalidRequest("are too much alike to fit a cost to", field="samples")
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            for place in range(column, size + 1):
                rows[row][place] -= factor * rows[column][place]
    solved = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][place] * solved[place] for place in range(row + 1, size))
        solved[row] = (rows[row][size] - known) / rows[row][row]
    return solved
