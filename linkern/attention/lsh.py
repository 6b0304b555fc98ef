"""Softmax attention within buckets of locality-sensitive hashing."""

import math
from functools import reduce
from typing import Any, NamedTuple, cast

import numpy as np

from linkern import validate
from linkern.array import astype, broadcast_to, concat, device_of, mT, namespace
from linkern.attention._blocks import blocks_of, cut, joined, with_neighbours
from linkern.attention._partial import Partial, attend, combine, hidden
from linkern.attention._visible import positions
from linkern.typing import Array

__all__ = ["lsh_attention"]


class _Sorted(NamedTuple):
    """Tokens sorted by bucket in each round of hashing; all ``(..., R, T)``.

    Parameters
    ----------
    order : array of int
        Token at each place, sorted by bucket and then by position.
    place : array of int
        Place of each token.
    bucket : array of int
        Bucket of each token.
    """

    order: Array
    place: Array
    bucket: Array


def lsh_attention(
    query: Array,
    value: Array,
    *,
    rounds: int = 1,
    bucket_count: int | tuple[int, ...] | None = None,
    chunk_size: int = 64,
    causal: bool = True,
    scale: float | None = None,
    rng: Any = None,
) -> Array:
    r"""Softmax attention restricted to pairs that locality-sensitive hashing finds.

    Parameters
    ----------
    query : array (..., T, K)
        Queries; float16, bfloat16, float32 or float64. The keys are the queries divided
        by their Euclidean length; a query of zeros has no direction, and as a key it is
        NaN, 0/0.
    value : array (..., T, V)
        Values; same library, device and dtype as `query`. Leading axes (batch, heads)
        broadcast against those of `query`.
    rounds : int
        Independent hashes; at least 1.
    bucket_count : int or tuple of int, optional
        Buckets of a hash: an even number, or 1 for no hashing at all. A tuple of even
        numbers hashes with each and takes all combinations, so that many buckets cost
        few rotations. Default: ``2 ceil(T / chunk_size)``.
    chunk_size : int
        Tokens in a chunk of the sorted sequence; at least 1.
    causal : bool
        True: token i sees no token behind i.
    scale : float, optional
        Factor on the scores, dimensionless. Default ``K^-0.5``.
    rng : int, numpy.random.Generator or None
        Source of the rotations, as `numpy.random.default_rng` takes it. The rotations
        are the same for all leading axes.

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

    See Also
    --------
    softmax_attention : all pairs.

    Notes
    -----
    In round r, token i has the bucket

    .. math:: h_r(i) = \mathrm{argmax} [q_i^T R_r, -q_i^T R_r]

    with Gaussian ``R_r`` of half as many columns as there are buckets. Tokens are
    sorted by bucket, then by position, and cut into chunks; the set of token i is

    .. math::

        P_r(i) = \{j : h_r(j) = h_r(i), \; c_r(i) - 1 \le c_r(j) \le c_r(i), \;
        j \ne i\}

    with the number of the chunk ``c_r``, and ``j < i`` if `causal`. The first chunk has
    none before it: nothing wraps around to the last. With ``N_ij`` for the number of
    rounds in which ``j`` is in the set of ``i``,

    .. math::

        o_i = \frac{\sum_r \sum_{j \in P_r(i)} e^{s_{ij}} v_j / N_{ij}}
                   {\sum_r \sum_{j \in P_r(i)} e^{s_{ij}} / N_{ij}}, \qquad
        s_{ij} = scale \; q_i^T \frac{q_j}{\lVert q_j \rVert},

    so that pairs count once, and more rounds come closer to the softmax over all other
    tokens. A token that finds no other in any round attends to itself: ``o_i = v_i``.
    The paper gives the token itself a score lowered by 1e5 instead; this is the limit.

    Scores take ``O(rounds T chunk_size)`` and sorting ``O(rounds T log T)``; hashing
    takes ``T K / 2`` multiply-adds for each bucket of each factor.

    Source: Kitaev, Kaiser and Levskaya 2020, "Reformer: The Efficient Transformer",
    section 2; factors of the buckets: the code of its authors.

    Examples
    --------
    >>> import numpy as np
    >>> from linkern.attention import lsh_attention
    >>> query = np.asarray([[1.0], [1.0], [-1.0], [-1.0]])
    >>> value = np.asarray([[2.0], [4.0], [6.0], [8.0]])
    >>> lsh_attention(query, value, bucket_count=2, rng=0)[:, 0]
    array([2., 2., 6., 6.])
    """
    rounds = validate.at_least("rounds", rounds, 1)
    size = validate.at_least("chunk_size", chunk_size, 1)
    causal = validate.flag("causal", causal)
    factor = validate.root_scale(scale, query)
    q, v = validate.with_shared_keys(query, value)
    length = q.shape[-2]
    even = 2 * blocks_of(length, size)
    factors = validate.bucket_count(bucket_count, even)
    generator = validate.generator(rng)
    size = min(size, max(length, 1))

    lead = (*validate.leading("query and value", q.shape[:-2], v.shape[:-2]), rounds)
    q, v = (_repeated(x, lead) for x in (q, v))
    hashed = _sorted(_buckets(q, factors, generator))
    chunks = _attend_chunks(hashed, q * factor, _unit(q), v, size, causal=causal)
    by_token = chunks.mapped(lambda x: _gathered(x[..., :length, :], hashed.place))
    parts = [Partial(*(x[..., r, :, :] for x in by_token)) for r in range(rounds)]
    return astype(
        _output_or_value(reduce(combine, parts), v[..., 0, :, :]), query.dtype
    )


