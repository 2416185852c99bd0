"""How long a step takes, from its shape; learned while the engine runs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.core.errors import SettingsError

FEATURES = ("constant", "token", "decode_row", "past_token", "chunk_square")
# One unit of each scaled feature costs about the same, so that the fit is well conditioned.
_SCALES = (1.0, 1 / 16, 1 / 4, 1 / 65536, 1 / 65536)
_PRIOR_SECONDS = (0.004, 0.008, 0.002, 0.001, 0.001)
_FORGETTING = 0.995
_PRIOR_VARIANCE = 4.0
_MOST_VARIANCE = 100.0
_CLIPPED_ERRORS = 3.0
_MOST_RATIO = 100.0


@dataclass(slots=True)
class StepShape:
    """What a step's time depends on.

    `past_tokens` sums past × chunk and `chunk_square` chunk² over all rows, decoding ones included.
    """

    tokens: int = 0
    decode_rows: int = 0
    past_tokens: int = 0
    chunk_square: int = 0

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

    def write(self, path: Path) -> None:
        """Store as JSON, for `read_profile`."""
        values = {name: getattr(self, name) for name in (*FEATURES, "error", "machine", "model")}
        path.write_text(json.dumps(values, indent=2) + "\n")


def read_profile(path: Path) -> CostProfile:
    """Read a stored profile.

    Raises:
        SettingsError: it is not there, or is no profile.
    """
    try:
        values = json.loads(path.read_text())
        numbers = {name: float(values[name]) for name in (*FEATURES, "error")}
        if not all(math.isfinite(value) and value >= 0 for value in numbers.values()):
            raise ValueError("has numbers below 0")
        return CostProfile(
            **numbers, machine=str(values.get("machine", "")), model=str(values.get("model", ""))
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SettingsError(
            f"is no cost profile: {type(error).__name__}: {error}",
            field=f"file {path}",
            remedy="make one with `octavo plan calibrate`",
        ) from error


class CostModel:
    """A linear model of a step's time, fitted by recursive least squares with forgetting.

    Each observation is weighted by its own time, so that relative errors are what is small, and a
    residual beyond three times the usual one counts as that much only. Without a profile the first
    observation scales the prior as a whole. Coefficients that the fit drives below 0 count as 0.
    Source of the recursion: Ljung, System Identification, 2nd edition, 11.2.
    """

    def __init__(self, profile: CostProfile | None = None):
        self.observations = 0
        self.error = 0.25 if profile is None else max(profile.error, 0.01)
        """Usual relative error of a prediction, measured before each fit."""
        self._scale_prior = profile is None
        if profile is None:
            self._theta = list(_PRIOR_SECONDS)
        else:
            values = (getattr(profile, name) for name in FEATURES)
            self._theta = [value / scale for value, scale in zip(values, _SCALES, strict=True)]
        self._spread([max(value, 1e-9) for value in self._theta])
        self._publish()

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
        if linear + square <= 0:
            return 1 << 30
        # The stable root of square n² + linear n = seconds.
        root = 2 * seconds / (linear + math.sqrt(linear * linear + 4 * square * seconds))
        return int(min(root, 1 << 30))

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step; times that are no positive number are ignored."""
        if not (0 < seconds < 1e6) or shape.tokens < 1:
            return
        predicted = self.predict(shape)
        if self._scale_prior:
            self._scale_prior = False
            ratio = min(max(seconds / max(predicted, 1e-9), 1 / _MOST_RATIO), _MOST_RATIO)
            self._theta = [value * ratio for value in self._theta]
            self._spread(self._theta)
            self._publish()
            predicted = self.predict(shape)
        residual = 1.0 - predicted / seconds
        bound = _CLIPPED_ERRORS * max(self.error, 0.02)
        clipped = min(max(residual, -bound), bound)
        self.observations += 1
        # What is far out moves the published error no more than it moves the fit.
        self.error += 0.05 * (abs(clipped) - self.error)
        self._fit([value / seconds for value in self._features(shape)], clipped)
        self._publish()

    def profile(self, *, machine: str = "", model: str = "") -> CostProfile:
        """The present state, to be stored."""
        values = {name: getattr(self, name) for name in FEATURES}
        return replace(CostProfile(0, 0, 0, 0, 0, self.error, machine, model), **values)

    def _features(self, shape: StepShape) -> list[float]:
        values = (
            1,
            shape.tokens,
            shape.decode_rows,
            shape.past_tokens,
            shape.chunk_square,
        )
        return [value * scale for value, scale in zip(values, _SCALES, strict=True)]

    def _spread(self, sizes: list[float]) -> None:
        """Uncertainty of each coefficient in proportion to its size."""
        count = len(sizes)
        self._sizes = sizes
        self._covariance = [
            [_PRIOR_VARIANCE * sizes[i] ** 2 if i == j else 0.0 for j in range(count)]
            for i in range(count)
        ]

    def _fit(self, features: list[float], residual: float) -> None:
        covariance, count = self._covariance, len(features)
        gains = [sum(row[j] * features[j] for j in range(count)) for row in covariance]
        information = sum(gains[j] * features[j] for j in range(count))
        denominator = _FORGETTING + information
        for i in range(count):
            self._theta[i] += gains[i] / denominator * residual
        for i in range(count):
            row, gain = covariance[i], gains[i] / denominator
            for j in range(count):
                row[j] = (row[j] - gain * gains[j]) / _FORGETTING
        # What is never excited must not grow for ever while the rest is forgotten.
        for i in range(count):
            most = _MOST_VARIANCE * self._sizes[i] ** 2
            if covariance[i][i] > most:
                shrink = math.sqrt(most / covariance[i][i])
                for j in range(count):
                    covariance[i][j] *= shrink
                    covariance[j][i] *= shrink

    def _publish(self) -> None:
        for name, value, scale in zip(FEATURES, self._theta, _SCALES, strict=True):
            setattr(self, name, max(value, 0.0) * scale)

    constant: float
    token: float
    decode_row: float
    past_token: float
    chunk_square: float
