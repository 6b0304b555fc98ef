"""Errors of making and calling feature maps."""

import numpy as np
import pytest

from linkern.feature_maps import (
    cosine_reweighting,
    dpfp,
    elu_plus_one,
    exp,
    hedgehog,
    identity,
    polynomial,
    positive_random,
    random_fourier,
    relu,
    squared_relu,
    taylor,
)

MAPS = (elu_plus_one, exp, relu, squared_relu, identity, taylor, hedgehog, dpfp())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: polynomial(degree=0), ValueError, "`degree` must be a positive"),
        (lambda: polynomial(degree=2.0), TypeError, "`degree` must be an integer"),
        (lambda: polynomial(offset=-1.0), ValueError, "`offset` must be zero or pos"),
        (lambda: polynomial(offset="1"), TypeError, "`offset` must be a real number"),
        (lambda: dpfp(nu=0), ValueError, "`nu` must be a positive integer"),
        (lambda: dpfp(nu=4)(np.ones(2)), ValueError, "`nu` must be below twice"),
        (lambda: taylor(np.ones(())), ValueError, r"must have shape \(..., K\)"),
        (lambda: taylor([1.0]), TypeError, "`x` must be an array"),
        (lambda: taylor(np.ones(2, int)), TypeError, "`x` must have a real floating"),
        (lambda: hedgehog(np.ones((2, 0))), ValueError, "`x` must have an entry"),
        (
            lambda: hedgehog(np.ones(2), projection=np.ones((3, 2))),
            ValueError,
            r"`projection` must have shape \(..., 2, F\)",
        ),
        (
            lambda: hedgehog(np.ones(2), projection=np.ones((2, 2), np.float32)),
            TypeError,
            "`x` and `projection` must have the same dtype",
        ),
        (lambda: random_fourier(4, 7), ValueError, "`feature_count` must be even"),
        (lambda: random_fourier(0, 8), ValueError, "`key_dim` must be a positive"),
        (
            lambda: random_fourier(4, 8, bandwidth=0.0),
            ValueError,
            "`bandwidth` must be positive and finite",
        ),
        (
            lambda: random_fourier(4, 8, orthogonal=1),
            TypeError,
            "`orthogonal` must be True or False",
        ),
        (
            lambda: positive_random(4, 7, hyperbolic=True),
            ValueError,
            "`feature_count` must be even",
        ),
        (
            lambda: positive_random(4, 8, scale=-1.0),
            ValueError,
            "`scale` must be positive",
        ),
        (
            lambda: positive_random(4, 8)(np.ones((2, 3))),
            ValueError,
            "made for, 4, got 3",
        ),
        (lambda: cosine_reweighting(0), ValueError, "`length` must be a positive"),
        (lambda: cosine_reweighting(4, 4), ValueError, "`start` must be below `len"),
        (lambda: cosine_reweighting(4, -1), ValueError, "`start` must not be negative"),
        (
            lambda: cosine_reweighting(4, 2)(np.ones((3, 2))),
            ValueError,
            "`x` must not have more tokens",
        ),
        (
            lambda: cosine_reweighting(4)(np.ones(2)),
            ValueError,
            r"`x` must have shape \(..., T, K\)",
        ),
    ],
)
def test_mistakes_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize(
    "x", [[1.0], "x", None, 2.0, np.ma.ones((2, 2)), np.ones((2, 2)).view(np.matrix)]
)
def test_what_is_no_array_has_no_features(feature_map, x):
    sentence = "`x` must be an array of an array API library .*, got "
    with pytest.raises(TypeError, match=sentence + type(x).__name__):
        feature_map(x)