def _repeated(x: Array, lead: tuple[int, ...]) -> Array:
    """Broadcast an input to all leading axes and rounds."""
    return broadcast_to(x[..., None, :, :], (*lead, *x.shape[-2:]))


def _unit(x: Array) -> Array:
    """Return each row divided by its Euclidean length."""
    xp = namespace(x)
    return cast(Array, x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True)))


def _buckets(
    query: Array, factors: tuple[int, ...], generator: "np.random.Generator"
) -> Array:
    """Return the bucket of each query in each round: ``(..., R, T)``."""
    xp = namespace(query)
    rounds, length, dim = query.shape[-3:]
    # Rounds are the first axis, and leading axes share the rotations: more rounds keep
    # the earlier ones, and a batch gives the results of its parts.
    drawn = generator.standard_normal((rounds, dim, sum(factors) // 2))
    rotation = xp.asarray(drawn, dtype=query.dtype, device=device_of(query))
    projected = query @ rotation
    bucket, start = positions(0, length, like=query) * 0, 0
    for factor in factors:
        part = projected[..., start : start + factor // 2]
        nearest = xp.argmax(concat([part, -part], axis=-1), axis=-1)
        bucket, start = bucket * factor + nearest, start + factor // 2
    return broadcast_to(bucket, tuple(query.shape[:-1]))


def _sorted(bucket: Array) -> _Sorted:
    """Sort the tokens of each round by bucket, and by position within a bucket."""
    xp = namespace(bucket)
    length = bucket.shape[-1]
    # Ranks are distinct, so the result does not depend on the sort being stable.
    rank = bucket * length + positions(0, length, like=bucket)
    order = xp.argsort(rank, axis=-1)
    return _Sorted(order, xp.argsort(order, axis=-1), bucket)


def _gathered(x: Array, index: Array) -> Array:
    """Return the rows of ``x (..., T, D)`` in the order ``index (..., T)``."""
    rows = broadcast_to(index[..., None], tuple(x.shape))
    return cast(Array, namespace(x).take_along_axis(x, rows, axis=-2))


def _rows_and_columns(x: Array, order: Array, size: int) -> tuple[Any, Any]:
    """Return a number per token, ``(..., T)``, for the rows and columns of all scores.

    Rows are ``(..., C, size, 1)``, columns ``(..., C, 1, 2 size)``: those of the
    previous chunk and of the same one.
    """
    chunks = cut(_gathered(x[..., None], order), size)
    return chunks, mT(with_neighbours(chunks, 1, 0))


def _attend_chunks(
    hashed: _Sorted, query: Array, key: Array, value: Array, size: int, *, causal: bool
) -> Partial:
    """Attend within each chunk of sorted tokens and the previous one."""
    q, k, v = (cut(_gathered(x, hashed.order), size) for x in (query, key, value))
    scores = q @ mT(with_neighbours(k, 1, 0))
    visible, match_count = _matches(hashed, size, causal=causal)
    # The weight of a pair that matches in several rounds is divided among them.
    scores_per_round = scores - namespace(scores).log(astype(match_count, scores.dtype))
    masked = hidden(scores_per_round, visible)
    return attend(masked, with_neighbours(v, 1, 0)).mapped(joined)


def _matches(hashed: _Sorted, size: int, *, causal: bool) -> tuple[Array, Array]:
    """Return the mask of matching pairs, and the rounds in which they match, >= 1."""
    xp = namespace(hashed.order)
    # Tokens count from 1; padding is 0.
    numbers = positions(1, hashed.order.shape[-1] + 1, like=hashed.order)
    numbers = broadcast_to(numbers, tuple(hashed.order.shape))
    row, column = _rows_and_columns(numbers, hashed.order, size)
    others = (column < row) if causal else (column != row)
    bucket, other_bucket = _rows_and_columns(hashed.bucket, hashed.order, size)
    visible = (row > 0) & (column > 0) & others & (bucket == other_bucket)

    chunk: Any = hashed.place
    chunk = chunk // size
    times = xp.zeros_like(row - column)
    for r in range(hashed.order.shape[-2]):
        in_round = [
            broadcast_to(x[..., r : r + 1, :], tuple(x.shape))
            for x in (hashed.bucket, chunk)
        ]
        bucket, other_bucket = _rows_and_columns(in_round[0], hashed.order, size)
        near, other = _rows_and_columns(in_round[1], hashed.order, size)
        matches = (bucket == other_bucket) & (other <= near) & (near - other <= 1)
        times = times + astype(matches, times.dtype)
    return visible, xp.where(visible, times, xp.ones_like(times))


def _output_or_value(partial: Partial, value: Array) -> Array:
    """Return the output, or the token's own value if it matches no other token."""
    alone = partial.peak <= -math.inf
    return cast(Array, namespace(value).where(alone, value, partial.output()))
