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
    pullback : callable
        ``pullback(x, c)``: the gradient with respect to ``x``, if ``c`` is that with
        respect to the features; monotonic in ``abs``, as is `pullback_gauge`.
    pullback_gauge : callable
        The same over absolute values.
    pullback_error : callable
        ``pullback_error(x, u)``: the relative error that a correct evaluation of the
        derivative may have; infinite where there is none.
    tangent : callable or None
        ``tangent(x)``: the direction in which all features grow in proportion to
        themselves.
    largest_exponent : int
        Largest ``n`` for which some input has the feature ``2^n`` to full accuracy.
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
    pullback: Callable[[Real, Real], Real]
    pullback_gauge: Callable[[Real, Real], Real]
    pullback_error: Callable[[Real, float], Real]
    tangent: Callable[[Real], Real] | None = None
    largest_exponent: int = 1023
    homogeneous: bool = False
    signed: bool = False


def _no_error(x: Real, u: float) -> Real:
    del u
    return np.zeros_like(x)


def _elu_plus_one(x: Real) -> Real:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def _elu_plus_one_error(x: Real, u: float) -> Real:
    # 4u relative covers exp of any serious library and the sum x + 1; kernels that work
    # with the logarithms of features lose those in units besides. The absolute 1.5u is
    # what the textbook evaluation elu(x) + 1 loses by adding 1 to expm1(x).
    logarithm = np.where(x > 0, np.log1p(np.maximum(x, 0)), np.minimum(-x, -VANISHING))
    relative = 4 + 2 * np.abs(logarithm)
    return u * (relative * _elu_plus_one(x) + np.where(x < 0, 1.5, 0.0))


def _elu_plus_one_preimage(features: Real) -> Real:
    return np.where(features > 1, features - 1, np.log(np.maximum(features, 1e-300)))


def _elu_derivative(x: Real, c: Real) -> Real:
    return np.where(x > 0, 1.0, np.exp(np.minimum(x, 0))) * c


def _elu_derivative_error(x: Real, u: float) -> Real:
    # Automatic differentiation of the textbook form takes elu(x) + 1 for its own
    # derivative below zero, absolute error and all.
    relative = 4 + np.where(x < 0, 1.5 * np.exp(-np.maximum(x, -700.0)), 0.0)
    # Where exp vanishes in every format there is nothing to be wrong about.
    return np.where(x > VANISHING, u * relative, 0.0)


def _elu_tangent(x: Real) -> Real:
    return np.where(x > 0, x + 1, 1.0)


def _elu_plus_one_from_integers(features: NDArray[Any]) -> Real:
    return np.where(features > 0, features - 1.0, VANISHING)


def _exp_error(x: Real, u: float) -> Real:
    return u * 8 * np.exp(x)


def _exp_from_integers(features: NDArray[Any]) -> Real:
    return np.where(features > 0, 0.0, VANISHING)


def _exp_derivative(x: Real, c: Real) -> Real:
    return np.exp(x) * c


def _exp_derivative_error(x: Real, u: float) -> Real:
    return np.full_like(x, 8 * u)


def _softmax(x: Real) -> Real:
    weights = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _softmax_error(x: Real, u: float) -> Real:
    # exp and quotient 16u, the sum of K terms (K + 1)u, and the rounding of x - max(x),
    # which exp turns into a relative error.
    spread = np.max(np.abs(x), axis=-1, keepdims=True, initial=0.0)
    return np.asarray(u * (17 + x.shape[-1] + 4 * spread) * _softmax(x))


def _softmax_pullback(x: Real, c: Real) -> Real:
    weights = _softmax(x)
    return np.asarray(weights * (c - (weights * c).sum(axis=-1, keepdims=True)))


def _softmax_pullback_gauge(x: Real, c: Real) -> Real:
    weights = _softmax(x)
    return np.asarray(weights * (c + (weights * c).sum(axis=-1, keepdims=True)))


def _softmax_pullback_error(x: Real, u: float) -> Real:
    spread = np.max(np.abs(x), axis=-1, keepdims=True, initial=0.0)
    return np.asarray(u * (2 * (17 + x.shape[-1] + 4 * spread) + np.ones_like(x)))


def _log(features: Real) -> Real:
    return np.log(np.maximum(features, 1e-300))


def _relu(x: Real) -> Real:
    return np.maximum(x, 0.0)


def _relu_derivative(x: Real, c: Real) -> Real:
    return np.where(x > 0, c, 0.0)


def _relu_derivative_error(x: Real, u: float) -> Real:
    # At zero there is a slope on either side, and none that is right.
    return np.where(x == 0, np.inf, np.zeros_like(x) * u)


def _relu_from_integers(features: NDArray[Any]) -> Real:
    return np.where(features > 0, features, -1.0)


def _identity(x: Real) -> Real:
    return x


def _unchanged(x: Real, c: Real) -> Real:
    del x
    return c


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
            _elu_derivative,
            _elu_derivative,
            _elu_derivative_error,
            _elu_tangent,
        ),
        FeatureMap(
            "relu",
            _relu,
            _no_error,
            _identity,
            2**52,
            _relu_from_integers,
            _relu_derivative,
            _relu_derivative,
            _relu_derivative_error,
            _relu,
            homogeneous=True,
        ),
        FeatureMap(
            "exp",
            np.exp,
            _exp_error,
            _log,
            1,
            _exp_from_integers,
            _exp_derivative,
            _exp_derivative,
            _exp_derivative_error,
            np.ones_like,
            largest_exponent=4,
        ),
        FeatureMap(
            "identity",
            _identity,
            _no_error,
            _identity,
            2**52,
            _as_float,
            _unchanged,
            _unchanged,
            _no_error,
            _identity,
            homogeneous=True,
            signed=True,
        ),
        FeatureMap(
            "softmax",
            _softmax,
            _softmax_error,
            _log,
            0,
            None,
            _softmax_pullback,
            _softmax_pullback_gauge,
            _softmax_pullback_error,
            largest_exponent=0,
        ),
    )
}
