"""A profile from what a running server has learned of its own steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from prometheus_client.parser import text_string_to_metric_families

from octavo.core.errors import InvalidRequest
from octavo.plan.profile import Profile
from octavo.schedule.cost import FEATURES, MOST_PROFILE_NUMBER, CostProfile

_COST = "octavo_step_cost_seconds"
_ERROR = "octavo_prediction_error"
_STEPS = "octavo_engine_steps_total"
_LEAST_STEPS = 100
_PARTS = (*FEATURES, "between")


def learned_profile(texts: Sequence[str], base: Profile) -> Profile:
    """The profile `base` with the step times of a server, given texts of its /metrics.

    A server's steps share the processor with those who bring requests and take answers, which a
    calibration alone on the machine does not know. What is learned follows the latest steps; of
    several texts the mean is taken, which predicts the mean of what they predict.

    Raises:
        InvalidRequest: a text is not of one server with one model, or that has hardly run.
    """
    found = [_numbers(text) for text in texts]
    models = {model for _, model in found}
    if len(models) > 1:
        raise InvalidRequest(f"are of several models: {', '.join(sorted(models))}", field="metrics")
    steps = max(int(numbers[_STEPS]) for numbers, _ in found)
    times = {name: mean(numbers[name] for numbers, _ in found) for name in (*_PARTS, _ERROR)}
    cost = CostProfile(
        # The simulated engine makes one step right after the other.
        constant=times["constant"] + times["between"],
        token=times["token"],
        decode_row=times["decode_row"],
        past_token=times["past_token"],
        chunk_square=times["chunk_square"],
        error=times[_ERROR],
        machine=base.cost.machine,
        model=base.cost.model,
    )
    return replace(base, cost=cost, p90_error=cost.error, steps=steps)


def _numbers(text: str) -> tuple[dict[str, float], str]:
    """The times, error and steps of the only engine in a text, and its model."""
    numbers: dict[str, float] = {}
    models = set()
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _COST:
                    numbers[sample.labels.get("per", "")] = sample.value
                elif sample.name in (_ERROR, _STEPS):
                    numbers[sample.name] = sample.value
                    models.add(sample.labels.get("model_name", ""))
    except ValueError as error:
        message = f"are not in the format of Prometheus: {error}"
        raise InvalidRequest(message, field="metrics") from None
    if not {*_PARTS, _ERROR, _STEPS} <= numbers.keys() or len(models) != 1:
        raise InvalidRequest(
            "have no step times of one engine",
            field="metrics",
            remedy="take them from /metrics of an Octavo server",
        )
    possible = all(0 <= numbers[name] <= MOST_PROFILE_NUMBER for name in (*_PARTS, _ERROR))
    if not possible or not math.isfinite(numbers[_STEPS]):
        raise InvalidRequest(f"have impossible step times: {numbers}", field="metrics")
    if numbers[_STEPS] < _LEAST_STEPS:
        raise InvalidRequest(
            f"are of {numbers[_STEPS]:.0f} steps, which is too few to go by",
            field="metrics",
            remedy=f"send the server some load first, at least {_LEAST_STEPS} steps",
        )
    return numbers, models.pop()
