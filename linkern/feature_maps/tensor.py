r"""Feature maps of products of entries, whose similarities are exact polynomials."""

from functools import cache, partial
from itertools import combinations_with_replacement
from math import comb, factorial, prod

import numpy as np

from linkern import validate
from linkern.array import astype, concat, from_numpy, ones, reshape
from linkern.feature_maps._checks import number, rows
from linkern.typing import Array, FeatureMapFunction

__all__ = ["polynomial", "symmetric_power", "taylor"]


def polynomial(degree: int = 2, offset: float = 0.0) -> FeatureMapFunction:
    r"""Make the features of the polynomial kernel: all products of `degree` entries.

    Parameters
    ----------
    degree : int
        Entries in a product; positive. There are ``K^degree`` features, so
        it is a small number.
    offset : float
        Constant of the kernel, zero or positive. If positive, its square root is one
        more entry of every vector, and there are ``(K + 1)^degree`` features.

    Returns
    -------
    callable
        A feature map, ``(..., K)`` to ``(..., F)``.

    Raises
    ------
    TypeError, ValueError
        If `degree` is not a positive integer or `offset` is negative.

    Notes
    -----
    .. math:: \phi(x) . \phi(y) = (x . y + offset)^{degree}

    exactly, but for rounding. Features are negative where entries are; similarities are
    not if `degree` is even. Source: Katharopoulos et al. 2020, "Transformers are RNNs",
    section 3.2; `degree` 2 without `offset` is Aksenov et al. 2024, "Linear
    Transformers with Learnable Kernel Functions Are Better In-Context Models".

    Examples
    --------
    >>> import numpy as np
    >>> phi, x, y = polynomial(degree=3, offset=1.0), np.ones(2), np.ones(2)
    >>> float(phi(x) @ phi(y)), phi(x).shape
    (27.0, (27,))
    """
    offset = number("offset", offset, zero=True)
    return partial(
        _polynomial, degree=validate.positive_integer("degree", degree), offset=offset
    )


def symmetric_power(degree: int = 2) -> FeatureMapFunction:
    r"""Make the features of ``(x . y)^degree``, each product of entries once.

    Parameters
    ----------
    degree : int
        Entries in a product; positive. There are ``binom(K + degree - 1, degree)``
        features: for two entries ``K (K + 1) / 2``, half of those of `polynomial`.

    Returns
    -------
    callable
        A feature map, ``(..., K)`` to ``(..., F)``.

    Raises
    ------
    TypeError, ValueError
        If `degree` is not a positive integer.

    Notes
    -----
    .. math::

        \phi(x) . \phi(y) = (x . y)^{degree}, \qquad \phi_{i_1 \le i_2 \le \dots}(x) =
        \sqrt{\text{orders of } i_1, i_2, \dots} \; x_{i_1} x_{i_2} \cdots

    in lexicographic order of the indices. Source: Buckman et al. 2025, "Scaling Context
    Requires Rethinking Attention" (power attention).

    Examples
    --------
    >>> import numpy as np
    >>> phi, x, y = symmetric_power(degree=3), np.ones(2), np.ones(2)
    >>> round(float(phi(x) @ phi(y)), 12), phi(x).shape
    (8.0, (4,))
    """
    return partial(_symmetric, degree=validate.positive_integer("degree", degree))


def taylor(x: Array, /) -> Array:
    r"""Features of the second-order Taylor polynomial of the exponential.

    Parameters
    ----------
    x : array (..., K)
        Queries or keys, of any real floating dtype. For scores with a scale, multiply
        both by its square root.

    Returns
    -------
    array (..., F)
        ``F = 1 + K + K^2`` features: 1, the entries, their products over ``sqrt(2)``.

    Notes
    -----
    .. math:: \phi(x) . \phi(y) = 1 + x . y + (x . y)^2 / 2

    exactly, but for rounding: at least 1/2, though features can be negative. Source:
    Arora et al. 2024, "Simple Linear Attention Language Models Balance the
    Recall-Throughput Tradeoff".

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.asarray([1.0, 1.0]), np.asarray([2.0, 0.0])
    >>> round(float(taylor(x) @ taylor(y)), 12)
    5.0
    """
    wide = rows(x)
    one = ones((*wide.shape[:-1], 1), like=wide)
    features = concat([one, wide, _products(wide, wide) * 0.5**0.5], axis=-1)
    return astype(features, x.dtype)


def _polynomial(x: Array, /, *, degree: int, offset: float) -> Array:
    wide = rows(x)
    if offset:
        root = ones((*wide.shape[:-1], 1), like=wide) * offset**0.5
        wide = concat([wide, root], axis=-1)
    features = wide
    for _ in range(degree - 1):
        features = _products(features, wide)
    return astype(features, x.dtype)


def _symmetric(x: Array, /, *, degree: int) -> Array:
    wide = rows(x)
    size = wide.shape[-1]
    features = wide
    for lower in range(1, degree):
        # Products of `lower` entries, the first of which is entry i or a later one, are
        # the last of them.
        count = features.shape[-1]
        later = [count - comb(size - i + lower - 1, lower) for i in range(size)]
        parts = [wide[..., i : i + 1] * features[..., j:] for i, j in enumerate(later)]
        features = concat(parts, axis=-1) if parts else features
    weights = from_numpy(np.sqrt(_orders(size, degree)), like=wide)
    return astype(features * weights, x.dtype)


@cache
def _orders(size: int, degree: int) -> np.ndarray:
    """Return in how many orders each product of entries comes up."""
    counts = [
        factorial(degree) // prod(factorial(entries.count(i)) for i in {*entries})
        for entries in combinations_with_replacement(range(size), degree)
    ]
    return np.asarray(counts, dtype=np.float64)


def _products(x: Array, y: Array) -> Array:
    """Return all products of an entry of `x` and one of `y`, as one axis."""
    pairs = x[..., None] * y[..., None, :]
    return reshape(pairs, (*x.shape[:-1], x.shape[-1] * y.shape[-1]))
