"""Elementwise feature maps and their derivatives, evaluated in place on a block.

Other feature maps may depend on a whole sequence; they are evaluated before it is cut
into blocks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from linkern import feature_maps
from linkern.kernels.numpy.types import Real

__all__ = ["InPlace", "acts_on_entries", "in_place"]


class InPlace(NamedTuple):
    """A feature map that is evaluated in place.

    Parameters
    ----------
    write : callable
        ``write(x, out, scratch, zeros)`` writes the features of `x` to `out`. `x` may
        be `scratch`; `zeros` broadcasts to both, since minima and maxima with an array
        are three times as fast as with a number.
    derivative : callable
        ``derivative(features, out)`` writes the derivative, a function of the features.
    """

    write: Callable[[Real, Real, Real, Real], object]
    derivative: Callable[[Real, Real], object]


def _elu_plus_one(x: Real, out: Real, scratch: Real, zeros: Real) -> None:
    # Both branches keep full relative accuracy; exp(x) >= x + 1 exactly where x <= 0.
    np.minimum(x, zeros, out=out)
    np.exp(out, out=out)
    np.add(x, 1, out=scratch)
    np.maximum(out, scratch, out=out)


def _relu(x: Real, out: Real, _scratch: Real, zeros: Real) -> None:
    np.maximum(x, zeros, out=out)


def _exp(x: Real, out: Real, _scratch: Real, _zeros: Real) -> None:
    np.exp(x, out=out)


# Derivatives are functions of the features, so the backward pass does not need x.
_IN_PLACE: dict[Any, InPlace | None] = {
    feature_maps.identity: None,
    feature_maps.elu_plus_one: InPlace(
        _elu_plus_one, lambda y, out: np.minimum(y, np.ones((), y.dtype), out=out)
    ),
    feature_maps.relu: InPlace(_relu, lambda y, out: np.sign(y, out=out)),
    feature_maps.exp: InPlace(_exp, lambda y, out: np.copyto(out, y)),
}


def acts_on_entries(feature_map: Any) -> bool:
    """Return True if `in_place` knows the feature map."""
    # By identity: a callable need not be hashable.
    return any(feature_map is known for known in _IN_PLACE)


def in_place(feature_map: Any) -> InPlace | None:
    """Return the in-place version of a feature map; None for the identity."""
    return next((entry for known, entry in _IN_PLACE.items() if known is feature_map))
