"""Cost of attention over all pairs, and the parts that all counts share."""

from dataclasses import dataclass

from linkern import validate

__all__ = ["Cost", "sizes_of", "softmax_cost"]


@dataclass(frozen=True)
class Cost:
    """Exact counts for one head and one sequence.

    Parameters
    ----------
    pairs : int
        Pairs of a query and a key it sees: the scores that no algorithm can leave out.
    scores : int
        Scores that are computed, those that are masked afterwards included.
    multiply_adds : int
        Products in all matrix products: scores, weighted sums, hashes, memories.
    state : int
        Numbers that must be kept after the last token for the queries that follow.

    Examples
    --------
    >>> from linkern.cost import softmax_cost
    >>> softmax_cost(4, key_dim=2, value_dim=3)
    Cost(pairs=10, scores=16, multiply_adds=80, state=20)
    """

    pairs: int
    scores: int
    multiply_adds: int
    state: int


def softmax_cost(
    length: int,
    *,
    key_dim: int,
    value_dim: int,
    source_length: int | None = None,
    causal: bool = True,
) -> Cost:
    """Count what `linkern.attention.softmax_attention` does: ``O(T S max(K, V))``.

    Parameters
    ----------
    length : int
        Queries, ``T``.
    key_dim, value_dim : int
        ``K`` and ``V``.
    source_length : int, optional
        Keys, ``S``; at least `length` if `causal`. Default: `length`.
    causal : bool
        Whether keys behind the query are masked.

    Returns
    -------
    Cost
        `state` is the cache of all keys and values.

    Raises
    ------
    TypeError, ValueError
        If an argument is no integer, or out of range.

    Notes
    -----
    Blocks of keys change the memory that is needed, and none of these counts.

    Source: Vaswani et al. 2017, "Attention Is All You Need", table 1.

    Examples
    --------
    >>> from linkern.cost import softmax_cost
    >>> softmax_cost(1, key_dim=2, value_dim=3, source_length=100).multiply_adds
    500
    """
    length, width = sizes_of(length, key_dim, value_dim)
    causal = validate.flag("causal", causal)
    least = length if causal else 0
    source = length
    if source_length is not None:
        source = validate.at_least("source_length", source_length, least)
    scores = length * source
    pairs = scores - length * (length - 1) // 2 if causal else scores
    return Cost(pairs, scores, scores * width, source * width)


def sizes_of(
    length: int, key_dim: int, value_dim: int, *, first: str = "key_dim"
) -> tuple[int, int]:
    """Check three sizes and return the length and the products that a pair takes."""
    length = validate.at_least("length", length, 0)
    key_dim = validate.at_least(first, key_dim, 0)
    value_dim = validate.at_least("value_dim", value_dim, 0)
    return length, key_dim + value_dim
