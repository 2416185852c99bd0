"""A profile from what a running server has learned of its own steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from prometheus_client.parser import text_string_to_metric_families

from octavo.core.errors import InvalidRequest, SettingsError
from octavo.plan.profile import Profile, parse_profile
from octavo.schedule.cost import FEATURES, CostProfile

_COST = "octavo_step_cost_seconds"
_ERROR = "octavo_prediction_error"
_STEPS = "octavo_engine_steps_total"
_LEAST_STEPS = 100
_PARTS = (*FEATURES, "between")


def learned_profile(texts: Sequence[str], base: Profile) -> Profile:
    """The profile `base` with the step times and the model of a server, from texts of its /metrics.

    A server's steps share the processor with those who bring requests and take answers, which a
    calibration alone on the machine does not know. What is learned follows the latest steps; of
    several texts the mean is taken, which predicts the mean of what they predict.

    Raises:
        InvalidRequest: a text is not of one server with one model, or that has hardly run.
    """
    if not texts:
        raise InvalidRequest("are not there", field="metrics")
    found = [_numbers(text) for text in texts]
    models = sorted({model for _, model in found})
    if len(models) > 1:
        raise InvalidRequest(f"are of several models: {', '.join(models)}", field="metrics")
    times = {name: fmean(numbers[name] for numbers, _ in found) for name in (*_PARTS, _ERROR)}
    cost = CostProfile(
        # The simulated engine makes one step right after the other.
        constant=times["constant"] + times["between"],
        token=times["token"],
        decode_row=times["decode_row"],
        past_token=times["past_token"],
        chunk_square=times["chunk_square"],
        error=times[_ERROR],
        machine=base.cost.machine,
        model=models[0],
    )
    steps = max(int(numbers[_STEPS]) for numbers, _ in found)
    profile = replace(base, cost=cost, p90_error=cost.error, steps=steps)
    try:
        return parse_profile(profile.to_json().encode(), "metrics")
    except SettingsError as error:
        raise InvalidRequest(f"have impossible step times: {error}", field="metrics") from None


def _numbers(text: str) -> tuple[dict[str, float], str]:
    """The times, error and steps of the only engine in a text, and its model."""
    numbers: dict[str, float] = {}
    models = set()
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name not in (_COST, _ERROR, _STEPS):
                    continue
                name = sample.labels.get("per", "") if sample.name == _COST else sample.name
                if name in numbers:
                    raise InvalidRequest(
                        "are of several engines",
                        field="metrics",
                        remedy="take them from /metrics of one server",
                    )
                numbers[name] = sample.value
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
    # Comparisons with NaN are false.
    if not all(0 <= number < math.inf for number in numbers.values()):
        raise InvalidRequest(f"have impossible step times: {numbers}", field="metrics")
    if numbers[_STEPS] < _LEAST_STEPS:
        raise InvalidRequest(
            f"are of {numbers[_STEPS]:.0f} steps, which is too few to go by",
            field="metrics",
            remedy=f"send the server some load first, at least {_LEAST_STEPS} steps",
        )
    return numbers, models.pop()
