"""Inputs with chosen features, under gates that let a token write and nothing else."""

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import FeatureMap
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.gates import as_declared
from linkern.testing.problems.problem import Problem
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["with_features"]

Real = NDArray[np.float64]
# Gates of tokens that write; all others are 0, under which nothing is erased.
ONES = {
    *("beta", "bonus", "dt", "level_scales", "trapezoid", "write_gate"),
    *("value_mix", "output_mix"),
}


def with_features(scope: Scope, shape: Shape, **arrays: Real) -> Problem:
    """Return the problem of some features of queries and keys, and of some values."""
    inputs = {}
    for one in scope.operator.inputs:
        x = arrays.get(one.name)
        if x is None:
            x = np.full(shape.of(one.axes), float(one.name in ONES))
            x = as_declared(scope, x, one.name)
        elif scope.operator.feature_map and one.name != "value":
            x = _inputs(scope.query_map if one.name == "query" else scope.key_map, x)
        inputs[one.name] = x.astype(numpy_dtype(scope.dtype))
    return Problem(scope, "chosen features", inputs)


def _inputs(feature_map: FeatureMap, features: Real) -> Real:
    """Return inputs with these features: exactly the integers, closely the others."""
    close = feature_map.preimage(features)
    if feature_map.from_integers is None:
        return close
    exact = feature_map.from_integers(features)
    return np.where(features == np.round(features), exact, close)
