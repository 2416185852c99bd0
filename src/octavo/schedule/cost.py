"""How long a step takes, from its shape; learned while the engine runs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from octavo.core.errors import SettingsError
from octavo.schedule import _steps

FEATURES = ("constant", "token", "decode_row", "past_token", "chunk_square")
# One unit of each scaled feature costs about the same, so that the fit is well conditioned.
_SCALES = (1.0, 1 / 16, 1 / 4, 1 / 65536, 1 / 65536)
# Scaled, for SmolLM2-135M at four bits on two cores; larger models take longer in proportion.
_PRIOR_SECONDS = (0.006, 0.016, 0.002, 0.06, 0.03)
_PRIOR_WEIGHT_BYTES = 90 << 20
_FORGETTING = 0.995
_PRIOR_WEIGHT = 0.1
_SWEEPS = 4
_CLIPPED_ERRORS = 3.0
_MOST_RATIO = 100.0
_PACE_LEARNING = 0.15
_MOST_PACE = 2.0
_OVERRUN_STEP = 0.06
_OVERRUN_SHARE = 0.01
_MOST_OVERRUN = 0.5
_LEAST_TOKEN_SECONDS = 1e-9
"""Were tokens free, no time at all would be asked for one, and nothing fits into that."""
MOST_PROFILE_NUMBER = 1000.0
"""No number of a profile is larger; beyond it the fit would leave the range of floats."""


class StepShape:
    """What a step's time depends on.

    `past_tokens` sums past × chunk and `chunk_square` chunk² over all rows, decoding ones included.
    """

    def __init__(
        self, tokens: int = 0, decode_rows: int = 0, past_tokens: int = 0, chunk_square: int = 0
    ):
        self.tokens = tokens
        self.decode_rows = decode_rows
        self.past_tokens = past_tokens
        self.chunk_square = chunk_square

    def add_decodes(self, rows: int, past_tokens: int) -> None:
        """Add decoding rows whose pasts sum to `past_tokens`."""
        self.tokens += rows
        self.decode_rows += rows
        self.past_tokens += past_tokens
        self.chunk_square += rows

    def add_chunk(self, tokens: int, past_tokens: int) -> None:
        """Add a prefill chunk of `tokens` after `past_tokens` tokens."""
        self.tokens += tokens
        self.past_tokens += past_tokens * tokens
        self.chunk_square += tokens * tokens


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Seconds per step, token, decoding row, past × chunk and chunk²; `error` is relative."""

    constant: float
    token: float
    decode_row: float
    past_token: float
    chunk_square: float
    error: float = 0.0
    machine: str = ""
    model: str = ""


def read_profile(path: Path) -> CostProfile:
    """Read a stored profile.

    Raises:
        SettingsError: it is not there, or is no profile.
    """
    try:
        values = json.loads(path.read_text())
        numbers = {name: float(values[name]) for name in (*FEATURES, "error")}
        if not all(0 <= value <= MOST_PROFILE_NUMBER for value in numbers.values()):
            raise ValueError(f"has numbers that are not from 0 to {MOST_PROFILE_NUMBER:g}")
        if numbers["constant"] + numbers["token"] <= 0:
            raise ValueError("has steps that take no time")
        return CostProfile(
            **numbers, machine=str(values.get("machine", "")), model=str(values.get("model", ""))
        )
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
        RecursionError,
    ) as error:
        raise SettingsError(
            f"is no cost profile: {type(error).__name__}: {error}",
            field=f"file {path}",
            remedy="make one with `octavo plan calibrate`",
        ) from error


