"""Batch axes and heads merged into one axis of heads, as views of any layout."""

from math import prod

import numpy as np

from linkern.kernels.numpy.types import Arrays, Real

__all__ = ["group_size", "head_groups"]


def head_groups(
    arrays: Arrays, batch: tuple[int, ...], size: int
) -> list[dict[str, Real]]:
    """Return views ``(heads, ...)`` of all arrays, in groups of at most `size` heads.

    Parameters
    ----------
    arrays : mapping of str to array
        Arrays with the leading axes `batch`.
    batch : tuple of int
        Sizes of the leading axes.
    size : int
        Heads in a group, at most.
    """

    def flat(x: Real, axes: int) -> Real:
        return x.reshape(prod(x.shape[:axes]), *x.shape[axes:], copy=False)

    try:
        views = [{name: flat(x, len(batch)) for name, x in arrays.items()}]
        heads = prod(batch)
    except ValueError:  # the strides of the batch axes do not merge into one
        views = [
            {name: x[index] for name, x in arrays.items()}
            for index in np.ndindex(batch[:-1])
        ]
        heads = batch[-1]
    return [
        {name: x[start : start + size] for name, x in named.items()}
        for named in views
        for start in range(0, heads, size)
    ]


def group_size(heads: int, threads: int, most: int) -> int:
    """Return the heads in a group, at most `most`, so that threads get equal shares."""
    rounds = max(1, -(-heads // (threads * max(1, most))))
    return max(1, -(-heads // (threads * rounds)))
