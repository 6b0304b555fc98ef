"""Feature maps in place, block by block, and what their derivatives multiply by.

Only maps that act on each entry are here: others may look at a whole sequence, and are
evaluated before a block is cut.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linkern import feature_maps

__all__ = ["InPlace", "acts_on_entries", "in_place"]

Real = NDArray[Any]


class InPlace(NamedTuple):
    """A feature map over blocks.

    Parameters
    ----------
    write : callable
        ``write(x, out, spare, zeros)`` writes the features of `x` to `out`. `x` may be
        `spare`; `zeros` broadcasts to both, for minima and maxima with an array are
        three times as fast as with a number.
    slope : callable
        ``slope(features, out)`` writes the derivative, as a function of the features.
    """

    write: Callable[[Real, Real, Real, Real], object]
    slope: Callable[[Real, Real], object]


def _elu_plus_one(x: Real, out: Real, spare: Real, zeros: Real) -> None:
    # Both branches keep full relative accuracy; exp(x) >= x + 1 exactly where x <= 0.
    np.minimum(x, zeros, out=out)
    np.exp(out, out=out)
    np.add(x, np.ones((), spare.dtype), out=spare)
    np.maximum(out, spare, out=out)


def _relu(x: Real, out: Real, _spare: Real, zeros: Real) -> None:
    np.maximum(x, zeros, out=out)


def _exp(x: Real, out: Real, _spare: Real, _zeros: Real) -> None:
    np.exp(x, out=out)


# Each derivative is a function of the feature itself: x is not needed on the way back.
_IN_PLACE: dict[Any, InPlace | None] = {
    feature_maps.identity: None,
    feature_maps.elu_plus_one: InPlace(
        _elu_plus_one, lambda y, out: np.minimum(y, np.ones((), y.dtype), out=out)
    ),
    feature_maps.relu: InPlace(_relu, lambda y, out: np.sign(y, out=out)),
    feature_maps.exp: InPlace(_exp, lambda y, out: np.copyto(out, y)),
}


def acts_on_entries(feature_map: Any) -> bool:
    """Whether a feature map is one that `in_place` knows."""
    # By identity: a callable need not be hashable.
    return any(feature_map is known for known in _IN_PLACE)


def in_place(feature_map: Any) -> InPlace | None:
    """Return a feature map over blocks; None for features that are there already."""
    return next((found for known, found in _IN_PLACE.items() if known is feature_map))
