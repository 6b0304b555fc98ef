r"""Decays of a span: between its tokens, and between the memory and its edges.

A token j written into the memory has been forgotten by the factor

    Gamma_ij = exp(g_{j+1} + ... + g_i)          for each key channel

when token i reads. Every such factor is formed from exponentials of *sums of
log-decays*, never of a difference of two sums, and never of anything positive: so
nothing overflows, ``-inf`` forgets exactly, and a strong gate leaves the weights on
either side of it as accurate as they would be without it.

One number for each token makes a matrix of weights. One for each channel cannot (it
would take ``C^2 K`` numbers), but between an earlier and a later half of the tokens,
``Gamma_ij`` is what is lost up to the middle times what is lost after it: a product of
two matrices, for each level of `linkern.core.triangular`.

A read is `early` if it happens before the decay of its own token: ``g_i`` is left out.
"""

from typing import NamedTuple, cast

from linkern.array import concat, mT, namespace, reshape, zeros
from linkern.core.causal import lower_product, lower_scores
from linkern.core.triangular import apart, paired, together
from linkern.typing import Array

__all__ = ["Decay"]


class _Sums(NamedTuple):
    """Sums of log-decays inside blocks of one size, ``(..., n, m, K)``.

    Parameters
    ----------
    until : array
        From the first token of the block to each token, this one included.
    after : array
        From the token that follows to the last of the block.
    """

    until: Array
    after: Array


class Decay:
    """The decays of one span of tokens.

    Parameters
    ----------
    log_decay : array (..., C, 1) or (..., C, K), or None
        One number for each token, one for each key channel (then ``C`` is a power of
        two), or nothing is forgotten.
    """

    def __init__(self, log_decay: Array | None) -> None:
        self._log_decay = log_decay
        self._by_channel = log_decay is not None and log_decay.shape[-1] > 1
        self._known: dict[tuple[str, bool], list[Array]] = {}
        if log_decay is not None:
            self._levels = (
                _levels(log_decay) if self._by_channel else [_flat(log_decay)]
            )

    def entering(self, rows: Array, *, early: bool = False) -> Array:
        """Return `rows` as they read the memory at the start of the span."""
        if self._log_decay is None:
            return rows
        return rows * self._reading(early=early)[-1]

    def leaving(self, rows: Array) -> Array:
        """Return `rows` as much as is left of them at the end of the span."""
        if self._log_decay is None:
            return rows
        return rows * self._left()[-1]

    def whole(self) -> Array | None:
        """Return what is left of each row of a memory at the end, ``(..., K, 1)``."""
        if self._log_decay is None:
            return None
        xp = namespace(self._log_decay)
        total = xp.sum(self._log_decay, axis=-2, keepdims=True)
        return mT(xp.exp(total))

    def through(self, remaining: Array | None, memory: Array) -> Array:
        """Return the memory at the end of a span without its writes, from `whole`."""
        return memory if remaining is None else remaining * memory

    def scores(
        self, rows: Array, columns: Array, *, strict: bool = False, early: bool = False
    ) -> Array:
        """Return ``rows_i^T Diag(Gamma_ij) columns_j``, lower triangular.

        `strict` leaves out the pairs of a token with itself, as an `early` read must.
        """
        if not self._by_channel:
            pairs = lower_scores(rows, columns, strict=strict)
            if self._log_decay is None:
                return pairs
            return self._weights(early=early) * pairs
        products = rows * columns
        diagonal = namespace(products).sum(products, axis=-1, keepdims=True)[..., None]
        scores = zeros(tuple(diagonal.shape), like=diagonal) if strict else diagonal
        for reading, left in zip(self._reading(early=early), self._left(), strict=True):
            if scores.shape[-3] == 1:
                break
            _, later = paired(rows, scores.shape[-1])
            earlier, _ = paired(columns, scores.shape[-1])
            scores = together(scores, (later * reading) @ mT(earlier * left))
        return scores[..., 0, :, :]

    def mixed(self, pairs: Array, columns: Array) -> Array:
        """Return ``sum_j pairs_ij Gamma_ij * columns_j`` for lower triangular pairs."""
        if self._log_decay is None:
            return lower_product(pairs, columns)
        if not self._by_channel:
            return lower_product(self._weights(early=False) * pairs, columns)
        below, rest = [], pairs[..., None, :, :]
        while rest.shape[-1] > 1:
            rest, block = apart(rest)
            below.append(block)
        mixed = rest * columns[..., None, :]  # (..., C, 1, K): each token with itself
        levels = zip(self._reading(early=False), self._left(), strict=True)
        for block, (reading, left) in zip(reversed(below), levels, strict=False):
            earlier, _ = paired(columns, block.shape[-1])
            reached = reading * (block @ (earlier * left))
            *lead, n, m, size = reached.shape
            halves = reshape(mixed, (*lead, n, 2, m, size))
            later = halves[..., 1, :, :] + reached
            mixed = concat([halves[..., 0, :, :], later], axis=-2)
        return mixed[..., 0, :, :]

    def _reading(self, *, early: bool) -> list[Array]:
        """Return the factors of rows that read: later halves, and the whole span."""
        if ("reading", early) not in self._known:
            sums = [x.until for x in self._levels]
            if early:
                sums = [_before(x) for x in sums]
            self._known["reading", early] = _exponentials(sums, later=True)
        return self._known["reading", early]

    def _left(self) -> list[Array]:
        """Return the factors of what was written: earlier halves, and the span."""
        if ("left", False) not in self._known:
            sums = [x.after for x in self._levels]
            self._known["left", False] = _exponentials(sums, later=False)
        return self._known["left", False]

    def _weights(self, *, early: bool) -> Array:
        """Return ``Gamma (..., C, C)`` of one log-decay for each token."""
        if ("weights", early) not in self._known:
            assert self._log_decay is not None
            self._known["weights", early] = [_weights(self._log_decay, early=early)]
        return self._known["weights", early][0]


