"""Cost of attention within buckets of a hash."""

from linkern import validate
from linkern.attention._blocks import blocks_of
from linkern.cost.softmax import Cost, sizes_of

__all__ = ["lsh_cost"]


def lsh_cost(
    length: int,
    *,
    key_dim: int,
    value_dim: int,
    rounds: int = 1,
    bucket_count: int | tuple[int, ...] | None = None,
    chunk_size: int = 64,
    causal: bool = True,
) -> Cost:
    """Count what `linkern.attention.lsh_attention` does.

    Parameters
    ----------
    length : int
        Tokens, ``T``.
    key_dim, value_dim : int
        ``K`` and ``V``.
    rounds, bucket_count, chunk_size, causal
        As in `lsh_attention`.

    Returns
    -------
    Cost
        `pairs` is the most that any hash leaves: all tokens in one bucket in every
        round, counted in each. `state` has keys, values and buckets of all tokens.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    Scores are ``O(rounds T chunk_size)``. A hash with one rotation takes ``T K / 2``
    multiply-adds for each bucket: with ``T / chunk_size`` buckets that is quadratic in
    ``T``. With factors of 2 it is ``T K log2(buckets)``, and all of it ``O(T log T)``.

    Source: Kitaev, Kaiser and Levskaya 2020, "Reformer: The Efficient Transformer",
    table 1.

    Examples
    --------
    >>> from linkern.cost import lsh_cost
    >>> lsh_cost(1024, key_dim=1, value_dim=1, chunk_size=16, bucket_count=2).scores
    32768
    """
    length, width = sizes_of(length, key_dim, value_dim)
    rounds = validate.at_least("rounds", rounds, 1)
    chunk = validate.at_least("chunk_size", chunk_size, 1)
    causal = validate.flag("causal", causal)
    even = 2 * blocks_of(length, chunk)
    factors = validate.bucket_count(bucket_count, even)
    size = min(chunk, max(length, 1))
    count = blocks_of(length, size)
    scores = rounds * count * size * 2 * size
    hashing = rounds * length * key_dim * sum(factors) // 2
    state = length * (width + rounds)
    pairs = rounds * _in_chunks(length, size, causal=causal)
    return Cost(pairs, scores, scores * width + hashing, state)


def _in_chunks(length: int, size: int, *, causal: bool) -> int:
    """Count the pairs of two tokens whose chunks are the same, or the key's before."""
    count, rest = divmod(length, size)
    before = max(count - 1, 0) * size * size + (rest * size if count else 0)
    own = count * size * (size - 1) + rest * (rest - 1)
    return before + (own // 2 if causal else own)
