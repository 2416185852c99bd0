"""A profile from what a running server has learned of its own steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from prometheus_client.parser import text_string_to_metric_families

from octavo.core.errors import InvalidRequest, SettingsError
from octavo.plan.profile import Profile, parse_profile
from octavo.schedule.cost import FEATURES, CostProfile

_COST = "octavo_step_cost_seconds"
_WORK = "octavo_step_work_total"
_SECONDS = "octavo_engine_work_seconds_total"
_ERROR = "octavo_prediction_error"
_STEPS = "octavo_engine_steps_total"
_LEAST_STEPS = 100
_BETWEEN = (_COST, "between")
_COSTS = {(_COST, name): (_WORK, name) for name in FEATURES}
"""The seconds of each feature, and how often it was there."""
_WHOLE = {(_ERROR, ""), (_STEPS, ""), (_SECONDS, "")}
_KNOWN = {*_COSTS, *_COSTS.values(), *_WHOLE, _BETWEEN}
_Numbers = Mapping[tuple[str, str], float]
"""Values by the name of the metric and by what they are `per`."""


def learned_profile(texts: Sequence[str], base: Profile) -> Profile:
    """The profile `base` with the step times and the model of a server, from texts of its /metrics.

    A server's steps share the processor with those who bring requests and take answers, which a
    calibration alone on the machine does not know. What is learned follows the latest steps, so the
    mean of several texts is taken. It is of the usual step, of which some take much longer than
    others; the whole is scaled to the time that all steps took together, from the first to the last
    text or, if that is hardly any, since the start.

    Raises:
        InvalidRequest: a text is not of one server with one model, or that has hardly run.
    """
    if not texts:
        raise InvalidRequest("are not there", field="metrics")
    found = [_numbers(text) for text in texts]
    models = sorted({model for _, model in found})
    if len(models) > 1:
        raise InvalidRequest(f"are of several models: {', '.join(models)}", field="metrics")
    moments = sorted((numbers for numbers, _ in found), key=lambda each: each[_STEPS, ""])
    mean = {name: fmean(numbers[name] for numbers in moments) for name in _KNOWN}
    first, last = moments[0], moments[-1]
    if last[_STEPS, ""] - first[_STEPS, ""] < _LEAST_STEPS:
        first = dict.fromkeys(_KNOWN, 0.0)
    measured, predicted = _seconds(mean, first, last)
    scale = measured / predicted if predicted > 0 else 1.0
    cost = CostProfile(
        **{name: scale * mean[_COST, name] for name in FEATURES},
        error=mean[_ERROR, ""],
        machine=base.cost.machine,
        model=models[0],
    )
    profile = replace(
        base,
        cost=cost,
        p90_error=cost.error,
        steps=int(last[_STEPS, ""]),
        between_seconds=mean[_BETWEEN],
    )
    try:
        return parse_profile(profile.to_json().encode(), "metrics")
    except SettingsError as error:
        raise InvalidRequest(f"have impossible step times: {error}", field="metrics") from None


def step_seconds(cost: CostProfile, before: str, after: str) -> tuple[float, float]:
    """The time of all steps between two texts of /metrics, and what it is by `cost`.

    Raises:
        InvalidRequest: the texts are not of one server, or that has hardly run.
    """
    costs = {(_COST, name): getattr(cost, name) for name in FEATURES}
    return _seconds(costs, _numbers(before)[0], _numbers(after)[0])


def _seconds(cost: _Numbers, before: _Numbers, after: _Numbers) -> tuple[float, float]:
    done = {name: after[name] - before[name] for name in (*_COSTS.values(), (_SECONDS, ""))}
    if min(done.values()) < 0:
        raise InvalidRequest(
            "are of a server that was started again in between",
            field="metrics",
            remedy="take those of one run",
        )
    return done[_SECONDS, ""], sum(cost[name] * done[work] for name, work in _COSTS.items())


def _numbers(text: str) -> tuple[_Numbers, str]:
    """The times, work, error and steps of the only engine in a text, and its model."""
    numbers: dict[tuple[str, str], float] = {}
    models = set()
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = (sample.name, sample.labels.get("per", ""))
                if name not in _KNOWN:
                    continue
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
    if numbers.keys() != _KNOWN or len(models) != 1:
        raise InvalidRequest(
            "have no step times of one engine",
            field="metrics",
            remedy="take them from /metrics of an Octavo server",
        )
    # Comparisons with NaN are false.
    if not all(0 <= number < math.inf for number in numbers.values()):
        raise InvalidRequest(f"have impossible step times: {numbers}", field="metrics")
    if numbers[_STEPS, ""] < _LEAST_STEPS:
        raise InvalidRequest(
            f"are of {numbers[_STEPS, '']:.0f} steps, which is too few to go by",
            field="metrics",
            remedy=f"send the server some load first, at least {_LEAST_STEPS} steps",
        )
    return numbers, models.pop()
