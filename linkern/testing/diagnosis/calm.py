"""Calm problems: numbers of size 1, which nothing overflows or hides."""

from functools import lru_cache

import numpy as np

from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem, with_cotangent
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes, nearest_shape

__all__ = ["SIZES", "calm_call", "calm_problem"]

# Batch, heads, length, key and value dimension: no two axes are of one size.
SIZES = (2, 3, 47, 4, 5)


def calm_problem(
    scope: Scope, sizes: Sizes, rng: np.random.Generator | None = None
) -> Problem:
    """Return calm inputs of about these sizes.

    Parameters
    ----------
    scope : Scope
        What a target claims and declares.
    sizes : tuple of int
        Batch, heads, length, key and value dimension.
    rng : Generator, optional
        Where numbers are drawn from; the same ones each time by default.
    """
    kind = "normal" if scope.operator.feature_map else "mild"
    rng = np.random.default_rng(0) if rng is None else rng
    return real_problem(scope, nearest_shape(scope, sizes), kind, "normal", rng)


@lru_cache(maxsize=32)
def calm_call(scope: Scope, sizes: Sizes = SIZES) -> Problem:
    """Return the same with a cotangent, made once for all who ask."""
    rng = np.random.default_rng(0)
    return with_cotangent(calm_problem(scope, sizes, rng), rng)
