"""Positional encodings: attention sees a set of keys and needs them for order."""

import math
from typing import Any

from linkern import validate
from linkern.array import astype, concat, device_of, is_array, namespace, reshape
from linkern.typing import Array

__all__ = ["position_indices", "sinusoidal_positions"]


def sinusoidal_positions(
    length: int, width: int, *, like: Array, start: Any = 0
) -> Array:
    r"""Sines and cosines of the position, of geometrically spaced wavelengths.

    Parameters
    ----------
    length : int
        How many positions, ``T``.
    width : int
        How many numbers for each; even.
    like : array
        Gives the library, the dtype and the device.
    start : int or integer array (...)
        The first position; an array gives each sequence its own.

    Returns
    -------
    array (..., T, width)
        Sines in even columns, cosines in odd ones.

    Raises
    ------
    TypeError, ValueError
        If `like` is not a floating-point array, or a size is negative or odd.

    Notes
    -----
    Column :math:`2i` is :math:`\sin(p / 10000^{2i / width})`, column :math:`2i + 1` its
    cosine. Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.

    Examples
    --------
    >>> import numpy as np
    >>> sinusoidal_positions(2, 2, like=np.zeros(1)).round(2)
    array([[0.  , 1.  ],
           [0.84, 0.54]])
    """
    wide = validate.wide_like("like", like)
    length = validate.dimension("length", length)
    width = validate.dimension("width", width)
    if width % 2:
        msg = f"`width` must be even for sinusoidal positions, got {width}."
        raise ValueError(msg)
    xp = namespace(wide)
    indices = astype(position_indices(length, start, like=like), wide.dtype)
    pairs = xp.arange(width // 2, dtype=wide.dtype, device=device_of(like))
    angles = indices[..., None] * xp.exp(pairs * (-2 * math.log(10000.0) / width))
    both = concat([xp.sin(angles)[..., None], xp.cos(angles)[..., None]], axis=-1)
    return astype(reshape(both, (*angles.shape[:-1], width)), like.dtype)


def position_indices(length: int, start: Any, *, like: Array) -> Array:
    """Return ``start, start + 1, ...``: ``(..., T)`` for starts ``(...)``."""
    xp = namespace(like)
    indices = xp.arange(length, device=device_of(like))
    if is_array(start):
        return astype(start, indices.dtype)[..., None] + indices  # type: ignore[no-any-return]
    return indices + start  # type: ignore[no-any-return]
