"""Feature maps as the judge knows them: float64 values and the error a kernel may make.

Independent of `linkern.feature_maps`, and richer: besides its values, each map states
how far a correct evaluation may be from them, whether it commutes with powers of two,
and which inputs it sends to chosen features, so that checks can place features at will.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEATURE_MAPS", "FeatureMap"]

Real = NDArray[np.float64]

# Far enough below zero that exp is exactly 0 in every binary format up to float64.
VANISHING = -1000.0


@dataclass(frozen=True)
class FeatureMap:
    """One feature map, seen from outside.

    Parameters
    ----------
    name : str
        What a contract calls it.
    value : callable
        Float64 values, ``(..., K)`` to ``(..., K)``.
    error : callable
        ``error(x, u)``: the largest absolute error of a correct evaluation of the map
        in arithmetic with unit roundoff ``u``.
    preimage : callable
        Inputs whose features are close to the given positive numbers.
    largest_integer : int
        Every integer from 0 to this one is the feature of some input, exactly and in
        any arithmetic that holds it; 0 if there is no such input.
    from_integers : callable or None
        Those inputs.
    homogeneous : bool
        Whether ``phi(2^n x) = 2^n phi(x)`` bitwise.
    signed : bool
        Whether features can be negative.
    """

    name: str
    value: Callable[[Real], Real]
    error: Callable[[Real, float], Real]
    preimage: Callable[[Real], Real]
    largest_integer: int
    from_integers: Callable[[NDArray[Any]], Real] | None
    homogeneous: bool = False
    signed: bool = False


def _no_error(x: Real, u: float) -> Real:
    del u
    return np.zeros_like(x)


def _elu_plus_one(x: Real) -> Real:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def _elu_plus_one_error(x: Real, u: float) -> Real:
    # 4u relative covers exp of any serious library and the sum x + 1; the absolute 1.5u
    # is what the textbook evaluation elu(x) + 1 loses by adding 1 to expm1(x).
    return u * (4 * _elu_plus_one(x) + np.where(x < 0, 1.5, 0.0))


def _elu_plus_one_preimage(features: Real) -> Real:
    return np.where(features > 1, features - 1, np.log(np.maximum(features, 1e-300)))


def _elu_plus_one_from_integers(features: NDArray[Any]) -> Real:
    return np.where(features > 0, features - 1.0, VANISHING)


def _exp_error(x: Real, u: float) -> Real:
    return u * 8 * np.exp(x)


def _exp_from_integers(features: NDArray[Any]) -> Real:
    return np.where(features > 0, 0.0, VANISHING)


def _softmax(x: Real) -> Real:
    weights = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _softmax_error(x: Real, u: float) -> Real:
    # exp and quotient 16u, the sum of K terms (K + 1)u, and the rounding of x - max(x),
    # which exp turns into a relative error.
    spread = np.max(np.abs(x), axis=-1, keepdims=True, initial=0.0)
    return np.asarray(u * (17 + x.shape[-1] + 4 * spread) * _softmax(x))


def _log(features: Real) -> Real:
    return np.log(np.maximum(features, 1e-300))


def _relu(x: Real) -> Real:
    return np.maximum(x, 0.0)


def _identity(x: Real) -> Real:
    return x


def _as_float(features: NDArray[Any]) -> Real:
    return features.astype(np.float64)


FEATURE_MAPS: dict[str, FeatureMap] = {
    feature_map.name: feature_map
    for feature_map in (
        FeatureMap(
            "elu_plus_one",
            _elu_plus_one,
            _elu_plus_one_error,
            _elu_plus_one_preimage,
            2**52,
            _elu_plus_one_from_integers,
        ),
        FeatureMap(
            "relu",
            _relu,
            _no_error,
            _identity,
            2**52,
            _as_float,
            homogeneous=True,
        ),
        FeatureMap("exp", np.exp, _exp_error, _log, 1, _exp_from_integers),
        FeatureMap(
            "identity",
            _identity,
            _no_error,
            _identity,
            2**52,
            _as_float,
            homogeneous=True,
            signed=True,
        ),
        FeatureMap("softmax", _softmax, _softmax_error, _log, 0, None),
    )
}
