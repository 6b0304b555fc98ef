"""Cost of attention over a sparse pattern of pairs."""

from linkern import validate
from linkern.attention._blocks import blocks_of
from linkern.attention._patterns import PATTERNS
from linkern.cost.softmax import Cost, sizes_of

__all__ = ["sparse_cost"]


def sparse_cost(
    length: int,
    *,
    key_dim: int,
    value_dim: int,
    pattern: str,
    window: int,
    summary: int | None = None,
    causal: bool = True,
) -> Cost:
    """Count what `linkern.attention.sparse_attention` does.

    Parameters
    ----------
    length : int
        Tokens, ``T``.
    key_dim, value_dim : int
        ``K`` and ``V``.
    pattern, window, summary, causal
        As in `sparse_attention`.

    Returns
    -------
    Cost
        `pairs` are the true entries of `sparse_mask`; `state` has the keys and values
        that later queries see, all of them if not `causal`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    ``O(T window)`` for "local", ``O(T window + T^2 / window)`` for the others: with
    ``window = ceil(T^0.5)``, ``O(T^1.5)``.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers".

    Examples
    --------
    >>> from linkern.cost import sparse_cost
    >>> sparse_cost(9, key_dim=1, value_dim=1, pattern="strided", window=3).pairs
    33
    """
    length, width = sizes_of(length, key_dim, value_dim)
    pattern = validate.pattern(pattern, PATTERNS)
    window = validate.at_least("window", window, 1)
    columns = validate.summary(summary, pattern, window)
    causal = validate.flag("causal", causal)
    pairs = {"local": _near, "strided": _strided, "fixed": _fixed}[pattern]
    held = {
        "local": min(length, window - 1),
        "strided": length,
        "fixed": length // window * columns + length % window,
    }[pattern]
    # The implementation takes whole blocks, none longer than the sequence.
    size = min(window, max(length, 1))
    count = blocks_of(length, size)
    scores = {
        "local": count * size * size * (2 if causal else 3),
        "strided": count * size * (size * (2 if causal else 3) + count),
        "fixed": count * size * (size + count * min(columns, size)),
    }[pattern]
    return Cost(
        pairs(length, window, columns, causal=causal),
        scores,
        scores * width,
        (held if causal else length) * width,
    )


def _near(length: int, window: int, _columns: int, *, causal: bool) -> int:
    """Count the pairs less than a window apart."""
    size = min(length, window)
    ordered = length * size - size * (size - 1) // 2
    return ordered if causal else 2 * ordered - length


def _strided(length: int, window: int, columns: int, *, causal: bool) -> int:
    """Count those, and the pairs that are whole windows apart."""
    count, rest = divmod(length, window)
    far = window * count * (count - 1) // 2 + rest * count
    near = _near(length, window, columns, causal=causal)
    return near + (far if causal else 2 * far)


def _fixed(length: int, window: int, columns: int, *, causal: bool) -> int:
    """Count the pairs in the same block, and those with a summary of another block."""
    count, rest = divmod(length, window)
    last = max(rest - (window - columns), 0)
    if causal:
        own = count * window * (window + 1) // 2 + rest * (rest + 1) // 2
        far = window * columns * count * (count - 1) // 2 + rest * columns * count
        return own + far
    own = count * window * window + rest * rest
    others = count * columns + last
    far = count * window * (others - columns) + rest * (others - last)
    return own + far
