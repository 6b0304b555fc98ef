r"""What a span of log-decays does to the pairs of its tokens, and to the memory.

A token j written into the memory has been forgotten by the factor

    Gamma_ij = exp(g_{j+1} + ... + g_i)          for each key channel

when token i reads. Every such factor is formed as the exponential of a *sum of
log-decays*, never of a difference of two sums, and never of anything positive: so
nothing overflows, ``-inf`` forgets exactly, and a strong gate leaves the weights on
either side of it as accurate as they would be without it.

``log_decay`` is None (nothing is forgotten), ``(..., C, 1)`` (one number for each
token) or ``(..., C, K)`` (one for each key channel). A read is `early` if it happens
before the decay of its own token: ``g_i`` is left out of the sum.
"""

from typing import cast

from linkern._array import concat, mT, namespace, reshape, zeros
from linkern._halving import apart, doubled, halves, together
from linkern._typing import Array

__all__ = ["entering", "leaving", "mixed", "scores", "whole"]


def entering(rows: Array, log_decay: Array | None, *, early: bool = False) -> Array:
    """Return `rows` as they read the memory at the start of the span."""
    if log_decay is None:
        return rows
    xp = namespace(log_decay)
    sums = xp.cumulative_sum(_before(log_decay) if early else log_decay, axis=-2)
    return cast(Array, rows * xp.exp(sums))


def leaving(rows: Array, log_decay: Array | None) -> Array:
    """Return `rows` as much as is left of them at the end of the span."""
    if log_decay is None:
        return rows
    return cast(Array, rows * namespace(log_decay).exp(_sums_after(log_decay)))


def whole(memory: Array, log_decay: Array | None) -> Array:
    """Return what is left of a memory ``(..., K, V)`` at the end of the span."""
    if log_decay is None:
        return memory
    xp = namespace(log_decay)
    return mT(xp.exp(xp.sum(log_decay, axis=-2, keepdims=True))) * memory


def scores(
    rows: Array,
    columns: Array,
    log_decay: Array | None,
    *,
    strict: bool = False,
    early: bool = False,
) -> Array:
    """Return ``rows_i^T Diag(Gamma_ij) columns_j``, lower triangular, ``(..., C, C)``.

    `strict` leaves out the pairs of a token with itself, as an `early` read must.
    """
    if log_decay is None or log_decay.shape[-1] == 1:
        pairs = rows @ mT(columns)
        if log_decay is not None:
            pairs = _weights(log_decay, early=early) * pairs
        return cast(Array, namespace(pairs).tril(pairs, k=-int(strict)))
    spans = (rows[..., None, :, :], columns[..., None, :, :])
    row_decay = _before(log_decay) if early else log_decay
    decays = (row_decay[..., None, :, :], log_decay[..., None, :, :])
    return _scores(*spans, *decays, strict=strict, early=early)[..., 0, :, :]


def mixed(pairs: Array, columns: Array, log_decay: Array | None) -> Array:
    """Return ``sum_j pairs_ij Gamma_ij * columns_j`` for lower triangular pairs."""
    if log_decay is None:
        return pairs @ columns
    if log_decay.shape[-1] == 1:
        return (_weights(log_decay, early=False) * pairs) @ columns
    found = _mixed(
        pairs[..., None, :, :], columns[..., None, :, :], log_decay[..., None, :, :]
    )
    return found[..., 0, :, :]


def _scores(
    rows: Array,
    columns: Array,
    row_decay: Array,
    log_decay: Array,
    *,
    strict: bool,
    early: bool,
) -> Array:
    """Do the work of `scores` on ``(..., n, m, K)``, by halves."""
    if rows.shape[-2] == 1:
        products = rows * columns
        own = namespace(products).sum(products, axis=-1, keepdims=True)
        return zeros(tuple(own.shape), like=own) if strict else own
    _, later = halves(rows)
    earlier, _ = halves(columns)
    # What an early read leaves out is the decay of its own row: the first row of the
    # later half still has passed everything up to the row before it.
    reading = later * namespace(row_decay).exp(
        _sums_from_middle(row_decay, early=early)
    )
    below = reading @ mT(leaving(earlier, halves(log_decay)[0]))
    diagonal = _scores(
        doubled(rows),
        doubled(columns),
        doubled(row_decay),
        doubled(log_decay),
        strict=strict,
        early=early,
    )
    return together(diagonal, below)


def _sums_from_middle(row_decay: Array, *, early: bool) -> Array:
    """Return the sums of log-decays that the later half's rows read through."""
    xp = namespace(row_decay)
    _, later = halves(row_decay)
    if early:
        # The first entry belongs to the last row of the earlier half, whose sums
        # `leaving` has counted already.
        later = concat([xp.zeros_like(later[..., :1, :]), later[..., 1:, :]], axis=-2)
    return cast(Array, xp.cumulative_sum(later, axis=-2))


def _mixed(pairs: Array, columns: Array, log_decay: Array) -> Array:
    """Do the work of `mixed` on ``(..., n, m, K)``, by halves."""
    if columns.shape[-2] == 1:
        return pairs * columns
    diagonal, below = apart(pairs)
    first, second = halves(log_decay)
    earlier, _ = halves(columns)
    reached = entering(below @ leaving(earlier, first), second)
    inside = _mixed(diagonal, doubled(columns), doubled(log_decay))
    across = concat([zeros(reached.shape, like=reached), reached], axis=-2)
    return reshape(inside, across.shape) + across


def _weights(log_decay: Array, *, early: bool) -> Array:
    """Return ``Gamma (..., C, C)`` of one log-decay for each token; 1 above."""
    xp = namespace(log_decay)
    length = log_decay.shape[-2]
    rows = _before(log_decay) if early else log_decay
    square = (*log_decay.shape[:-1], length)
    # Row i holds g_i in the columns of earlier tokens; the running sum down a column
    # collects them.
    steps = xp.tril(xp.broadcast_to(rows, square), k=-2 if early else -1)
    return cast(Array, xp.exp(xp.cumulative_sum(steps, axis=-2)))


def _sums_after(log_decay: Array) -> Array:
    """Return ``g_{j+1} + ... + g_end``: summed from the end, not by subtraction."""
    xp = namespace(log_decay)
    following = concat(
        [log_decay[..., 1:, :], xp.zeros_like(log_decay[..., :1, :])], axis=-2
    )
    backwards = xp.cumulative_sum(xp.flip(following, axis=-2), axis=-2)
    return cast(Array, xp.flip(backwards, axis=-2))


def _before(log_decay: Array) -> Array:
    """Shift by one token: ``0, g_0, ..., g_{C-2}``."""
    none = namespace(log_decay).zeros_like(log_decay[..., :1, :])
    return concat([none, log_decay[..., :-1, :]], axis=-2)
