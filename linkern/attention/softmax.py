"""Softmax attention: scaled dot products, all keys at once or block by block."""

from functools import reduce

from linkern import validate
from linkern.array import astype, broadcast_shapes, mT, zeros
from linkern.attention._partial import Partial, attend, combine, hidden
from linkern.attention._visible import visible_keys
from linkern.typing import Array

__all__ = ["softmax_attention"]


def softmax_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    causal: bool = True,
    mask: Array | None = None,
    scale: float | None = None,
    block_size: int | None = None,
) -> Array:
    r"""Softmax attention with scaled dot products as scores.

    Parameters
    ----------
    query : array (..., T, K)
        Queries; float16, bfloat16, float32 or float64.
    key : array (..., S, K)
        Keys; same library, device and dtype as `query`. ``S >= T`` if `causal`.
    value : array (..., S, V)
        Values; same library, device and dtype as `query`. Leading axes (batch, heads)
        of the three broadcast against each other.
    causal : bool
        True: the queries are the *last* ``T`` of the ``S`` tokens, and query t sees
        the keys ``0..S - T + t``. False: every query sees every key.
    mask : array of bool, broadcastable to (..., T, S), optional
        True where a query may see a key; it can only hide more than `causal` does.
    scale : float, optional
        Factor on the scores, dimensionless. Default ``K^-0.5``.
    block_size : int, optional
        Keys in a block. Default: all keys at once. Smaller blocks need
        less memory, proportional to ``T block_size``; results differ by rounding alone.

    Returns
    -------
    array (..., T, V)
        In the dtype of `query`; sums are accumulated in float32 or wider.

    Raises
    ------
    TypeError
        If an input is not a real floating-point array, or the inputs mix libraries or
        dtypes, or `mask` is not boolean, or an option has the wrong type.
    ValueError
        If shapes or devices do not fit, or an option is out of range.

    See Also
    --------
    kernel_attention : any similarity in place of the exponential.

    Notes
    -----
    .. math::

        o_i = \frac{\sum_j e^{s_{ij}} v_j}{\sum_j e^{s_{ij}}}, \qquad
        s_{ij} = scale \cdot q_i^T k_j,

    with j over the keys that query i sees. The largest score of a row is subtracted
    before the exponential. A query that sees no key gives the exact quotient 0/0: NaN,
    with a gradient of zero. A hidden key has weight zero, and zero times a value that
    is not finite is NaN.

    With more keys than queries the causal order is aligned at the last token, as a
    cache of keys and values needs. Some libraries (``is_causal`` of PyTorch) align it
    at the first token instead: there, query t sees the keys ``0..t``.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1; blocks with a
    running maximum and sum: Milakov and Gimelshein 2018, "Online normalizer calculation
    for softmax", and Dao et al. 2022, "FlashAttention".

    Examples
    --------
    >>> import numpy as np
    >>> from linkern.attention import softmax_attention
    >>> query = key = np.zeros((3, 2))
    >>> value = np.asarray([[3.0], [6.0], [9.0]])
    >>> softmax_attention(query, key, value)
    array([[3. ],
           [4.5],
           [6. ]])
    >>> softmax_attention(query[2:], key, value)
    array([[6.]])
    """
    causal = validate.flag("causal", causal)
    factor = validate.root_scale(scale, query)
    q, k, v = validate.attended(query, key, value, causal=causal)
    validate.mask(mask, q, k, v)
    size = validate.block_size(block_size, k.shape[-2])
    q = q * factor

    def attend_block(start: int) -> Partial:
        keys = slice(start, min(start + size, k.shape[-2]))
        visible = visible_keys(mask, q, k, keys, causal=causal)
        scores = hidden(q @ mT(k[..., keys, :]), visible)
        return attend(scores, v[..., keys, :])

    blocks = map(attend_block, range(0, k.shape[-2], size))
    # Without keys there are no blocks, and all sums are zero.
    first = next(blocks, _empty(q, k, v))
    return astype(reduce(combine, blocks, first).output(), query.dtype)


def _empty(query: Array, key: Array, value: Array) -> Partial:
    """Return the softmax over no keys."""
    lead = broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))
    rows = zeros((*lead, query.shape[-2], 1), like=query)
    wide = zeros((*lead, query.shape[-2], value.shape[-1]), like=query)
    return Partial(rows, rows, wide)
