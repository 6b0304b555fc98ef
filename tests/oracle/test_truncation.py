"""Accumulators that truncate, as those of tensor cores do, stay within their bound."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from linkern import oracle

FLOAT32 = oracle.Precisions("float32")
DECLARED = oracle.Precisions("float32", truncates=True)


def truncated(x):
    """Round float64 to float32 as tensor cores do: towards zero."""
    nearest = np.float32(x)
    return nearest if abs(nearest) <= abs(x) else np.nextafter(nearest, np.float32(0))


def test_a_truncating_accumulator_needs_its_declaration_and_no_more():
    # Each term is just too small to change a sum that has become one.
    value = np.full((1000, 1), 2.0**-23 * (1 - 2.0**-20), np.float32)
    value[0] = 1
    total = np.float32(0)
    for x in value[:, 0]:
        total = truncated(np.float64(total) + np.float64(x))
    ones = np.ones((1000, 1))
    exact = oracle.evaluate(ones[:1], ones, value.astype(np.float64), causal=False)
    nearest, truncates = (
        oracle.bounded_output(
            exact, oracle.Quotient(normalize=False), DECLARED if declared else FLOAT32
        )
        for declared in (False, True)
    )
    error = abs(np.float64(total) - nearest.output)
    assert nearest.bound < error <= truncates.bound
    assert truncates.bound < 2.01 * nearest.bound


@given(seed=st.integers(0, 2**16), length=st.integers(1, 60))
def test_truncation_stays_within_its_bound(seed, length):
    rng = np.random.default_rng(seed)
    query, key = (rng.uniform(0.1, 1, (n, 1)).astype(np.float32) for n in (1, length))
    value = rng.normal(size=(length, 1)).astype(np.float32)
    sums = np.zeros(2, np.float32)
    for b, v in zip(key[:, 0], value[:, 0], strict=True):
        weight = truncated(np.float64(query[0, 0]) * np.float64(b))
        terms = truncated(np.float64(weight) * np.float64(v)), weight
        sums = [
            truncated(np.float64(x) + np.float64(t))
            for x, t in zip(sums, terms, strict=True)
        ]
    wide = (x.astype(np.float64) for x in (query, key, value))
    judged = oracle.bounded_output(
        oracle.evaluate(*wide, causal=False),
        oracle.Quotient(),
        DECLARED,
        confidence=3.0,  # no help: errors of one sign do not cancel
    )
    got = truncated(np.float64(sums[0]) / np.float64(sums[1]))
    assert abs(got - judged.output[0, 0]) <= judged.bound[0, 0]
