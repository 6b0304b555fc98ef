"""Feature maps: functions from queries or keys to features.

A feature map takes ``(..., T, K)`` to ``(..., T, F)``, and defines the
similarity ``phi(q) . phi(k)``. Any callable with that contract can be passed to an
operator.

Examples
--------
>>> import numpy as np, linkern
>>> from linkern.feature_maps import polynomial
>>> x, y = np.asarray([1.0, 2.0]), np.asarray([3.0, -1.0])
>>> squared = polynomial(degree=2)
>>> float(squared(x) @ squared(y)), float(x @ y) ** 2
(1.0, 1.0)
>>> zeros = np.zeros((2, 2))
>>> value = np.asarray([[3.0], [6.0]])
>>> linkern.linear_attention(
...     zeros, zeros, value, feature_map=polynomial(degree=2, offset=1.0)
... ).output[:, 0]
array([3. , 4.5])
"""

from linkern.feature_maps.mirrored import dpfp, hedgehog
from linkern.feature_maps.pointwise import (
    elu_plus_one,
    exp,
    identity,
    relu,
    squared_relu,
)
from linkern.feature_maps.positions import cosine_reweighting
from linkern.feature_maps.random_features import (
    PositiveRandomFeatures,
    RandomFourierFeatures,
    positive_random,
    random_fourier,
)
from linkern.feature_maps.tensor import polynomial, symmetric_power, taylor

__all__ = [
    "PositiveRandomFeatures",
    "RandomFourierFeatures",
    "cosine_reweighting",
    "dpfp",
    "elu_plus_one",
    "exp",
    "hedgehog",
    "identity",
    "polynomial",
    "positive_random",
    "random_fourier",
    "relu",
    "squared_relu",
    "symmetric_power",
    "taylor",
]
