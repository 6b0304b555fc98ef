"""Averages of candidates, and the matrices of weights they come from.

The weights of a GRU are products of its gates; any others that are not negative do as
well, such as similarities of queries and keys.
"""

from typing import cast

from linkern import validate
from linkern.array import any_true, astype, concat, device_of, mT, namespace, ones
from linkern.similarity import Similarity
from linkern.transformer.layers import apart, together
from linkern.transformer.road._checks import fitted, gates
from linkern.typing import Array

__all__ = ["gru_weights", "similarity_weights", "unrolled", "weighted_candidates"]


def gru_weights(update: Array) -> Array:
    r"""Return the weight of every candidate in every hidden state of a GRU.

    Parameters
    ----------
    update : array (..., T, D)
        Update gates, from 0 to 1: the share of the candidate that is written.

    Returns
    -------
    array (..., D, T, 1 + T)
        For each channel, a row for each hidden state. Column 0 is the weight of the
        initial state, column j that of candidate j; zero where ``j > t``. Each row sums
        to 1. In float32 or wider.

    Raises
    ------
    TypeError
        If `update` is not a real floating-point array.
    ValueError
        If it has fewer than two axes, or an entry outside [0, 1].

    Notes
    -----
    .. math::

        w_{tj} = z_j \prod_{l=j+1}^{t} (1 - z_l), \qquad z_0 = 1

    The initial state is the candidate of a token 0 that overwrote everything. Products
    are formed as such: no logarithm, no quotient, so gates of exactly 0 and 1 are
    exact.

    Examples
    --------
    >>> import numpy as np
    >>> gru_weights(np.asarray([[0.5], [0.25]]))
    array([[[0.5  , 0.5  , 0.   ],
            [0.375, 0.375, 0.25 ]]])
    """
    written = gates("update", update)
    everything = ones((*update.shape[:-2], 1, update.shape[-1]), like=written)
    z = mT(concat([everything, written], axis=-2))
    xp = namespace(z)
    index = xp.arange(z.shape[-1], device=device_of(z))
    later = index[:, None] > index[None, :]
    kept = (1 - z)[..., None]
    left = _running_product(xp.where(later, kept, xp.ones_like(kept)))
    return cast(Array, xp.tril(left * z[..., None, :]))[..., 1:, :]


def unrolled(
    update: Array, candidate: Array, initial_hidden: Array | None = None
) -> Array:
    r"""Return all hidden states of a GRU from its gates, as one matrix product.

    Parameters
    ----------
    update : array (..., T, D)
        Update gates, from 0 to 1.
    candidate : array (..., T, D)
        Candidates; same library, device and dtype as `update`.
    initial_hidden : array (..., D), optional
        Hidden state before the first token. Default: zeros.

    Returns
    -------
    array (..., T, D)
        Hidden states, in the dtype of `candidate`.

    Raises
    ------
    TypeError, ValueError
        As `gru_weights`; also if the arrays do not fit together.

    Notes
    -----
    .. math:: h_t = w_{t0} h_0 + \sum_{j=1}^{t} w_{tj} c_j

    with the weights of `gru_weights`, for each channel.

    Examples
    --------
    >>> import numpy as np
    >>> gate = np.asarray([[0.5], [0.25]])
    >>> unrolled(gate, np.asarray([[4.0], [8.0]]))
    array([[2. ],
           [3.5]])
    """
    z, c, first = fitted(update, candidate, initial_hidden)
    columns = concat([first[..., None, :], c], axis=-2)
    hidden = together(gru_weights(z) @ apart(columns, columns.shape[-1]))
    return astype(hidden, candidate.dtype)


