"""Sampling parameters are checked in one place; request states move by one table."""

from __future__ import annotations

import math

import pytest

from octavo.core.errors import InvalidRequest, ModelFileError, OctavoError, TemplateError
from octavo.core.ids import RequestId
from octavo.core.request import LEGAL_MOVES, RequestState, Transition, move
from octavo.core.sampling import SamplingParams

BAD_VALUES = [
    ("max_tokens", -1),
    ("max_tokens", "5"),
    ("max_tokens", 1.5),
    ("max_tokens", True),
    pytest.param("max_tokens", 10**5000, id="max_tokens-huge"),
    ("min_tokens", None),
    ("temperature", math.nan),
    ("temperature", -0.1),
    ("temperature", math.inf),
    ("temperature", "1"),
    pytest.param("temperature", 10**400, id="temperature-huge"),
    ("top_k", -2),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("min_p", -0.5),
    ("seed", 2**64),
    ("seed", -(2**63) - 1),
    ("repetition_penalty", 0.0),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("logit_bias", [1, 2]),
    ("logit_bias", {"x": 1.0}),
    ("logit_bias", {5: math.nan}),
    ("logit_bias", {-1: 1.0}),
    ("stop", ("",)),
    ("stop", (3,)),
    ("stop", ("x",) * 65),
    ("stop", ("x" * 4097,)),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", ("2",)),
    ("stop_token_ids", 7),
    ("ignore_eos", 1),
    ("n", 0),
    ("n", 129),
    ("logprobs", 65),
    ("prompt_logprobs", -1),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_bad_value_names_its_field(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name
    assert len(str(caught.value)) < 200


def test_integer_valued_floats_and_text_keys_of_json_are_accepted() -> None:
    params = SamplingParams(max_tokens=5.0, top_k=-1, logit_bias={"7": 1}, stop="end")  # type: ignore[arg-type,dict-item]
    assert params.max_tokens == 5
    assert isinstance(params.max_tokens, int)
    assert params.top_k == 0
    assert params.logit_bias == {7: 1.0}
    assert params.stop == ("end",)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    SamplingParams(logit_bias={9: 1.0}, stop_token_ids=(9,)).check_vocabulary(10)
    with pytest.raises(InvalidRequest, match="token id 10"):
        SamplingParams(logit_bias={10: 1.0}).check_vocabulary(10)
    with pytest.raises(InvalidRequest, match="token id 12"):
        SamplingParams(stop_token_ids=(12,)).check_vocabulary(10)


@pytest.mark.parametrize("before", list(RequestState))
@pytest.mark.parametrize("after", list(RequestState))
def test_only_the_legal_moves_are_made(before: RequestState, after: RequestState) -> None:
    events: list[object] = []

    def make() -> RequestState:
        return move(RequestId("r"), before, after, at_seconds=1.5, reason="why", emit=events.append)

    if after in LEGAL_MOVES[before]:
        assert make() is after
        assert events == [Transition(RequestId("r"), before, after, 1.5, "why")]
    else:
        with pytest.raises(ValueError, match="illegal move"):
            make()
        assert events == []


def test_final_states_have_no_way_out() -> None:
    for state in RequestState:
        assert state.is_final == (not LEGAL_MOVES[state])


def test_errors_show_field_cause_and_remedy() -> None:
    error = ModelFileError("wrong shape", field="a.weight", expected="[2]", found="[3]")
    assert str(error) == "a.weight: wrong shape: expected [2], found [3]"
    assert TemplateError("no such role", message_index=3).field == "messages[3]"
    assert str(OctavoError("broken", remedy="mend it")) == "broken (mend it)"
