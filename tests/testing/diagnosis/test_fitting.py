"""Exponents of products are those that leave no more than rounding."""

import numpy as np

from linkern.testing.diagnosis.factors.fitting import exponents


def test_exponents_of_two_quantities_are_measured() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 40))
    table = 1e6 * np.stack([a, b, 2 * a - b])
    assert {"a": 2.0, "b": -1.0} in [*exponents(table, ("a", "b"), 2)]


def test_a_ratio_that_is_exactly_1_needs_no_quantity() -> None:
    table = np.stack([np.arange(40.0), np.zeros(40)])
    assert next(exponents(table, ("a",), 2)) == {}
    assert not any(x.get("a") for x in exponents(table, ("a",), 2))
