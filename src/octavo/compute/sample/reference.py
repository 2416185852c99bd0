"""The oracle of token choice: numpy, one row at a time, with full sorts.

Native code gives the same tokens and log-probabilities by bits, because probabilities are integers
here as there: the mass of a token is exp((z - max) / temperature) in units of 2^-40, from one fixed
sequence of float32 operations, so that no sum depends on the order of its terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.compute.batch import Draw, Float32Array, Score, StepOutput
from octavo.compute.sample.params import STATUS_MESSAGES, check_jobs, pack_jobs
from octavo.compute.sample.philox import philox_bits
from octavo.core.output import TokenLogprob

Masses = NDArray[np.int64]
Ids = NDArray[np.intp]

MASS_ONE = 2**40
_LOWEST_EXPONENT = np.float32(-28.5)
_LOG2_E = np.float32(1.44269504)
_ROUND = np.float32(12582912.0)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_POLYNOMIAL = tuple(
    np.float32(value)
    for value in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)
_NOT_FINITE = 1
_NOTHING_LEFT = 2


class _UnusableError(Exception):
    """No token can be chosen from a row; `status` is a key of STATUS_MESSAGES."""

    def __init__(self, status: int):
        super().__init__(STATUS_MESSAGES[status])
        self.status = status


def draw_and_score(
    logits: Float32Array, wanted: Sequence[int], draws: Sequence[Draw], scores: Sequence[Score]
) -> StepOutput:
    """Answer `draws` and `scores` from `logits` [len(wanted), vocabulary].

    Row i belongs to batch token wanted[i]. A row that is not usable fails its own draws and scores
    only.

    Raises:
        ValueError: a setting is out of its domain, or a row or token id does not exist.
    """
    check_jobs(pack_jobs(draws, scores, logits.shape[1]), logits.shape[1])
    row_of = {token: logits[row] for row, token in enumerate(wanted)}
    for token in [draw.token for draw in draws] + [score.token for score in scores]:
        if token not in row_of:
            raise ValueError(f"the logits of batch token {token} are not at hand")
    output = StepOutput()
    for draw in draws:
        _answer_draw(row_of[draw.token], draw, output)
    for score in scores:
        row = row_of[score.token]
        try:
            output.scored.append(_logprobs(row, score.target, score.top))
        except _UnusableError:
            output.scored.append(TokenLogprob(score.target, math.nan))
    return output


def _answer_draw(logits: Float32Array, draw: Draw, output: StepOutput) -> None:
    logprob = None
    try:
        token = draw_token(logits, draw)
        if draw.top is not None:
            logprob = _logprobs(logits, token, draw.top)
    except _UnusableError as failure:
        token = -1
        output.draw_errors[len(output.drawn)] = STATUS_MESSAGES[failure.status]
    output.drawn.append(token)
    output.drawn_logprobs.append(logprob)


def draw_token(logits: Float32Array, draw: Draw) -> int:
    """Bias, penalties, bans, temperature, top-k, top-p, min-p and the draw, in this order."""
    _check_usable(logits)
    adjusted = _adjusted(logits, draw)
    _check_usable(adjusted)
    temperature = np.float32(draw.temperature)
    if temperature == 0:
        return int(np.argmax(adjusted))
    masses = token_masses(adjusted, temperature)
    kept = _kept_ids(adjusted, masses, draw)
    cumulative = np.cumsum(masses[kept])
    target = philox_bits(draw.seed, draw.counter) * int(cumulative[-1]) >> 64
    return int(kept[np.searchsorted(cumulative, target, side="right")])


def token_masses(logits: Float32Array, temperature: np.float32) -> Masses:
    """exp((z - max) / temperature) * 2^40 as integers [vocabulary]; the best token has 2^40.

    Cody-Waite reduction and the degree 5 polynomial of the Cephes library's expf.
    """
    with np.errstate(over="ignore"):
        exponents = (logits - logits.max()) / temperature
    bounded = np.maximum(exponents, _LOWEST_EXPONENT)
    n = (bounded * _LOG2_E + _ROUND) - _ROUND
    r = bounded - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = np.full_like(r, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = p * r + coefficient
    fractions = (p * (r * r) + r) + np.float32(1)
    scaled = np.ldexp(fractions, n.astype(np.int32) + 40)
    masses = np.rint(scaled.astype(np.float64)).astype(np.int64)
    return np.where(exponents < _LOWEST_EXPONENT, 0, masses)


def _check_usable(logits: Float32Array) -> None:
    if np.isnan(logits).any() or logits.max() == np.inf:
        raise _UnusableError(_NOT_FINITE)
    if logits.max() == -np.inf:
        raise _UnusableError(_NOTHING_LEFT)


def _adjusted(logits: Float32Array, draw: Draw) -> Float32Array:
    adjusted = logits.copy()
    with np.errstate(over="ignore"):
        for token, value in zip(draw.bias_ids, draw.bias_values, strict=True):
            adjusted[token] += np.float32(value)
        _penalise(adjusted, draw)
    adjusted[list(draw.banned)] = -np.inf
    return adjusted


def _penalise(logits: Float32Array, draw: Draw) -> None:
    repetition = np.float32(draw.repetition_penalty)
    frequency = np.float32(draw.frequency_penalty)
    presence = np.float32(draw.presence_penalty)
    if repetition == 1 and frequency == 0 and presence == 0:
        return
    output, counts = np.unique(np.asarray(draw.history_output, dtype=np.intp), return_counts=True)
    prompt = np.asarray(draw.history_prompt, dtype=np.intp)
    seen: Any = np.union1d(prompt, output)
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / repetition, logits[seen] * repetition)
    logits[output] -= frequency * counts.astype(np.float32)
    logits[output] -= presence


def _kept_ids(logits: Float32Array, masses: Masses, draw: Draw) -> Ids:
    """The ids that top-k, top-p and min-p leave, rising."""
    ranked = np.argsort(-logits, kind="stable")  # falling logit, then rising id
    if draw.top_k > 0:
        ranked = ranked[: draw.top_k]
    if draw.top_p < 1:
        cumulative = np.cumsum(masses[ranked])
        total = int(cumulative[-1])
        need = min(total, max(1, math.ceil(draw.top_p * float(total))))
        ranked = ranked[: int(np.searchsorted(cumulative, need)) + 1]
    likely = masses[ranked] >= math.ceil(draw.min_p * MASS_ONE)
    return np.sort(ranked[likely])


def _logprobs(logits: Float32Array, token: int, top: int) -> TokenLogprob:
    _check_usable(logits)
    total = int(token_masses(logits, np.float32(1)).sum())
    normaliser = float(logits.max()) + math.log(float(total) / MASS_ONE)
    ranked = np.argsort(-logits, kind="stable")[:top]
    return TokenLogprob(
        token,
        float(logits[token]) - normaliser,
        tuple((int(other), float(logits[other]) - normaliser) for other in ranked),
    )
