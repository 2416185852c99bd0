"""A profile from what a running server has learned of its own steps."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from octavo.core.errors import InvalidRequest
from octavo.plan.profile import Profile
from octavo.schedule.cost import FEATURES, MOST_PROFILE_NUMBER, CostProfile

_COST = "octavo_step_cost_seconds"
_ERROR = "octavo_prediction_error"
_STEPS = "octavo_engine_steps_total"
_LEAST_STEPS = 100


def learned_profile(metrics: str, base: Profile) -> Profile:
    """The profile `base` with the step times of a server, given the text of its /metrics.

    A server's steps share the processor with those who bring requests and take answers, which a
    calibration alone on the machine does not know.

    Raises:
        InvalidRequest: that is not the text of one server with one model, or it has hardly run.
    """
    numbers: dict[str, float] = {}
    models = set()
    try:
        for family in text_string_to_metric_families(metrics):
            for sample in family.samples:
                if sample.name.startswith("octavo_") and "model_name" in sample.labels:
                    models.add(sample.labels["model_name"])
                name = sample.labels.get("per", "") if family.name == _COST else sample.name
                numbers[name] = sample.value
    except ValueError as error:
        message = f"are not in the format of Prometheus: {error}"
        raise InvalidRequest(message, field="metrics") from None
    if not {*FEATURES, _ERROR, _STEPS} <= numbers.keys():
        raise InvalidRequest(
            "have no step times of an engine",
            field="metrics",
            remedy="take them from /metrics of an Octavo server",
        )
    if len(models) > 1:
        raise InvalidRequest(f"are of several models: {', '.join(sorted(models))}", field="metrics")
    if numbers[_STEPS] < _LEAST_STEPS:
        raise InvalidRequest(
            f"are of {numbers[_STEPS]:.0f} steps, which is too few to go by",
            field="metrics",
            remedy=f"send the server some load first, at least {_LEAST_STEPS} steps",
        )
    times = {name: numbers[name] for name in (*FEATURES, _ERROR)}
    if not all(0 <= value <= MOST_PROFILE_NUMBER for value in times.values()):
        raise InvalidRequest(f"have impossible step times: {times}", field="metrics")
    cost = CostProfile(
        constant=times["constant"],
        token=times["token"],
        decode_row=times["decode_row"],
        past_token=times["past_token"],
        chunk_square=times["chunk_square"],
        error=times[_ERROR],
        machine=base.cost.machine,
        model=base.cost.model,
    )
    return replace(base, cost=cost, p90_error=cost.error, steps=int(numbers[_STEPS]))
