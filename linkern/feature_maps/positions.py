r"""A position-dependent feature map that weighs pairs by their distance."""

from functools import partial

import numpy as np

from linkern import validate
from linkern.array import astype, concat, device_of, namespace
from linkern.feature_maps._checks import rows
from linkern.feature_maps.pointwise import relu
from linkern.typing import Array, FeatureMapFunction

__all__ = ["cosine_reweighting"]


def cosine_reweighting(length: int, start: int = 0) -> FeatureMapFunction:
    r"""Make rectified features weighted by the cosine of the distance between tokens.

    Parameters
    ----------
    length : int
        Number of positions, in tokens; positive.
    start : int
        Position of the first token of the input.

    Returns
    -------
    callable
        A feature map, ``(..., T, K)`` to ``(..., T, 2 K)``.

    Raises
    ------
    TypeError, ValueError
        If `length` is not a positive integer or `start` is no position; by the map, if
        there are more tokens than positions.

    Notes
    -----
    With ``M`` for `length` and ``i`` for the position, along axis -2,

    .. math::

        \phi(x_i) = [\cos(\pi i / 2M) \max(x_i, 0), \; \sin(\pi i / 2M) \max(x_i, 0)],

        \phi(q_i) . \phi(k_j) = \cos(\pi (i - j) / 2M) \; \max(q_i, 0) . \max(k_j, 0).

    Distances are below ``M``, so features and similarities are not negative. Only
    distances matter: positions may run on over packed sequences. A single token
    ``(..., K)`` has no axis of positions: instead of `linear_attention_step`, call
    `linear_attention` on one token with its state and a map that starts there.

    Source: Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention".

    Examples
    --------
    >>> import numpy as np
    >>> cosine_reweighting(length=2)(np.ones((2, 1))).round(4)
    array([[1.    , 0.    ],
           [0.7071, 0.7071]])
    """
    length = validate.positive_integer("length", length)
    start = validate.dimension("start", start)
    if start >= length:
        msg = f"`start` must be below `length`, {length}, got {start}."
        raise ValueError(msg)
    return partial(_cosine_reweighting, length=length, start=start)


def _cosine_reweighting(x: Array, /, *, length: int, start: int) -> Array:
    wide = rows(x, axes=2)
    stop = start + wide.shape[-2]
    if stop > length:
        msg = (
            f"`x` must not have more tokens (axis -2) than there are positions, "
            f"{length} from {start}, got {wide.shape[-2]}; pass a larger `length`."
        )
        raise ValueError(msg)
    xp, rectified = namespace(wide), relu(wide)
    angles = np.arange(start, stop)[:, None] * (np.pi / (2 * length))
    parts = [
        rectified * xp.asarray(factor, dtype=wide.dtype, device=device_of(wide))
        for factor in (np.cos(angles), np.sin(angles))
    ]
    return astype(concat(parts, axis=-1), x.dtype)