def weighted_candidates(weights: Array, candidate: Array) -> Array:
    r"""Average candidates with any weights: a row for each output, a matrix each head.

    Parameters
    ----------
    weights : array (..., H, T, S) or (T, S)
        Weights, none of them negative. Head h serves the channels from ``h D / H``.
    candidate : array (..., S, D)
        What is averaged; same library, device and dtype as `weights`.

    Returns
    -------
    array (..., T, D)
        Averages, in the dtype of `candidate`.

    Raises
    ------
    TypeError
        If an input is not a real floating-point array, or libraries or dtypes mix.
    ValueError
        If the heads do not divide the channels, lengths differ, or a weight is
        negative.

    Notes
    -----
    .. math:: o_t = \frac{\sum_j w_{tj} c_j}{\sum_j w_{tj}}

    As one matrix acting on all channels of all candidates, the weights are
    block-diagonal, a block for each head. One head for each channel, with the weights
    of `gru_weights`, is the GRU. The quotient is exact: a row of zeros gives NaN.

    Examples
    --------
    >>> import numpy as np
    >>> weights = np.asarray([[[1.0, 1.0]], [[1.0, 3.0]]])
    >>> weighted_candidates(weights, np.asarray([[0.0, 0.0], [8.0, 8.0]]))
    array([[4., 6.]])
    """
    w, c = (
        validate.widened("weights", weights),
        validate.widened("candidate", candidate),
    )
    validate.home({"weights": w, "candidate": c})
    if w.ndim == 2:
        w = w[None, ...]
    if w.ndim < 3 or c.ndim < 2 or w.shape[-1] != c.shape[-2]:
        msg = (
            "`weights` must have shape (..., H, T, S) for `candidate` (..., S, D), got "
            f"{tuple(weights.shape)} and {tuple(candidate.shape)}."
        )
        raise ValueError(msg)
    heads, channels = w.shape[-3], c.shape[-1]
    if heads == 0 or channels % heads:
        msg = (
            f"`weights` must have heads (axis -3) that divide {channels}, got {heads}."
        )
        raise ValueError(msg)
    if any_true(w < 0):
        msg = "`weights` must not be negative, got an entry that is."
        raise ValueError(msg)
    total = namespace(w).sum(w, axis=-1, keepdims=True)
    return astype(together((w @ apart(c, heads)) / total), candidate.dtype)


def similarity_weights(
    query: Array, key: Array, similarity: Similarity, *, causal: bool = True
) -> Array:
    r"""Return weights that compare a query of each output with a key of each candidate.

    Parameters
    ----------
    query : array (..., H, T, K)
        What each output looks for.
    key : array (..., H, S, K)
        What each candidate offers; same library, device and dtype. ``S == T`` if
        `causal`.
    similarity : callable
        From queries and keys to non-negative weights ``(..., T, S)``; see
        `linkern.similarity`.
    causal : bool
        Whether output t sees the candidates up to t alone.

    Returns
    -------
    array (..., H, T, S)
        Weights for `weighted_candidates`; not normalised.

    Raises
    ------
    TypeError, ValueError
        As `similarity` does, or if lengths differ and `causal`.

    Notes
    -----
    ``weighted_candidates(similarity_weights(query, key, similarity), value)`` is
    `linkern.attention.kernel_attention`, the heads side by side. Source: Bahdanau et
    al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate",
    for weights from a comparison; Vaswani et al. 2017, "Attention Is All You Need", for
    queries, keys and values of one sequence.

    Examples
    --------
    >>> import numpy as np
    >>> from linkern.similarity import exponential
    >>> similarity_weights(np.zeros((1, 2, 1)), np.ones((1, 2, 1)), exponential())
    array([[[1., 0.],
            [1., 1.]]])
    """
    causal = validate.flag("causal", causal)
    weights: Array = similarity(query, key)
    if not causal:
        return weights
    if weights.shape[-2] != weights.shape[-1]:
        msg = (
            "`query` and `key` must have the same length (axis -2) when `causal` is "
            f"True, got {weights.shape[-2]} and {weights.shape[-1]}."
        )
        raise ValueError(msg)
    return cast(Array, namespace(weights).tril(weights))


def _running_product(x: Array) -> Array:
    """Return the products of all rows up to each: a scan by doubling, no quotient."""
    length, reach = x.shape[-2], 1
    while reach < length:
        earlier = x[..., : length - reach, :]
        x = concat([x[..., :reach, :], x[..., reach:, :] * earlier], axis=-2)
        reach *= 2
    return x
