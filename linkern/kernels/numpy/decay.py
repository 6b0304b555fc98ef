r"""Decays of a chunk with one log-decay per token, computed in place.

The same sums as in `linkern.core.decay`, in buffers: two neighbouring blocks of tokens
form one of twice the size, and the pairs of a later with an earlier token form the
off-diagonal block between them. Sums are only added, never subtracted, so ``-inf`` is
exact.
"""

from typing import Any, NamedTuple

import numpy as np

from linkern.core.triangular import power_of_two
from linkern.kernels.numpy.triangular import off_diagonal
from linkern.kernels.numpy.types import Real

__all__ = ["TokenDecay"]


class _Level(NamedTuple):
    """Views of one block size; the first axes of each are heads and chunks."""

    later_cumsum: Real  # sums from the start of the later block through each token
    later_total: Real  # sums of the later blocks
    earlier_total: Real  # sums of the earlier blocks
    earlier_rest: Real  # sums after each token to the end of the earlier block
    columns: Real  # later_cumsum as columns
    rows: Real  # earlier_rest as rows
    pairs: Real  # sums between a token of the earlier and one of the later block


class TokenDecay:
    """Decays within some chunks of some heads.

    Parameters
    ----------
    heads, chunks, size : int
        Heads, chunks of each, and tokens in a chunk.
    dtype : dtype
        Dtype of the computation.
    masked : bool
        True if the decay from a later to an earlier token is 0 in place of 1.
    """

    def __init__(
        self, heads: int, chunks: int, size: int, dtype: Any, *, masked: bool = False
    ) -> None:
        rows = power_of_two(size)
        lead = (heads, chunks)
        # Padding up to a power of two has log-decay 0.
        self._cumsum = np.zeros((*lead, rows), dtype)
        self._rest = np.zeros((*lead, rows), dtype)
        sums = np.zeros((*lead, rows, rows), dtype)
        if masked:
            sums[...] = np.triu(np.full((rows, rows), -np.inf), k=1)
        self._levels = []
        block = 1
        while block < rows:
            self._levels.append(_level(self._cumsum, self._rest, sums, block))
            block *= 2
        self._sums = sums[..., :size, :size]
        self._size = size
        #: Decay from an earlier to a later token, ``(..., C, C)``; 1 elsewhere,
        #: or 0 behind its token if `masked`.
        self.pair_decay = np.empty((*lead, size, size), dtype)
        #: ``exp(g_cumsum)``: decay from the start of the chunk to each token.
        self.decay_from_start = np.empty((*lead, size, 1), dtype)
        #: ``exp(g_last - g_cumsum)``: decay from each token to the end of the chunk.
        self.decay_to_end = np.empty((*lead, 1, size), dtype)

    def load(self, log_decay: Real) -> None:
        """Load log-decays ``(heads, chunks, tokens)`` of any real dtype."""
        self._cumsum[..., : self._size] = log_decay
        self._cumsum[..., self._size :] = 0
        self._rest[...] = 0
        for level in self._levels:
            np.add(level.columns, level.rows, out=level.pairs)
            np.add(level.earlier_rest, level.later_total, out=level.earlier_rest)
            np.add(level.later_cumsum, level.earlier_total, out=level.later_cumsum)
        np.exp(self._sums, out=self.pair_decay)
        np.exp(self._cumsum[..., : self._size], out=self.decay_from_start[..., 0])
        np.exp(self._rest[..., : self._size], out=self.decay_to_end[..., 0, :])


def _level(cumsum: Real, rest: Real, sums: Real, block: int) -> _Level:
    """Return the views of pairs of blocks of `block` tokens."""
    *lead, rows = cumsum.shape
    pairs = (*lead, rows // (2 * block), 2, block)
    cumsums, rests = cumsum.reshape(pairs), rest.reshape(pairs)
    later, earlier = cumsums[..., 1, :], rests[..., 0, :]
    return _Level(
        later,
        later[..., -1:],
        cumsums[..., 0, -1:],
        earlier,
        later[..., :, None],
        earlier[..., None, :],
        off_diagonal(sums, block),
    )
