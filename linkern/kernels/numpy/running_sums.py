"""Sums over the tokens so far, with or without decays: a memory of a single row.

Groups of a few tokens are summed side by side, and what is before each group is added
afterwards. `numpy.cumsum` has no decays, takes twice as long, and holds the lock of the
interpreter meanwhile.
"""

from typing import Any

import numpy as np

from linkern.core.recurrence import Terms
from linkern.kernels.numpy.types import Real

__all__ = ["one_row", "running_sums"]

_GROUP = 8  # tokens


def one_row(memory: Any, terms: Terms) -> tuple[Any, Any]:
    """Return the read-out and the last memory of additive terms, for K = 1."""
    plain: tuple[Any, ...] = terms[:4]
    query, key, value, log_decay = plain
    sums = running_sums(memory, key * value, log_decay)
    last = sums[..., -1:, :] if sums.shape[-2] else memory
    return query * sums, last.copy()


def running_sums(before: Real, rows: Real, log_decay: Real | None = None) -> Real:
    """Return the sum of the rows up to each token.

    Parameters
    ----------
    before : array (..., 1, N)
        Sum before the first token.
    rows : array (..., T, N)
        What each token adds.
    log_decay : array (..., T, 1) or None
        Natural logarithm of how much is left of the sum before a token.

    Returns
    -------
    array (..., T, N)
        A new array.
    """
    sums, result = _in_groups(rows)
    through = None if log_decay is None else _in_groups(log_decay)[0]
    gates = None if through is None else np.exp(through)
    for i in range(1, _GROUP):
        earlier = sums[..., i - 1, :]
        if through is not None and gates is not None:
            earlier = gates[..., i, :] * earlier
            through[..., i, :] += through[..., i - 1, :]
        sums[..., i, :] += earlier
    if sums.shape[-3] > 1:
        whole = None if through is None else through[..., -1, :]
        after = running_sums(before, sums[..., -1, :], whole)
        before = np.concatenate([before, after[..., :-1, :]], axis=-2)
    entering = before[..., None, :]
    sums += entering if through is None else np.exp(through) * entering
    return result


def _in_groups(rows: Real) -> tuple[Real, Real]:
    """Return a copy ``(..., groups, tokens, N)``, and the rows in it."""
    *lead, length, size = rows.shape
    groups = -(-length // _GROUP)
    copy = np.empty((*lead, groups * _GROUP, size), rows.dtype)
    copy[..., :length, :], copy[..., length:, :] = rows, 0
    return copy.reshape(*lead, groups, _GROUP, size), copy[..., :length, :]
