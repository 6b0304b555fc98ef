r"""Decays of a span of a pair of memories, the first of which follows the second.

A token j writes into the second memory. What of that a token i reads in the first is

    C_ij = sum_{j<=r<=i} Gamma_ir m_r Gamma'_rj

with ``Gamma`` and ``Gamma'`` the decays of both (`linkern.core.decay`) and ``m_r`` the
share that the first gains at token r: it stayed in the second memory until r, and in
the first from there on. This is a product of two triangular matrices, of decays that
are exponentials of sums, and nothing cancels in it.
"""

from linkern.array import concat, mT, namespace, ones
from linkern.core.causal import chained_product, lower_product, lower_scores
from linkern.core.decay import Decay
from linkern.typing import Array

__all__ = ["PairDecay"]


class PairDecay:
    """The decays of one span of tokens, as `Decay` is for one memory.

    Rows have the channels of one memory where they are given, and those of both where
    they meet the memory. A read is `early` if it happens before its own token.

    Parameters
    ----------
    log_decay : array (..., C, 2) or None
        Those of the first and of the second memory; None for none.
    follow : array (..., C, 1)
        ``m``.
    """

    def __init__(self, log_decay: Array | None, follow: Array) -> None:
        columns = slice(None, 1), slice(1, None)
        self._first, self._second = (
            Decay(None if log_decay is None else log_decay[..., x]) for x in columns
        )
        self._one = ones(tuple(follow.shape), like=follow)
        in_first = self._first.scores(self._one, self._one)
        in_second = follow * self._second.scores(self._one, self._one)
        in_second = namespace(follow).tril(in_second)  # a share may be no number
        self._passed = chained_product(in_first, in_second)
        self._entered = lower_product(
            in_first, follow * self._second.entering(self._one)
        )

    def entering(self, rows: Array, *, early: bool = False) -> Array:
        """Return `rows` as they read both memories at the start of the span."""
        first, second = self._first.entering(self._one, early=early), self._entered
        if early:
            second = _before(second)
        return concat([first * rows, second * rows], axis=-1)

    def leaving(self, rows: Array) -> Array:
        """Return `rows` as much as is left of them in both at the end of the span."""
        left = mT(self._passed[..., -1:, :])
        return concat([left * rows, self._second.leaving(rows)], axis=-1)

    def whole(self) -> Array:
        """Return what is left of the first, what it gains, and what the second keeps.

        One number each, ``(..., 3, 1)``.
        """
        first, second = (x.entering(self._one) for x in (self._first, self._second))
        last = [x[..., -1:, :] for x in (first, self._entered, second)]
        return concat(last, axis=-2)

    def through(self, remaining: Array | None, memory: Array) -> Array:
        """Return the memory at the end of a span without its writes, from `whole`."""
        assert remaining is not None
        half = memory.shape[-2] // 2
        first, second = memory[..., :half, :], memory[..., half:, :]
        kept, gained, left = (remaining[..., i : i + 1, :] for i in range(3))
        return concat([kept * first + gained * second, left * second], axis=-2)

    def scores(
        self, rows: Array, columns: Array, *, strict: bool = False, early: bool = False
    ) -> Array:
        """Return ``C_ij rows_i^T columns_j``, lower triangular."""
        weights = _before(self._passed) if early else self._passed
        return weights * lower_scores(rows, columns, strict=strict)


def _before(rows: Array) -> Array:
    """Return the row of the token before for each token; zeros for the first."""
    none = namespace(rows).zeros_like(rows[..., :1, :])
    return concat([none, rows[..., :-1, :]], axis=-2)
