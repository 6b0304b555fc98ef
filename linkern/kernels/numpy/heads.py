"""Heads and batches as one axis, without copying: however the arrays lie in memory."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["group_size", "merged"]

Real = NDArray[Any]


def merged(
    named: Mapping[str, Real], batch: tuple[int, ...], together: int
) -> list[dict[str, Real]]:
    """Return views ``(heads, ...)`` of all arrays, at most so many heads together.

    Parameters
    ----------
    named : mapping of str to array
        Each has the leading axes `batch`.
    batch : tuple of int
        These axes.
    together : int
        Heads of one set of views, at most.
    """

    def flat(x: Real, axes: int) -> Real:
        return x.reshape(prod(x.shape[:axes]), *x.shape[axes:], copy=False)

    try:
        sets = [{name: flat(x, len(batch)) for name, x in named.items()}]
        heads = prod(batch)
    except ValueError:  # axes that no single step can walk through
        sets = [
            {name: x[index] for name, x in named.items()}
            for index in np.ndindex(batch[:-1])
        ]
        heads = batch[-1]
    return [
        {name: x[start : start + together] for name, x in views.items()}
        for views in sets
        for start in range(0, heads, together)
    ]


def group_size(heads: int, threads: int, room: int) -> int:
    """Return how many heads make a group, at most `room`: all threads get as many."""
    rounds = max(1, -(-heads // (threads * max(1, room))))
    return max(1, -(-heads // (threads * rounds)))
