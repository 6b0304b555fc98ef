r"""Similarities: the weight of each pair of a query and a key.

A similarity takes queries ``(..., T, K)`` and keys ``(..., S, K)`` to ``(..., T, S)``.
Those of this module are kernels: ``similarity(x, x)`` is symmetric and positive
semidefinite, so each is ``phi(q) . phi(k)`` for some feature map, possibly of
infinitely many features.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from linkern import validate
from linkern.array import astype, mT, namespace
from linkern.feature_maps._checks import number
from linkern.typing import Array, FeatureMapFunction

__all__ = [
    "Similarity",
    "exponential",
    "of_features",
    "polynomial",
    "rbf",
    "taylor",
]

Similarity: TypeAlias = Callable[[Any, Any], Any]


def exponential(scale: float | None = None) -> Similarity:
    r"""Make the similarity of softmax attention.

    Parameters
    ----------
    scale : float, optional
        Positive factor on the scores, dimensionless. Default ``K^-0.5``.

    Returns
    -------
    callable
        ``similarity(query, key)``: ``(..., T, K)`` and ``(..., S, K)`` to
        ``(..., T, S)``, in the dtype of `query`.

    Raises
    ------
    TypeError, ValueError
        If `scale` is not a positive number.

    Notes
    -----
    .. math:: s(q, k) = \exp(scale \; q . k)

    Nothing is subtracted from the scores, as no quotient is here to cancel it: scores
    above 88 overflow in float32. Source: Tsai et al. 2019, "Transformer Dissection: A
    Unified Understanding of Transformer's Attention via the Lens of Kernel";
    Katharopoulos et al. 2020, "Transformers are RNNs", equation 3.

    Examples
    --------
    >>> import numpy as np
    >>> exponential()(np.zeros((1, 4)), np.ones((2, 4)))
    array([[1., 1.]])
    """
    return partial(_exponential, scale=_factor(scale))


def rbf(bandwidth: float = 1.0) -> Similarity:
    r"""Make the Gaussian similarity, a function of the distance alone.

    Parameters
    ----------
    bandwidth : float
        Distance at which the similarity is ``exp(-1/2)``, in the units of the
        queries; positive.

    Returns
    -------
    callable
        ``similarity(query, key)``, as that of `exponential`.

    Raises
    ------
    TypeError, ValueError
        If `bandwidth` is not a positive number.

    Notes
    -----
    .. math:: s(q, k) = \exp\left(-|q - k|^2 / (2 \; bandwidth^2)\right)

    Distances are sums of squared differences, entry by entry: it takes memory
    ``(..., T, S, K)``, where ``|q|^2 - 2 q . k + |k|^2`` would cancel for neighbours.
    With `bandwidth` ``K^0.25`` it is `exponential` between vectors of one norm, but for
    a factor. Source: Tsai et al. 2019, "Transformer Dissection: A Unified Understanding
    of Transformer's Attention via the Lens of Kernel".

    Examples
    --------
    >>> import numpy as np
    >>> rbf()(np.ones((1, 2)), np.ones((1, 2)) * 1e8)
    array([[0.]])
    >>> rbf()(np.full((1, 2), 1e8), np.full((1, 2), 1e8))
    array([[1.]])
    """
    return partial(_rbf, bandwidth=number("bandwidth", bandwidth))


def polynomial(degree: int = 2, offset: float = 1.0) -> Similarity:
    r"""Make the polynomial similarity.

    Parameters
    ----------
    degree : int
        Exponent, positive. An odd one can make similarities negative.
    offset : float
        Added to the score; zero or positive, or it would not be a kernel.

    Returns
    -------
    callable
        ``similarity(query, key)``, as that of `exponential`.

    Raises
    ------
    TypeError, ValueError
        If `degree` is not a positive integer or `offset` is negative.

    See Also
    --------
    linkern.feature_maps.polynomial : its features, exactly.

    Notes
    -----
    .. math:: s(q, k) = (q . k + offset)^{degree}

    Source: Tsai et al. 2019, "Transformer Dissection: A Unified Understanding of
    Transformer's Attention via the Lens of Kernel"; Katharopoulos et al.
    2020, "Transformers are RNNs", section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> polynomial()(np.ones((1, 2)), np.asarray([[1.0, 1.0], [-1.0, 0.0]]))
    array([[9., 0.]])
    """
    offset = number("offset", offset, zero=True)
    return partial(
        _polynomial, degree=validate.positive_integer("degree", degree), offset=offset
    )


def taylor(scale: float | None = None) -> Similarity:
    r"""Make the second-order Taylor polynomial of `exponential`.

    Parameters
    ----------
    scale : float, optional
        Positive factor on the scores, dimensionless. Default ``K^-0.5``.

    Returns
    -------
    callable
        ``similarity(query, key)``, as that of `exponential`.

    Raises
    ------
    TypeError, ValueError
        If `scale` is not a positive number.

    See Also
    --------
    linkern.feature_maps.taylor : its features, exactly, of scaled inputs.

    Notes
    -----
    .. math:: s(q, k) = 1 + x + x^2 / 2, \qquad x = scale \; q . k

    It is at least 1/2. Source: Arora et al. 2024, "Simple Linear Attention Language
    Models Balance the Recall-Throughput Tradeoff".

    Examples
    --------
    >>> import numpy as np
    >>> taylor(scale=1.0)(np.ones((1, 1)), np.asarray([[0.0], [2.0], [-1.0]]))
    array([[1. , 5. , 0.5]])
    """
    return partial(_taylor, scale=_factor(scale))


def of_features(feature_map: Any) -> Similarity:
    r"""Make the similarity that linear attention with a feature map computes.

    Parameters
    ----------
    feature_map : callable
        ``(..., K)`` to ``(..., F)``. See `linkern.feature_maps`.

    Returns
    -------
    callable
        ``similarity(query, key)``, as that of `exponential`.

    Raises
    ------
    TypeError
        If `feature_map` is not callable.

    Notes
    -----
    .. math:: s(q, k) = \phi(q) . \phi(k)

    A kernel for any feature map: its Gram matrix is a matrix times its own transpose.
    Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3.2.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> of_features(linkern.elu_plus_one)(np.zeros((1, 2)), np.ones((1, 2)))
    array([[4.]])
    """
    validate.a_feature_map(feature_map)
    return partial(_of_features, feature_map=feature_map)


def _factor(scale: float | None) -> float | None:
    return None if scale is None else number("scale", scale)


def _pair(query: Array, key: Array) -> tuple[Array, Array]:
    """Check queries and keys against each other; return them in compute precision."""
    wide = validate.rows({"query": query, "key": key})
    validate.leading("query and key", query.shape[:-2], key.shape[:-2])
    return wide["query"], wide["key"]


def _scores(query: Array, key: Array, scale: float | None) -> Array:
    q, k = _pair(query, key)
    # Keys of dimension 0 have score 0 for any scale.
    factor = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    return (q @ mT(k)) * factor


def _exponential(query: Array, key: Array, *, scale: float | None) -> Array:
    scores = _scores(query, key, scale)
    return astype(namespace(scores).exp(scores), query.dtype)


def _rbf(query: Array, key: Array, *, bandwidth: float) -> Array:
    q, k = _pair(query, key)
    xp = namespace(q, k)
    # The difference of neighbours is exact, and scaled afterwards: scaled before, both
    # would be rounded.
    difference = (q[..., :, None, :] - k[..., None, :, :]) * (0.5**0.5 / bandwidth)
    return astype(xp.exp(-xp.sum(difference * difference, axis=-1)), query.dtype)


def _polynomial(query: Array, key: Array, *, degree: int, offset: float) -> Array:
    base = _scores(query, key, 1.0) + offset
    power = base
    for _ in range(degree - 1):
        power = power * base
    return astype(power, query.dtype)


def _taylor(query: Array, key: Array, *, scale: float | None) -> Array:
    # A square plus one half, so that rounding cannot make it less than one half.
    root = _scores(query, key, scale) + 1
    return astype((root * root + 1) * 0.5, query.dtype)


def _of_features(query: Array, key: Array, *, feature_map: FeatureMapFunction) -> Array:
    q, k = _pair(query, key)
    q = validate.features("query", q, feature_map)
    k = validate.features("key", k, feature_map)
    return astype(q @ mT(k), query.dtype)
