"""What becomes of an output after it is right: rows overwritten, parts moved."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.pairs import Real

__all__ = ["Finish", "Move", "moved", "rows_filled"]

Finish = Callable[[Bounded], Bounded]
Move = Callable[[Real], Real]


def rows_filled(
    rows: Callable[[NDArray[np.int64], int], NDArray[np.bool_]], fill: float
) -> Finish:
    """Return what writes `fill` into rows; ``rows(row, T)`` says into which.

    Examples
    --------
    >>> ones = Bounded(np.ones((3, 1)), np.ones((3, 1)))
    >>> finished = rows_filled(lambda row, length: row == length - 1, 0.0)(ones)
    >>> finished.output.ravel(), finished.bound.ravel()
    (array([1., 1., 0.]), array([1., 1., 0.]))
    """

    def finish(output: Bounded) -> Bounded:
        length = output.output.shape[-2]
        chosen = rows(np.arange(length), length)[:, None]
        return Bounded(
            np.where(chosen, fill, output.output), np.where(chosen, 0.0, output.bound)
        )

    return finish


def moved(move: Move) -> Finish:
    """Return what moves the entries of an output about."""
    return lambda output: Bounded(move(output.output), move(output.bound))
