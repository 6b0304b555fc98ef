"""Sums and gradients of features, as the tests of the oracle ask for them."""

from dataclasses import dataclass

import numpy as np

from linkern import oracle


@dataclass(frozen=True)
class Differentiand:
    """Features with their admitted errors, values and a cotangent of the output."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    cotangent: np.ndarray
    query_error: np.ndarray
    key_error: np.ndarray
    causal: bool


def bounded_gradients(of, quotient, precisions, **options):
    """Return the gradients of the features and values with their bounds."""
    return oracle.feature_gradients(
        oracle.Bounded(of.query, of.query_error),
        oracle.Bounded(of.key, of.key_error),
        of.value,
        of.cotangent,
        quotient,
        precisions,
        causal=of.causal,
        **options,
    )


def evaluate_integers(query, key, value, *, causal):
    """Return the sums of integer features and values."""
    return oracle.evaluate(
        *(np.asarray(x, np.float64) for x in (query, key, value)), causal=causal
    )


def largest_sum(evaluation):
    """Return the largest absolute partial sum that any order of summation can meet."""
    gauges = (
        evaluation.numerator_gauge,
        evaluation.denominator_gauge,
        evaluation.memory_gauge,
    )
    return max(int(x.max(initial=0)) for x in gauges)
