"""Each term of the bounds on gradients is needed, and what is not proved is infinite.

A term is needed if a kernel that keeps to what it declared is beyond the bound without
it: every test here that removes one finds such a kernel.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern import oracle
from linkern.oracle import normalized
from linkern.testing.kernels.assembly import Backward, Parts, stateful
from linkern.testing.kernels.mutants.arithmetic import rounded_to
from tests.oracle.feature_sums import Differentiand, bounded_gradients

FLOAT32 = oracle.Precisions("float32")
WIDE = oracle.Precisions("float64")
STAGES = {
    "feature": {"feature": "bfloat16"},
    "operand": {"operand": "tfloat32"},
    "score": {"score": "bfloat16"},
    "state": {"state": "bfloat16", "normalizer": "bfloat16"},
    "normalizer": {"normalizer": "bfloat16"},
}
KEEPS = {
    "feature": Parts(features=rounded_to(8)),
    "operand": Parts(features=np.asarray, operand=rounded_to(11)),
    "score": Parts(features=np.asarray, scores=rounded_to(8)),
    "state": Parts(features=np.asarray, carried=rounded_to(8)),
    "normalizer": Parts(features=np.asarray, normalizer=rounded_to(8)),
}


def differentiand(query, key, value, cotangent, causal=True, error=0.0):
    """A problem of features, each known to a relative `error`."""
    wide = [np.asarray(x, np.float64) for x in (query, key, value, cotangent)]
    return Differentiand(*wide, error * abs(wide[0]), error * abs(wide[1]), causal)


def positive(rng, length, keys=None, key_dim=3, value_dim=2):
    keys = length if keys is None else keys
    query, key = (rng.uniform(0.1, 1, (n, key_dim)) for n in (length, keys))
    value, cotangent = (rng.normal(size=(n, value_dim)) for n in (keys, length))
    return [x.astype(np.float32) for x in (query, key, value, cotangent)]


def bounds(of, precisions=FLOAT32, quotient=None, output_dtype="float32", **options):
    return bounded_gradients(
        of,
        quotient or oracle.Quotient(),
        precisions,
        output_dtype=output_dtype,
        **options,
    )


def is_within(found, bounded):
    """Whether all gradients are, or stay so when they are stored as float32."""
    return all(
        bool((abs(got.astype(np.float64) - due.output) <= allowed).all())
        for got, due in zip(found, bounded, strict=True)
        for allowed in (due.once_stored("float32"),)
    )


@pytest.mark.parametrize("stage", STAGES)
def test_a_declared_stage_is_allowed_and_an_undeclared_one_is_not(stage):
    slope = Backward(slope=np.ones_like)
    kernel = stateful(replace(KEEPS[stage], backward=slope))
    arrays = positive(np.random.default_rng(0), 60)
    found = kernel.vjp(*arrays)[:3]
    of = differentiand(*arrays)
    assert is_within(found, bounds(of, replace(FLOAT32, **STAGES[stage])))
    assert not is_within(found, bounds(of))


@pytest.mark.parametrize("stage", STAGES)
@given(seed=st.integers(0, 2**16), length=st.integers(1, 40), keys=st.integers(1, 40))
def test_every_declared_stage_widens_every_bound(stage, seed, length, keys):
    rng = np.random.default_rng(seed)
    of = differentiand(*positive(rng, length, keys), causal=False)
    declared = bounds(of, replace(FLOAT32, **STAGES[stage]))
    for wider, plain in zip(declared, bounds(of), strict=True):
        assert (wider.bound > plain.bound).all()


def test_an_output_that_is_used_again_as_it_was_stored_is_allowed():
    def stored(x):
        return x.astype(ml_dtypes.bfloat16).astype(x.dtype)

    saved = Backward(saved=stored, slope=np.ones_like)
    kernel = stateful(Parts(features=np.asarray, backward=saved))
    arrays = positive(np.random.default_rng(0), 60)
    found = kernel.vjp(*arrays)[:3]
    of = differentiand(*arrays)
    assert is_within(found, bounds(of, output_dtype="bfloat16"))
    assert not is_within(found, bounds(of))


def in_float32(x, axis):
    return np.cumsum(x, axis, dtype=np.float32).take(-1, axis)


def values_of_many_queries(length):
    """Gradient of one value: a large term, and as many as there are queries to lose."""
    half = np.float32(2.0**-24)
    cotangent = np.full((length, 1), half)
    cotangent[0] = 1
    query, key, value = np.ones((length, 1)), np.ones((1, 1)), np.ones((1, 1))
    of = differentiand(query, key, value, cotangent, causal=False)
    return of, {2: in_float32(cotangent, 0)[None]}


def queries_of_many_channels(channels):
    """Gradient of one query: a sum over channels that loses all but the first."""
    half = np.float32(2.0**-24)
    cotangent = np.full((1, channels), half)
    cotangent[0, 0] = 1
    value = np.zeros((2, channels), np.float32)
    value[1] = 1
    key = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    query = np.ones((1, 2))
    of = differentiand(query, key, value, cotangent, causal=False)
    pair = in_float32(cotangent * value[1], 1)[0]
    through = pair / 2
    return of, {0: np.asarray([[-through, pair - through]]) / 2}


def moved_features(error):
    """Features that are as wrong as is admitted, each in the worst direction."""
    key = np.zeros((9, 2))
    key[0, 0] = key[1:, 1] = 1
    query = np.ones((1, 2))
    value, cotangent = np.ones((9, 1)), np.ones((1, 1))
    of = differentiand(query, key, value, cotangent, causal=False, error=error)
    moved = replace(
        of,
        query=of.query * [[1 + error, 1 - error]],
        key=of.key * [[1 + error, 1 - error]],
    )
    return of, {2: bounds(moved, WIDE)[2].output}


def growth_of(change):
    """The growth of a smaller problem, in place of that of the one at hand."""

    def patched(monkeypatch):
        whole = normalized._growth
        monkeypatch.setattr(normalized, "_growth", lambda of, *a: whole(change(of), *a))

    return patched


def without_growth(monkeypatch):
    monkeypatch.setattr(normalized, "_growth", lambda *of: np.ones((1, 1)))


def without_error_of_divisor(monkeypatch):
    monkeypatch.setattr(normalized, "_divisor_error", lambda *of: np.zeros(1))


def without_errors_of_features(monkeypatch):
    absolute = normalized._Factors.absolute
    monkeypatch.setattr(normalized._Factors, "gauged", absolute)


NEEDED = {
    "any growth": (without_growth, values_of_many_queries(100)),
    "sums over queries": (
        growth_of(lambda of: replace(of, query=of.query[:1])),
        values_of_many_queries(1000),
    ),
    "sums over channels": (
        growth_of(lambda of: replace(of, value=of.value[:, :1])),
        queries_of_many_channels(1000),
    ),
    "error of the divisor": (without_error_of_divisor, moved_features(1e-3)),
    "errors of features": (without_errors_of_features, moved_features(1e-3)),
}


@pytest.mark.parametrize("term", NEEDED)
def test_without_any_of_its_terms_the_bound_is_exceeded(term, monkeypatch):
    remove, (of, found) = NEEDED[term]

    def kept():
        due = bounds(of)
        return is_within(found.values(), [due[which] for which in found])

    assert kept()
    remove(monkeypatch)
    assert not kept()


@st.composite
def quotients(draw):
    mode = draw(st.sampled_from(("denominator", "normalizer", "clamp")))
    eps = draw(st.sampled_from((0.0, 1e-6, 0.5, 3.0)))
    normalize = draw(st.booleans())
    mode = mode if eps and normalize else "denominator"
    scale = draw(st.sampled_from((1.0, 0.25, -2.0)))
    return oracle.Quotient(normalize, scale, eps if normalize else 0.0, mode)


@given(
    seed=st.integers(0, 2**16),
    quotient=quotients(),
    signed=st.booleans(),
    error=st.sampled_from((1e-9, 1e-3, 1e-2)),
)
def test_admitted_errors_of_features_stay_within_the_bound(
    seed, quotient, signed, error
):
    rng = np.random.default_rng(seed)
    arrays = positive(rng, *rng.integers(1, 9, 2))
    if signed:
        arrays[:2] = (x * rng.choice([-1, 1], x.shape) for x in arrays[:2])
    of = differentiand(*arrays, causal=False, error=error)
    moved = replace(
        of,
        query=of.query + rng.choice([-1, 1], of.query.shape) * of.query_error,
        key=of.key + rng.choice([-1, 1], of.key.shape) * of.key_error,
    )
    exact = replace(moved, query_error=0 * moved.query, key_error=0 * moved.key)
    for due, other in zip(
        bounds(of, WIDE, quotient), bounds(exact, WIDE, quotient), strict=True
    ):
        assert (abs(other.output - due.output) <= due.bound + other.bound).all()


PRECISIONS = st.builds(
    oracle.Precisions,
    accumulator=st.sampled_from(("float64", "float32", "float16", "bfloat16")),
    feature=st.sampled_from((None, "bfloat16")),
    state=st.sampled_from((None, "float16", "bfloat16")),
    normalizer=st.sampled_from((None, "bfloat16")),
    truncates=st.booleans(),
)


@given(
    seed=st.integers(0, 2**16),
    quotient=quotients(),
    precisions=PRECISIONS,
    length=st.integers(1, 90),
    key_dim=st.integers(1, 130),
    confidence=st.sampled_from((None, 3.0)),
)
def test_a_bound_is_never_negative(
    seed, quotient, precisions, length, key_dim, confidence
):
    rng = np.random.default_rng(seed)
    of = differentiand(*positive(rng, length, key_dim=key_dim), error=1e-3)
    for found in bounds(of, precisions, quotient, confidence=confidence):
        assert (found.bound >= 0).all()  # and no NaN


def test_where_rounding_can_be_as_large_as_the_sum_nothing_is_proved():
    of = differentiand(*positive(np.random.default_rng(0), 300))
    query, key, value = bounds(of, oracle.Precisions("bfloat16"))
    assert np.isinf(query.bound[200:]).all()
    assert np.isinf(key.bound).all()  # every key is seen by the last query
    assert np.isinf(value.bound).all()
    for found in bounds(of):
        assert np.isfinite(found.bound).all()


def test_where_a_divisor_can_be_zero_nothing_is_proved():
    one = np.ones((2, 1))
    of = differentiand(one, np.asarray([[1.0], [-1 + 2.0**-23]]), one, one)
    query, key, value = bounds(of)
    assert np.isfinite(query.bound[0]).all()
    assert np.isinf(query.bound[1]).all()
    assert np.isinf(key.bound).all()
    assert np.isinf(value.bound).all()


@pytest.mark.parametrize(("eps", "proved"), [(2.0, False), (2.5, True), (1.5, True)])
def test_at_the_edge_of_a_clamp_nothing_is_proved(eps, proved):
    # There the divisor is a constant on one side, and not on the other.
    one = np.ones((1, 1))
    of = differentiand(one, 2 * one, one, one)
    quotient = oracle.Quotient(eps=eps, eps_mode="clamp")
    for found in bounds(of, quotient=quotient)[:2]:
        assert np.isfinite(found.bound).all() == proved


def test_truncation_doubles_the_unit_and_rules_out_the_probabilistic_tier():
    of = differentiand(*positive(np.random.default_rng(0), 100))
    truncates = replace(FLOAT32, truncates=True)
    for plain, doubled, random in zip(
        bounds(of),
        bounds(of, truncates),
        bounds(of, truncates, confidence=3.0),
        strict=True,
    ):
        assert (doubled.bound > 1.9 * plain.bound).all()
        assert np.array_equal(random.bound, doubled.bound)