def _levels(log_decay: Array) -> list[_Sums]:
    """Return the sums inside blocks of 1, 2, 4, ... C tokens.

    Two blocks make one of twice the size: the later one's sums get what the earlier one
    sums up to, and the other way round. Sums only grow; nothing is subtracted.
    """
    single = log_decay[..., None, :]
    levels = [_Sums(single, namespace(single).zeros_like(single))]
    while levels[-1].until.shape[-3] > 1:
        (first, second), (_, last) = map(_pair, levels[-1])
        earlier, _ = _pair(levels[-1].after)
        until = concat([first, second + first[..., -1:, :]], axis=-2)
        after = concat([earlier + second[..., -1:, :], last], axis=-2)
        levels.append(_Sums(until, after))
    return levels


def _flat(log_decay: Array) -> _Sums:
    """Return the sums inside one block, of any size."""
    xp = namespace(log_decay)
    nothing = xp.zeros_like(log_decay[..., :1, :])
    following = concat([log_decay[..., 1:, :], nothing], axis=-2)
    backwards = xp.cumulative_sum(xp.flip(following, axis=-2), axis=-2)
    until, after = (
        xp.cumulative_sum(log_decay, axis=-2),
        xp.flip(backwards, axis=-2),
    )
    return _Sums(until[..., None, :, :], after[..., None, :, :])


def _pair(blocks: Array) -> tuple[Array, Array]:
    """Return the earlier and the later blocks of all pairs of blocks."""
    *lead, n, m, size = blocks.shape
    pairs = reshape(blocks, (*lead, n // 2, 2, m, size))
    return pairs[..., 0, :, :], pairs[..., 1, :, :]


def _exponentials(sums: list[Array], *, later: bool) -> list[Array]:
    """Return the exponentials that each level needs, and last those of the span."""
    *levels, span = sums
    xp = namespace(span)
    return [*(xp.exp(_pair(x)[later]) for x in levels), xp.exp(span[..., 0, :, :])]


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


def _before(sums: Array) -> Array:
    """Shift sums by one token inside their block: a block's first row sums nothing."""
    none = namespace(sums).zeros_like(sums[..., :1, :])
    return concat([none, sums[..., :-1, :]], axis=-2)
