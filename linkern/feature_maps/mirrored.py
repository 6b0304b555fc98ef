r"""Feature maps of a vector and its negative, so that no sign is lost."""

from functools import partial

from linkern import validate
from linkern.array import astype, concat, softmax
from linkern.feature_maps._checks import rows
from linkern.feature_maps.pointwise import relu
from linkern.typing import Array, FeatureMapFunction

__all__ = ["dpfp", "hedgehog"]


def dpfp(nu: int = 3) -> FeatureMapFunction:
    r"""Make deterministic parameter-free projections: products of rectified entries.

    Parameters
    ----------
    nu : int
        Capacity: each rectified entry is multiplied by the `nu` that follow it,
        cyclically. From 1 to ``2 K - 1``.

    Returns
    -------
    callable
        A feature map, ``(..., K)`` to ``(..., 2 K nu)``.

    Raises
    ------
    TypeError, ValueError
        If `nu` is not a positive integer; by the map, if it is too large.

    Notes
    -----
    .. math::

        \phi_{ij}(x) = r_i \; r_{i + j}, \qquad r = \max([x, -x], 0), \qquad
        i = 1 \ldots 2K, \quad j = 1 \ldots \nu

    Features are not negative, most are zero, and all can be: a normalised output is
    then NaN. Source: Schlag et al. 2021, "Linear Transformers Are Secretly Fast Weight
    Programmers", section 5.3.

    Examples
    --------
    >>> import numpy as np
    >>> dpfp(nu=1)(np.asarray([2.0, 3.0]))
    array([6., 0., 0., 0.])
    >>> dpfp(nu=1)(np.asarray([-2.0, 3.0]))
    array([0., 6., 0., 0.])
    """
    return partial(_dpfp, nu=validate.positive_integer("nu", nu))


def _dpfp(x: Array, /, *, nu: int) -> Array:
    wide = rows(x)
    if nu >= 2 * wide.shape[-1]:
        msg = (
            f"`nu` must be below twice the key dimension, {2 * wide.shape[-1]}, "
            f"got {nu}."
        )
        raise ValueError(msg)
    rectified = relu(concat([wide, -wide], axis=-1))
    shifted = (
        concat([rectified[..., j:], rectified[..., :j]], axis=-1)
        for j in range(1, nu + 1)
    )
    features = concat([rectified * other for other in shifted], axis=-1)
    return astype(features, x.dtype)


def hedgehog(x: Array, /, *, projection: Array | None = None) -> Array:
    r"""Softmax over the features, of a vector and of its negative.

    Parameters
    ----------
    x : array (..., K)
        Queries or keys, of any real floating dtype.
    projection : array (..., K, F), optional
        The learned matrix of the source, of the library of `x`; leading axes are those
        of heads. ``functools.partial(hedgehog, projection=projection)`` is a feature
        map. Default: the identity.

    Returns
    -------
    array (..., 2 F)
        Positive features, the sum of which is 2.

    Raises
    ------
    TypeError, ValueError
        If `projection` does not fit `x`, or `x` has no entries.

    Notes
    -----
    .. math:: \phi(x) = [softmax(x W), \; softmax(-x W)]

    Rows are independent of each other: the largest entry that a softmax subtracts is
    that of its own row. Source: Zhang et al. 2024, "The Hedgehog & the Porcupine:
    Expressive Linear Attentions with Softmax Mimicry".

    Examples
    --------
    >>> import numpy as np
    >>> hedgehog(np.zeros(2))
    array([0.5, 0.5, 0.5, 0.5])
    >>> hedgehog(np.ones(1), projection=np.zeros((1, 2)))
    array([0.5, 0.5, 0.5, 0.5])
    """
    wide = rows(x)
    if projection is not None:
        wide = _projected(wide, projection)
    if not wide.shape[-1]:
        msg = f"`x` must have an entry in its last axis, got shape {tuple(x.shape)}."
        raise ValueError(msg)
    features = concat([softmax(wide), softmax(-wide)], axis=-1)
    return astype(features, x.dtype)


def _projected(x: Array, projection: Array) -> Array:
    matrix = validate.widened("projection", projection)
    validate.home({"x": x, "projection": matrix})
    if matrix.ndim < 2 or matrix.shape[-2] != x.shape[-1]:
        msg = (
            f"`projection` must have shape (..., {x.shape[-1]}, F), got "
            f"{tuple(matrix.shape)}."
        )
        raise ValueError(msg)
    if x.ndim > 1:
        return x @ matrix
    return (x[None, :] @ matrix)[..., 0, :]
