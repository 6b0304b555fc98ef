"""Softmax attention over a fixed pattern of pairs, without the matrix of all pairs.

Each pattern has a near part, computed in blocks, and at most one far part. No pair is
in both, so the two combine into one softmax.
"""

from typing import NamedTuple

from linkern import validate
from linkern.array import astype, mT
from linkern.attention._blocks import (
    blocks_of,
    cut,
    interleaved,
    joined,
    with_neighbours,
)
from linkern.attention._partial import Partial, attend, combine, hidden
from linkern.attention._patterns import PATTERNS, in_order
from linkern.attention._visible import positions
from linkern.typing import Array

__all__ = ["sparse_attention"]


class _Sequence(NamedTuple):
    """Checked inputs, with the query scaled, and options of the pattern."""

    query: Array
    key: Array
    value: Array
    window: int
    causal: bool

    @property
    def length(self) -> int:
        return self.query.shape[-2]


def sparse_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    pattern: str = "local",
    window: int,
    summary: int | None = None,
    causal: bool = True,
    scale: float | None = None,
) -> Array:
    r"""Softmax attention in which each query sees the keys of a sparse pattern.

    Parameters
    ----------
    query, key : array (..., T, K)
        Queries and keys of the same tokens; float16, bfloat16, float32 or float64.
    value : array (..., T, V)
        Values; same library, device and dtype as `query`. Leading axes (batch, heads)
        of the three broadcast against each other.
    pattern : {"local", "strided", "fixed"}
        "local": the last `window` tokens, this one included. "strided": those, and
        every `window`-th token before. "fixed": the same block of `window` tokens, and
        the last `summary` tokens of each other block.
    window : int
        Tokens in a block, ``T^0.5`` for ``O(T^1.5)`` pairs in all; at least 1.
    summary : int, optional
        Tokens of each block that other blocks see; for "fixed" alone. Default 1.
    causal : bool
        True: only keys ``0..i`` of the pattern. False: the pattern in both directions.
    scale : float, optional
        Factor on the scores, dimensionless. Default ``K^-0.5``.

    Returns
    -------
    array (..., T, V)
        In the dtype of `query`; sums are accumulated in float32 or wider.

    Raises
    ------
    TypeError
        If an input is not a real floating-point array, or the inputs mix libraries or
        dtypes, or an option has the wrong type.
    ValueError
        If shapes or devices do not fit, or an option is out of range.

    Notes
    -----
    The set of keys of query i, before the causal order, with ``w`` for `window` and
    ``c`` for `summary`:

    .. math::

        local:   &\; |i - j| < w \\
        strided: &\; |i - j| < w \;\text{or}\; i - j \equiv 0 \pmod w \\
        fixed:   &\; \lfloor i/w \rfloor = \lfloor j/w \rfloor
                   \;\text{or}\; j \bmod w \ge w - c

    Without the causal order, local and strided are symmetric; in fixed, every query
    sees the summaries, and they see their own block and each other.

    Local takes ``2 w`` scores for each query, strided and fixed ``T / w`` and
    ``c T / w`` more. One softmax runs over the union, and no pair counts twice.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers",
    section 4.3; there, the parts of a pattern may also be shared out to heads.

    Examples
    --------
    >>> import numpy as np
    >>> from linkern.attention import sparse_attention
    >>> query = key = np.zeros((4, 2))
    >>> value = np.asarray([[2.0], [4.0], [6.0], [8.0]])
    >>> sparse_attention(query, key, value, window=2)[:, 0]
    array([2., 3., 5., 7.])
    """
    pattern = validate.pattern(pattern, PATTERNS)
    window = validate.at_least("window", window, 1)
    columns = validate.summary(summary, pattern, window)
    causal = validate.flag("causal", causal)
    factor = validate.root_scale(scale, query)
    q, k, v = validate.attended(query, key, value, causal=False)
    validate.same_length(query, key, "key")
    # A block longer than the sequence would only add padding.
    window = min(window, max(query.shape[-2], 1))
    rows = _Sequence(q * factor, k, v, window, causal)
    partial = _fixed(rows, min(columns, window)) if pattern == "fixed" else _local(rows)
    if pattern == "strided":
        partial = combine(partial, _strided(rows))
    # Padding is removed before the division, whose gradient would be 0/0 there.
    partial = partial.mapped(lambda x: x[..., : rows.length, :])
    return astype(partial.output(), query.dtype)


def _local(rows: _Sequence) -> Partial:
    """Attend to the keys less than a window away."""
    window, count = rows.window, blocks_of(rows.length, rows.window)
    after = 0 if rows.causal else 1
    query = cut(rows.query, window)
    key = with_neighbours(cut(rows.key, window), 1, after)
    value = with_neighbours(cut(rows.value, window), 1, after)
    block = positions(0, count, like=query)[:, None, None] * window
    row = block + positions(0, window, like=query)[:, None]
    column = block + positions(-window, (1 + after) * window, like=query)
    visible = (row - column < window) & (column - row < window)
    visible = visible & (column >= 0) & (column < rows.length)
    visible = in_order(visible, row, column, causal=rows.causal)
    return attend(hidden(query @ mT(key), visible), value).mapped(joined)


def _strided(rows: _Sequence) -> Partial:
    """Attend to the keys a multiple of the window away, except the token itself."""
    window, count = rows.window, blocks_of(rows.length, rows.window)
    query, key, value = (
        interleaved(cut(x, window)) for x in (rows.query, rows.key, rows.value)
    )
    block = positions(0, count, like=query)
    remainder = positions(0, window, like=query)[:, None, None]
    row, column = block[:, None], block[None, :]
    visible = (row != column) & (column * window + remainder < rows.length)
    visible = in_order(visible, row, column, causal=rows.causal)
    part = attend(hidden(query @ mT(key), visible), value)
    return part.mapped(lambda x: joined(interleaved(x)))


def _fixed(rows: _Sequence, summary: int) -> Partial:
    """Attend to the keys of the same block, and to the summaries of the others."""
    window, count = rows.window, blocks_of(rows.length, rows.window)
    query, key, value = (cut(x, window) for x in (rows.query, rows.key, rows.value))
    block = positions(0, count, like=query)
    place = positions(0, window, like=query)
    row, column = place[:, None], place[None, :]
    exists = block[:, None, None] * window + column < rows.length
    visible = in_order(exists, row, column, causal=rows.causal)
    same_block = attend(hidden(query @ mT(key), visible), value).mapped(joined)

    last = slice(window - summary, window)
    key, value = joined(key[..., last, :]), joined(value[..., last, :])
    index = positions(0, count * summary, like=query)
    column = index // summary
    row = positions(0, count * window, like=query)[:, None] // window
    exists = column * window + window - summary + index % summary < rows.length
    visible = in_order((row != column) & exists, row, column, causal=rows.causal)
    return combine(same_block, attend(hidden(joined(query) @ mT(key), visible), value))
