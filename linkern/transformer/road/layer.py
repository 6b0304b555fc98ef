"""Order and non-linearity: the two things that an average of tokens lacks."""

from collections.abc import Callable, Sequence
from typing import cast

from linkern.array import device_of, namespace
from linkern.typing import Array

__all__ = ["mixed_then_transformed", "order_gap"]


def order_gap(layer: Callable[[Array], Array], x: Array, order: Sequence[int]) -> Array:
    """Return how far a map of sequences is from following a reordering of its tokens.

    Parameters
    ----------
    layer : callable
        From ``(..., T, D)`` to ``(..., T, E)``.
    x : array (..., T, D)
        The tokens.
    order : sequence of int
        A permutation of ``0 .. T - 1``.

    Returns
    -------
    array ()
        The largest entry of ``|layer(x[order]) - layer(x)[order]|``: zero, but for
        rounding, if the layer cannot tell where a token stands.

    Raises
    ------
    ValueError
        If `order` is no permutation of the tokens.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0], [2.0], [4.0]])
    >>> float(order_gap(np.exp, x, [2, 0, 1]))
    0.0
    >>> float(order_gap(lambda x: np.cumulative_sum(x, axis=0), x, [2, 0, 1]))
    4.0
    """
    if sorted(order) != list(range(x.shape[-2])):
        msg = f"`order` must be a permutation of 0..{x.shape[-2] - 1}, got {order}."
        raise ValueError(msg)
    xp = namespace(x)
    index = xp.asarray(list(order), device=device_of(x))
    before = layer(xp.take(x, index, axis=-2))
    after = xp.take(layer(x), index, axis=-2)
    return cast(Array, xp.max(xp.abs(before - after)))


def mixed_then_transformed(
    mix: Callable[[Array], Array], transform: Callable[[Array], Array], x: Array
) -> Array:
    r"""Return a layer of a Transformer: the average first, the non-linearity after it.

    Parameters
    ----------
    mix : callable
        What exchanges information between tokens: ``(..., T, D)`` to itself.
    transform : callable
        What acts on each token by itself, such as
        `linkern.transformer.layers.feed_forward`.
    x : array (..., T, D)
        The tokens.

    Returns
    -------
    array (..., T, D)
        ``transform(mix(x) + x)``.

    Notes
    -----
    .. math:: T_l(x) = f_l(A_l(x) + x)

    A GRU averages ``tanh(...)`` of its tokens. Here what is averaged is linear in them,
    and ``f_l`` acts on the average. Source: Katharopoulos et al. 2020, "Transformers
    are RNNs", equation 1.

    Examples
    --------
    >>> import numpy as np
    >>> mixed_then_transformed(np.negative, np.tanh, np.ones((2, 1)))
    array([[0.],
           [0.]])
    """
    return transform(mix(x) + x)