class CostModel:
    """A linear model of a step's time: non-negative least squares with forgetting, step by step.

    Each observation is weighted by its own time, so that relative errors are what is small, and a
    residual beyond three times the usual one counts as that much only. Without a profile a guess
    from the size of the weights is scaled as a whole by the first observation. Coefficients never
    fall below 0. Every observation moves each coefficient to its best value beside the others, so a
    load that never excites some of them cannot make the fit run away; those stay near where they
    began.

    Machines are now and then slower for a while, which no shape explains. The latest steps
    therefore scale all predictions (exponential smoothing); what is fitted does not know of it.
    """

    def __init__(self, profile: CostProfile | None = None, *, weight_bytes: int | None = None):
        self.observations = 0
        self.observed = StepShape()
        """The sum of all shapes that were learned from; their steps took `observed_seconds`."""
        self.observed_seconds = 0.0
        self.error = 0.25 if profile is None else max(profile.error, 0.01)
        """Usual relative error of a prediction, measured before each fit."""
        self.overrun = min(3 * self.error, 0.25)
        """By what part 1 in 100 of the steps that a target bounds take longer than predicted."""
        self._pace = 1.0
        self._scale_prior = profile is None
        if profile is None:
            size = (weight_bytes or _PRIOR_WEIGHT_BYTES) / _PRIOR_WEIGHT_BYTES
            self._start([value * size for value in _PRIOR_SECONDS])
        else:
            values = (getattr(profile, name) for name in FEATURES)
            self._start([value / scale for value, scale in zip(values, _SCALES, strict=True)])
        self._publish(self._fit.theta)

    def predict(self, shape: StepShape) -> float:
        """Seconds of a step of that shape."""
        return (
            self.constant
            + self.token * shape.tokens
            + self.decode_row * shape.decode_rows
            + self.past_token * shape.past_tokens
            + self.chunk_square * shape.chunk_square
        )

    def decodes(self, rows: int, past_tokens: int) -> float:
        """Marginal seconds of decoding rows whose pasts sum to `past_tokens`."""
        each = self.token + self.decode_row + self.chunk_square
        return rows * each + self.past_token * past_tokens

    def chunk(self, tokens: int, past_tokens: int) -> float:
        """Marginal seconds of a prefill chunk."""
        each = self.token + self.past_token * past_tokens + self.chunk_square * tokens
        return tokens * each

    def chunk_within(self, seconds: float, past_tokens: int) -> int:
        """Most tokens of a chunk after `past_tokens` tokens whose marginal time is `seconds`."""
        if seconds <= 0:
            return 0
        linear = self.token + self.past_token * past_tokens
        square = self.chunk_square
        # The stable root of square n² + linear n = seconds.
        root = 2 * seconds / (linear + math.sqrt(linear * linear + 4 * square * seconds))
        # A time that was computed from a number of tokens gives that number again.
        return int(min(root + 1e-6, 1 << 30))

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step; times that no step can take are ignored."""
        if not (1e-9 < seconds < 1e6) or shape.tokens < 1:
            return
        self._sum_up(shape, seconds)
        predicted = self.predict(shape)
        if self._scale_prior:
            self._scale_prior = False
            ratio = min(max(seconds / max(predicted, 1e-9), 1 / _MOST_RATIO), _MOST_RATIO)
            self._start([value * ratio for value in self._fit.theta])
            self._publish(self._fit.theta)
            predicted = self.predict(shape)
        self._note_error(1.0 - predicted / seconds)
        fitted = predicted / self._pace
        residual = 1.0 - fitted / seconds
        bound = _CLIPPED_ERRORS * max(self.error, 0.02)
        clipped = min(max(residual, -bound), bound)
        constant, token, decode_row, past_token, chunk_square = _SCALES
        theta = self._fit.observe(
            (
                constant / seconds,
                shape.tokens * token / seconds,
                shape.decode_rows * decode_row / seconds,
                shape.past_tokens * past_token / seconds,
                shape.chunk_square * chunk_square / seconds,
            ),
            fitted / seconds + clipped,
        )
        ratio = min(max(seconds / fitted, 1 / _MOST_PACE), _MOST_PACE)
        self._pace += _PACE_LEARNING * (ratio - self._pace)
        self._publish(theta)

    def note_overrun(self, predicted_seconds: float, seconds: float) -> None:
        """Learn from a step about as long as a target allows, what passes around it included.

        Follows a quantile: up by a step where it is exceeded, else down by so much less that both
        balance (stochastic approximation, Robbins and Monro 1951).
        """
        exceeds = seconds > predicted_seconds * (1.0 + self.overrun)
        change = 1.0 - _OVERRUN_SHARE if exceeds else -_OVERRUN_SHARE
        self.overrun = min(max(self.overrun + _OVERRUN_STEP * change, 0.0), _MOST_OVERRUN)

    def learned(self) -> dict[str, float]:
        """The seconds of each feature, whatever the pace of the latest steps."""
        values = zip(FEATURES, self._fit.theta, _SCALES, strict=True)
        return {name: value * scale for name, value, scale in values}

    def work(self) -> dict[str, int]:
        """How often what each feature counts was done in the steps that were learned from."""
        done = self.observed
        counts = (
            self.observations,
            done.tokens,
            done.decode_rows,
            done.past_tokens,
            done.chunk_square,
        )
        return dict(zip(FEATURES, counts, strict=True))

    def profile(self, *, machine: str = "", model: str = "") -> CostProfile:
        """The present state, to be stored."""
        return CostProfile(**self.learned(), error=self.error, machine=machine, model=model)

    def _sum_up(self, shape: StepShape, seconds: float) -> None:
        done = self.observed
        self.observations += 1
        self.observed_seconds += seconds
        done.tokens += shape.tokens
        done.decode_rows += shape.decode_rows
        done.past_tokens += shape.past_tokens
        done.chunk_square += shape.chunk_square

    def _note_error(self, residual: float) -> None:
        # What is far out moves the published error no more than it moves the fit.
        bound = _CLIPPED_ERRORS * max(self.error, 0.02)
        self.error = min(self.error + 0.05 * (min(abs(residual), bound) - self.error), 1.0)

    def _start(self, theta: list[float]) -> None:
        """Forget what was observed; these coefficients hold as much as a few steps."""
        ridge = [_PRIOR_WEIGHT / max(value, 1e-9) ** 2 for value in theta]
        self._fit = _steps.LeastSquares(theta, ridge, _FORGETTING, _SWEEPS)

    def _publish(self, theta: tuple[float, float, float, float, float]) -> None:
        pace = self._pace
        constant, token, decode_row, past_token, chunk_square = theta
        self.constant = constant * _SCALES[0] * pace
        self.token = max(token * _SCALES[1] * pace, _LEAST_TOKEN_SECONDS)
        self.decode_row = decode_row * _SCALES[2] * pace
        self.past_token = past_token * _SCALES[3] * pace
        self.chunk_square = chunk_square * _SCALES[4] * pace
