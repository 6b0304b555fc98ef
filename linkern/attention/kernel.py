"""Kernel attention: weights are any non-negative similarity."""

from linkern import validate
from linkern.array import astype, namespace
from linkern.attention._partial import quotient
from linkern.attention._visible import visible_keys
from linkern.similarity import Similarity
from linkern.typing import Array

__all__ = ["kernel_attention"]


def kernel_attention(
    query: Array,
    key: Array,
    value: Array,
    similarity: Similarity,
    *,
    causal: bool = True,
    mask: Array | None = None,
) -> Array:
    r"""Attention whose weights are a non-negative similarity of query and key.

    Parameters
    ----------
    query : array (..., T, K)
        Queries; float16, bfloat16, float32 or float64.
    key : array (..., S, K)
        Keys; same library, device and dtype as `query`. ``S >= T`` if `causal`.
    value : array (..., S, V)
        Values; same library, device and dtype as `query`. Leading axes (batch, heads)
        of the three broadcast against each other.
    similarity : callable
        From ``query (..., T, K)`` and ``key (..., S, K)``, both in the accumulation
        dtype, to the weights ``(..., T, S)``, none of them negative.
    causal : bool
        True: the queries are the *last* ``T`` of the ``S`` tokens, and query t sees
        the keys ``0..S - T + t``. False: every query sees every key.
    mask : array of bool, broadcastable to (..., T, S), optional
        True where a query may see a key; it can only hide more than `causal` does.

    Returns
    -------
    array (..., T, V)
        In the dtype of `query`; sums are accumulated in float32 or wider.

    Raises
    ------
    TypeError
        If an input is not a real floating-point array, or the inputs mix libraries or
        dtypes, or `similarity` is no function between such arrays.
    ValueError
        If shapes or devices do not fit, or the similarity of a query and a key that it
        sees is negative. JAX does not know values while it traces: there, nothing is
        raised.

    See Also
    --------
    softmax_attention : the exponential of a scaled dot product as similarity.

    Notes
    -----
    .. math::

        o_i = \frac{\sum_j sim(q_i, k_j) v_j}{\sum_j sim(q_i, k_j)},

    with j over the keys that query i sees. The quotient is exact: no epsilon is added,
    so a query whose weights are all zero gives NaN. If ``sim(q, k) = phi(q)^T phi(k)``,
    this is `linkern.linear_attention` with the feature map ``phi``.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive
    Transformers with Linear Attention", equation 3.

    Examples
    --------
    >>> import numpy as np
    >>> from linkern.attention import kernel_attention
    >>> def squared(query, key):
    ...     return (query @ key.T) ** 2
    >>> query, key = np.ones((2, 1)), np.asarray([[1.0], [2.0]])
    >>> kernel_attention(query, key, np.asarray([[5.0], [10.0]]), squared)
    array([[5.],
           [9.]])
    """
    causal = validate.flag("causal", causal)
    q, k, v = validate.attended(query, key, value, causal=causal)
    validate.mask(mask, q, k, v)
    weights = validate.similarities(similarity, q, k)
    keys = slice(0, k.shape[-2])
    visible = visible_keys(mask, q, k, keys, causal=causal)
    xp = namespace(weights)
    if visible is not None:
        weights = xp.where(visible, weights, xp.zeros_like(weights))
    validate.not_negative(weights)
    total = xp.sum(weights, axis=-1, keepdims=True)
    return astype(quotient(weights @ v, total), query.dtype)
