"""The C++ sampler and the numpy oracle give equal bits on whatever logits and settings."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.compute.batch import Draw, Float32Array, Score
from octavo.compute.sample.native import NativeSampler
from octavo.compute.sample.reference import draw_and_score

VOCABULARIES = st.one_of(
    st.integers(1, 40),
    st.sampled_from([255, 256, 257, 511, 513]),
    st.sampled_from([1000, 4999, 50000]),
)
SCALES = st.sampled_from([0.0, 1e-3, 1.0, 4.0, 60.0, 1e37])


@st.composite
def rows_of_logits(draw: st.DrawFn) -> Float32Array:
    vocabulary = draw(VOCABULARIES)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    with np.errstate(over="ignore"):
        rows = generator.normal(0, 1, (draw(st.integers(1, 3)), vocabulary)) * draw(SCALES)
        logits = rows.astype(np.float32)
    kind = draw(st.sampled_from(["plain", "ties", "masked", "spiked", "damaged"]))
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "masked":
        logits[generator.random(logits.shape) < draw(st.sampled_from([0.1, 0.9, 1.0]))] = -np.inf
    elif kind == "spiked":
        logits[:, generator.integers(vocabulary)] = draw(st.sampled_from([-3e38, 40.0, 3e38]))
    elif kind == "damaged":
        logits[0, generator.integers(vocabulary)] = draw(st.sampled_from([np.nan, np.inf]))
    return logits


@st.composite
def draws_for(draw: st.DrawFn, rows: int, vocabulary: int) -> Draw:
    ids = st.lists(st.integers(0, vocabulary - 1), max_size=6)
    bias_ids = draw(ids)
    bias = st.floats(-100, 100, width=32)
    return Draw(
        token=draw(st.integers(0, rows - 1)),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        counter=draw(st.integers(0, 2**40)),
        temperature=draw(st.one_of(st.sampled_from([0.0, 1e-30, 1.0]), st.floats(0, 100))),
        top_k=draw(st.one_of(st.just(0), st.integers(1, 60), st.integers(1, 2**31 - 1))),
        top_p=draw(st.one_of(st.just(1.0), st.floats(0, 1))),
        min_p=draw(st.one_of(st.just(0.0), st.floats(0, 1))),
        repetition_penalty=draw(st.one_of(st.just(1.0), st.floats(0.01, 100))),
        presence_penalty=draw(st.one_of(st.just(0.0), st.floats(-2, 2))),
        frequency_penalty=draw(st.one_of(st.just(0.0), st.floats(-2, 2))),
        bias_ids=bias_ids,
        bias_values=draw(st.lists(bias, min_size=len(bias_ids), max_size=len(bias_ids))),
        banned=draw(ids),
        history_prompt=draw(ids),
        history_output=draw(ids),
        top=draw(st.one_of(st.none(), st.integers(0, 64))),
    )


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_native_equals_reference(data: st.DataObject) -> None:
    logits = data.draw(rows_of_logits())
    rows, vocabulary = logits.shape
    draws = data.draw(st.lists(draws_for(rows, vocabulary), min_size=1, max_size=4))
    score = st.builds(
        Score,
        token=st.integers(0, rows - 1),
        target=st.integers(0, vocabulary - 1),
        top=st.integers(0, 64),
    )
    scores = data.draw(st.lists(score, max_size=3))
    native = NativeSampler(vocabulary).draw_and_score(logits, range(rows), draws, scores)
    oracle = draw_and_score(logits, range(rows), draws, scores)
    assert repr(native) == repr(oracle)  # NaN is not equal to itself; its text is


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_drawn_token_is_one_that_every_filter_keeps(data: st.DataObject) -> None:
    logits = data.draw(rows_of_logits().filter(lambda rows: bool(np.isfinite(rows).all())))
    rows, vocabulary = logits.shape
    top_k = data.draw(st.integers(1, vocabulary))
    top_p = data.draw(st.floats(0, 1))
    min_p = data.draw(st.floats(0, 1))
    draw = Draw(
        token=rows - 1,
        seed=data.draw(st.integers(0, 2**64 - 1)),
        counter=0,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
    )
    token = NativeSampler(vocabulary).draw_and_score(logits, range(rows), [draw], []).drawn[0]
    z = logits[rows - 1].astype(np.float64)
    better = z > z[token]
    assert better.sum() < top_k
    p = np.exp(z - z.max())
    kept_mass = np.sort(p)[::-1][:top_k].sum()
    assert p[better].sum() <= top_p * kept_mass * (1 + 1e-5)  # the set was not complete before
    assert p[token] >= min_p * (1 - 1e-5) - 1e-11
