r"""Feature maps of products of entries, whose similarities are exact polynomials."""

from functools import partial

from linkern import validate
from linkern.array import astype, concat, ones, reshape
from linkern.feature_maps._checks import number, rows
from linkern.typing import Array, FeatureMapFunction

__all__ = ["polynomial", "taylor"]


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


def _products(x: Array, y: Array) -> Array:
    """Return all products of an entry of `x` and one of `y`, as one axis."""
    pairs = x[..., None] * y[..., None, :]
    return reshape(pairs, (*x.shape[:-1], x.shape[-1] * y.shape[-1]))
