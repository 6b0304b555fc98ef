"""Sparse patterns as rules about two positions, and as the matrix of all pairs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from linkern import validate
from linkern.attention._visible import positions
from linkern.typing import Array

__all__ = ["PATTERNS", "in_order", "sparse_mask"]


def _local(row: Any, column: Any, window: int, _summary: int) -> Any:
    return (row - column < window) & (column - row < window)


def _strided(row: Any, column: Any, window: int, summary: int) -> Any:
    near = _local(row, column, window, summary)
    return near | ((row - column) % window == 0)


def _fixed(row: Any, column: Any, window: int, summary: int) -> Any:
    own = row // window == column // window
    return own | (column % window >= window - summary)


_RULES: dict[str, Callable[[Any, Any, int, int], Any]] = {
    "local": _local,
    "strided": _strided,
    "fixed": _fixed,
}
PATTERNS = tuple(_RULES)


def in_order(visible: Any, row: Any, column: Any, *, causal: bool) -> Any:
    """Return the pairs whose key is not behind the query, if the order is causal."""
    return visible & (column <= row) if causal else visible


def sparse_mask(
    pattern: str,
    length: int,
    window: int,
    causal: bool = True,
    *,
    summary: int | None = None,
    like: Array | None = None,
) -> Any:
    """Return the pairs of a sparse pattern as an explicit matrix.

    Parameters
    ----------
    pattern : {"local", "strided", "fixed"}
        As in `sparse_attention`.
    length : int
        Tokens, ``T``.
    window : int
        Tokens in a block; at least 1.
    causal : bool
        Whether keys behind the query are left out.
    summary : int, optional
        Tokens of each block that later blocks see; for "fixed" alone. Default 1.
    like : array, optional
        An array whose library and device the mask is to have. Default: NumPy.

    Returns
    -------
    array of bool (T, T)
        True where the query of the row sees the key of the column.

    Raises
    ------
    TypeError, ValueError
        If an option has the wrong type or is out of range.

    See Also
    --------
    sparse_attention : the same pairs without the matrix.

    Notes
    -----
    The rules are those in the notes of `sparse_attention`, asked of every pair.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers",
    section 4.3.

    Examples
    --------
    >>> from linkern.attention import sparse_mask
    >>> sparse_mask("fixed", 5, 2).astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [0, 1, 1, 0, 0],
           [0, 1, 1, 1, 0],
           [0, 1, 0, 1, 1]])
    """
    pattern = validate.pattern(pattern, PATTERNS)
    length = validate.at_least("length", length, 0)
    window = validate.at_least("window", window, 1)
    columns = validate.summary(summary, pattern, window)
    causal = validate.flag("causal", causal)
    home: Any = np.empty(0) if like is None else like
    place: Any = positions(0, length, like=home)
    row, column = place[:, None], place[None, :]
    visible = _RULES[pattern](row, column, window, columns)
    return in_order(visible, row, column, causal=causal)
