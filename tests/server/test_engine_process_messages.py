"""Messages survive the way between processes, and nothing else is taken for one."""

from __future__ import annotations

import contextlib
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core import errors
from octavo.core.ids import RequestId
from octavo.core.output import EngineOutput, TokenLogprob
from octavo.core.request import FinishReason, Request
from octavo.core.sampling import MAX_SEED, SamplingParams
from octavo.core.service_classes import ON_MISS
from octavo.engine.messages import (
    Cancel,
    Closing,
    Drain,
    Dropped,
    Finish,
    Hello,
    Outputs,
    Ping,
    Refused,
    Started,
    Submit,
    Taken,
    decode_from_engine,
    decode_to_engine,
    encode,
    error_of,
    problem_of,
)

texts = st.text(max_size=20)
ids = st.builds(RequestId, texts)
tokens = st.integers(0, 2**31 - 1)
floats = st.floats(allow_nan=False)
logprobs = st.builds(
    TokenLogprob, tokens, floats, st.lists(st.tuples(tokens, floats), max_size=3).map(tuple)
)
params = st.builds(
    SamplingParams,
    max_tokens=st.none() | st.integers(0, 2**31 - 1),
    temperature=st.floats(0, 100),
    top_p=st.floats(0, 1),
    seed=st.none() | st.integers(-(2**63), MAX_SEED),
    logit_bias=st.dictionaries(tokens, st.floats(-100, 100), max_size=3),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
    stop_token_ids=st.lists(tokens, max_size=3).map(tuple),
    logprobs=st.none() | st.integers(0, 64),
)
requests = st.builds(
    Request,
    id=ids,
    prompt=st.lists(tokens, max_size=20).map(tuple),
    params=params,
    seed=st.integers(0, MAX_SEED),
    max_new_tokens=st.integers(0, 2**31 - 1),
    stop_ids=st.frozensets(tokens, max_size=3),
    arrival_seconds=st.floats(0, 1e9),
    service_class=texts,
    cache_salt=st.binary(max_size=8),
    tenant=texts,
    on_miss=st.none() | st.sampled_from(ON_MISS),
)
outputs = st.builds(
    EngineOutput,
    request_id=ids,
    token_ids=st.lists(tokens, max_size=4).map(tuple),
    logprobs=st.none() | st.lists(logprobs, max_size=3).map(tuple),
    prompt_logprobs=st.none() | st.lists(st.none() | logprobs, max_size=3).map(tuple),
    cached_tokens=st.integers(0, 2**31),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    error=st.none() | texts,
)
to_engine = st.one_of(
    st.builds(Hello, st.integers(0, 9)),
    st.builds(Submit, st.lists(requests, max_size=3).map(tuple)),
    st.builds(Cancel, st.lists(ids, max_size=3).map(tuple)),
    st.builds(Finish, st.lists(ids, max_size=3).map(tuple)),
    st.builds(Ping, st.integers(0, 2**40)),
    st.just(Drain()),
)
octavo_errors = st.builds(
    lambda kind, message, field, remedy: kind(message, field=field, remedy=remedy),
    st.sampled_from([errors.InvalidRequest, errors.PromptTooLong, errors.CapacityError]),
    texts,
    st.none() | texts,
    st.none() | texts,
)
from_engine = st.one_of(
    st.builds(
        Outputs,
        st.lists(outputs, max_size=3).map(tuple),
        st.lists(st.builds(Started, ids, st.floats(0, 1e6)), max_size=3).map(tuple),
    ),
    st.builds(Refused, st.lists(ids, max_size=3).map(tuple), octavo_errors.map(problem_of)),
    st.builds(Taken, st.lists(ids, max_size=3).map(tuple), texts),
    st.builds(Dropped, texts),
    st.builds(Closing, texts),
)


@given(to_engine)
def test_what_frontends_say_arrives(message: object) -> None:
    assert decode_to_engine(encode(message)) == message  # type: ignore[arg-type]


@given(from_engine)
def test_what_engines_say_arrives(message: object) -> None:
    assert decode_from_engine(encode(message)) == message  # type: ignore[arg-type]


@given(st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]))
def test_numbers_keep_their_bits(value: float) -> None:
    output = EngineOutput(RequestId("a"), logprobs=(TokenLogprob(1, value),))
    (arrived,) = decode_from_engine(encode(Outputs((output,)))).outputs  # type: ignore[union-attr]
    back = arrived.logprobs[0].logprob
    if math.isnan(value):
        assert math.isnan(back)
    else:
        assert struct.pack("<d", back) == struct.pack("<d", value)


@given(octavo_errors)
def test_errors_keep_kind_field_and_remedy(error: errors.OctavoError) -> None:
    back = error_of(problem_of(error))
    assert type(back) is type(error)
    assert (back.message, back.field, back.remedy) == (error.message, error.field, error.remedy)


def test_an_overload_keeps_its_time_and_its_reason() -> None:
    error = errors.Overloaded("full", retry_after_seconds=2.5, reason="queue_tokens")
    back = error_of(problem_of(error))
    assert isinstance(back, errors.Overloaded)
    assert (back.retry_after_seconds, back.reason) == (2.5, "queue_tokens")
    assert back.remedy == "try again in 3 s"


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    for decode in (decode_to_engine, decode_from_engine):
        with contextlib.suppress(errors.EngineError):  # anything else fails the test
            encode(decode(data))


@given(to_engine, st.data())
def test_damaged_messages_are_messages_or_errors(message: object, data: st.DataObject) -> None:
    raw = bytearray(encode(message))  # type: ignore[arg-type]
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(errors.EngineError):
        encode(decode_to_engine(bytes(raw)))


def test_sampling_parameters_are_checked_on_arrival() -> None:
    request = Request(RequestId("a"), (1,), SamplingParams(), seed=1, max_new_tokens=1)
    raw = encode(Submit((request,)))
    value = struct.pack(">d", 1.0)
    assert b"temperature\xcb" + value in raw
    damaged = raw.replace(
        b"temperature\xcb" + value, b"temperature\xcb" + struct.pack(">d", math.nan)
    )
    with pytest.raises(errors.EngineError, match="temperature"):
        decode_to_engine(damaged)
