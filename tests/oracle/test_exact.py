"""The oracle, against arithmetic that is simpler still: fractions, entry by entry."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern import oracle
from tests.oracle.feature_sums import evaluate_integers, largest_sum


@st.composite
def dyadic(draw, integer):
    """Features and values that are exact in float64 and as fractions."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    length, keys = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    key_dim, value_dim = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shapes = ((length, key_dim), (keys, key_dim), (keys, value_dim))
    scale = 1 if integer else 2.0**-10
    return [rng.integers(-50, 50, shape) * scale for shape in shapes]


def by_fractions(query, key, value, causal):
    """Numerator and denominator from the definition, exactly."""
    rows = []
    for i in range(len(query)):
        seen = min(i + 1, len(key)) if causal else len(key)
        weights = [
            sum(
                Fraction(a) * Fraction(b) for a, b in zip(query[i], key[j], strict=True)
            )
            for j in range(seen)
        ]
        columns = [
            sum(w * Fraction(value[j][c]) for j, w in enumerate(weights))
            for c in range(value.shape[1])
        ]
        rows.append((columns, sum(weights)))
    return rows


@pytest.mark.parametrize("causal", [True, False])
@given(data=st.data())
def test_sums_are_those_of_the_definition(causal, data):
    query, key, value = data.draw(dyadic(integer=False))
    if causal:
        length = min(len(query), len(key))
        query, key, value = query[:length], key[:length], value[:length]
    sums = oracle.evaluate(query, key, value, causal=causal).sums
    for i, (numerator, denominator) in enumerate(
        by_fractions(query, key, value, causal)
    ):
        assert [Fraction(x) for x in sums.numerator[i]] == numerator
        assert Fraction(sums.denominator[i, 0]) == denominator


@given(dyadic(integer=True))
def test_integers_are_exact_and_their_reach_bounds_every_partial_sum(arrays):
    query, key, value = arrays
    found = evaluate_integers(query, key, value, causal=False)
    for i, (numerator, denominator) in enumerate(
        by_fractions(*map(np.asarray, arrays), False)
    ):
        assert found.sums.numerator[i].tolist() == numerator
        assert found.sums.denominator[i].tolist() == [denominator]
    terms = abs(query @ key.T) @ abs(value)
    assert largest_sum(found) >= terms.max()
    assert largest_sum(found) >= abs(key.T @ value).max()


def test_the_gauge_is_the_operator_on_absolute_values():
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(6, d)) for d in (3, 3, 2))
    signed = oracle.evaluate(query, key, value, causal=True)
    absolute = oracle.evaluate(abs(query), abs(key), abs(value), causal=True)
    assert np.array_equal(signed.numerator_gauge, absolute.sums.numerator)
    assert np.array_equal(signed.denominator_gauge, absolute.sums.denominator)


def test_the_slack_is_what_feature_errors_can_do():
    rng = np.random.default_rng(1)
    query, key, value = (abs(rng.normal(size=(5, d))) for d in (3, 3, 2))
    exact = oracle.evaluate(
        query, key, value, causal=True, query_error=0.1 * query, key_error=0.1 * key
    )
    moved = oracle.evaluate(1.1 * query, 1.1 * key, value, causal=True)
    difference = moved.sums.numerator - exact.sums.numerator
    assert np.allclose(exact.numerator_slack, difference, rtol=1e-12)


def test_the_state_is_the_sum_over_all_keys():
    rng = np.random.default_rng(2)
    query, key, value = (rng.normal(size=(2, 5, d)) for d in (3, 3, 4))
    found = oracle.evaluate(query, key, value, causal=True)
    memory, normalizer = found.memory[..., :-1], found.memory[..., -1]
    assert np.allclose(memory, np.swapaxes(key, -1, -2) @ value, atol=1e-14)
    assert np.allclose(normalizer, key.sum(-2), atol=1e-14)
