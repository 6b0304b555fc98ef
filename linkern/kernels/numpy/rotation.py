"""Rotation of pairs of channels by sums of angles, as a product of complex numbers."""

from collections.abc import Sequence

import numpy as np

from linkern.kernels.numpy.running_sums import running_sums
from linkern.kernels.numpy.types import Real

__all__ = ["rotated"]


def rotated(turn: Real, steps: Real, rows: Sequence[Real]) -> tuple[Real, list[Real]]:
    """Rotate channels 0 and 1 by the first angle, 2 and 3 by the second, and so on.

    Parameters
    ----------
    turn : array (..., 1, P)
        Angles before the first token.
    steps : array (..., T, P)
        What each token adds to them.
    rows : sequence of array (..., T, R, N)
        Channels, of which the first ``2 P`` are rotated, in the dtype of the angles.

    Returns
    -------
    turn : array (..., T, P)
        Angles of the tokens.
    rows : list of array (..., T, R, N)
        New arrays.
    """
    turn = running_sums(turn, steps)
    turns = np.empty(turn.shape, np.result_type(turn.dtype, np.complex64))
    np.cos(turn, out=turns.real)
    np.sin(turn, out=turns.imag)
    return turn, [_product(x, turns[..., None, :]) for x in rows]


def _product(x: Real, turns: Real) -> Real:
    """Return pairs of channels, times complex numbers."""
    size = 2 * turns.shape[-1]
    result = np.empty(x.shape, x.dtype)
    pairs = np.ascontiguousarray(x[..., :size]).view(turns.dtype)
    np.multiply(pairs, turns, out=result[..., :size].view(turns.dtype))
    result[..., size:] = x[..., size:]
    return result
