"""Sparse attention patterns, as predicates of two positions and as masks."""

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
    same_block = row // window == column // window
    return same_block | (column % window >= window - summary)


_RULES: dict[str, Callable[[Any, Any, int, int], Any]] = {
    "local": _local,
    "strided": _strided,
    "fixed": _fixed,
}
PATTERNS = tuple(_RULES)


def in_order(visible: Any, row: Any, column: Any, *, causal: bool) -> Any:
    """Mask the pairs whose key is after the query, if the order is causal."""
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
        True if keys after the query are masked.
    summary : int, optional
        Tokens of each block that other blocks see; for "fixed" alone. Default 1.
    like : array, optional
        Array whose library and device the mask gets. Default: NumPy.

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
    The notes of `sparse_attention` define the patterns.

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
    example: Any = np.empty(0) if like is None else like
    token: Any = positions(0, length, like=example)
    row, column = token[:, None], token[None, :]
    visible = _RULES[pattern](row, column, window, columns)
    return in_order(visible, row, column, causal=causal)
