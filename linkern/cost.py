"""What attention costs, in exact counts: pairs, multiply-adds, numbers kept.

Counts are for one head and one sequence, and for the algorithms of this package. A
multiply-add is one product in a matrix product; exponentials, divisions, masks, feature
maps and the comparisons of sorting are not counted.
"""

from dataclasses import dataclass

from linkern import _validate
from linkern._forms import FORM_NAMES, form_named
from linkern.attention._blocks import blocks_of
from linkern.attention._patterns import PATTERNS

__all__ = ["Cost", "linear_cost", "lsh_cost", "softmax_cost", "sparse_cost"]


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
    length, width = _sizes(length, key_dim, value_dim)
    causal = _validate.flag("causal", causal)
    least = length if causal else 0
    source = length
    if source_length is not None:
        source = _validate.at_least("source_length", source_length, least)
    scores = length * source
    pairs = scores - length * (length - 1) // 2 if causal else scores
    return Cost(pairs, scores, scores * width, source * width)


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
    length, width = _sizes(length, key_dim, value_dim)
    pattern = _validate.pattern(pattern, PATTERNS)
    window = _validate.at_least("window", window, 1)
    columns = _validate.summary(summary, pattern, window)
    causal = _validate.flag("causal", causal)
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
    length, width = _sizes(length, key_dim, value_dim)
    rounds = _validate.at_least("rounds", rounds, 1)
    chunk = _validate.at_least("chunk_size", chunk_size, 1)
    causal = _validate.flag("causal", causal)
    even = 2 * blocks_of(length, chunk)
    factors = _validate.bucket_count(bucket_count, even)
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


def linear_cost(
    length: int,
    *,
    features: int,
    value_dim: int,
    form: str = "auto",
    chunk_size: int | None = None,
    causal: bool = True,
    normalize: bool = True,
) -> Cost:
    """Count what `linkern.linear_attention` does after its feature map.

    Parameters
    ----------
    length : int
        Tokens, ``T``.
    features : int
        Features of a query or key, ``F``.
    value_dim : int
        ``V``.
    form, chunk_size, causal, normalize
        As in `linear_attention`.

    Returns
    -------
    Cost
        `pairs` is that of the equation; `scores` those that the form computes, none for
        "recurrent"; `state` does not depend on the length.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    With ``W = V + 1`` columns if `normalize`, otherwise ``V``: a token is written and
    read with ``F W`` multiply-adds each, ``2 T F W`` in all, and chunks of ``C`` tokens
    add ``C (F + W)`` for each token, padded to whole chunks.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3.2.

    Examples
    --------
    >>> from linkern.cost import linear_cost
    >>> linear_cost(1000, features=2, value_dim=3, form="recurrent").multiply_adds
    16000
    """
    length, _ = _sizes(length, features, value_dim, first="features")
    order = form_named(
        _validate.form(form, FORM_NAMES), _validate.chunk_size(chunk_size, form)
    )
    causal = _validate.flag("causal", causal)
    columns = value_dim + _validate.flag("normalize", normalize)
    rows, scores = length, 0
    if order.size is None:
        scores = length * length
    elif causal and form != "recurrent":
        rows, scores = _padded(length, order.size, order.together)
    return Cost(
        length * (length + 1) // 2 if causal else length * length,
        scores,
        2 * rows * features * columns + scores * (features + columns),
        features * columns,
    )


def _padded(length: int, chunk: int, together: int) -> tuple[int, int]:
    """Count the rows of all chunks, and the scores in them.

    Chunks are computed several together; a shorter rest is padded to whole chunks,
    unless it is shorter than one.
    """
    rest = length % (chunk * together)
    whole = length - rest
    size = max(min(chunk, rest), 1)
    padded = blocks_of(rest, size) * size if rest else 0
    return whole + padded, whole * chunk + padded * size


def _sizes(
    length: int, key_dim: int, value_dim: int, *, first: str = "key_dim"
) -> tuple[int, int]:
    """Check three sizes and return the length and the products that a pair takes."""
    length = _validate.at_least("length", length, 0)
    key_dim = _validate.at_least(first, key_dim, 0)
    value_dim = _validate.at_least("value_dim", value_dim, 0)
    return length, key_dim + value_dim
