"""Rotation of pairs of channels, as a product of complex numbers."""

import numpy as np

from linkern.kernels.numpy.types import Real

__all__ = ["rotated"]


def rotated(x: Real, cosine: Real, sine: Real) -> Real:
    """Rotate channels 0 and 1 by the first angle, 2 and 3 by the second, and so on.

    Parameters
    ----------
    x : array (..., N)
        Channels, of which the first ``2 P`` are rotated.
    cosine, sine : array (..., P)
        Of the angles, in the dtype of `x`.

    Returns
    -------
    array (..., N)
        A new array.
    """
    turns = np.empty(cosine.shape, np.result_type(x.dtype, np.complex64))
    turns.real, turns.imag = cosine, sine
    size = 2 * cosine.shape[-1]
    result = np.empty(x.shape, x.dtype)
    rows = np.ascontiguousarray(x[..., :size]).view(turns.dtype)
    np.multiply(rows, turns, out=result[..., :size].view(turns.dtype))
    result[..., size:] = x[..., size:]
    return result
