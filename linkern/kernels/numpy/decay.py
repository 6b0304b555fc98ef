r"""One log-decay for each token: what it does inside a chunk, in place.

The same sums as in `linkern.core.decay`, laid into buffers: two neighbouring blocks of
tokens make one of twice the size, and the pairs of a later token with an earlier one
are the block between them. Sums only grow, nothing is subtracted, ``-inf`` is exact.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linkern.core.triangular import power_of_two
from linkern.kernels.numpy.triangular import below

__all__ = ["TokenDecay"]

Real = NDArray[Any]


class _Level(NamedTuple):
    """Views of one size of blocks; each has the axes of heads and chunks first."""

    later: Real  # sums up to each token of the later blocks
    whole: Real  # their last ones: sums of the later blocks
    first: Real  # sums of the earlier blocks
    earlier: Real  # sums of what follows each token of the earlier blocks
    columns: Real  # later, as columns
    rows: Real  # earlier, as rows
    pairs: Real  # sums between the two


class TokenDecay:
    """The decays of some chunks of some heads.

    Parameters
    ----------
    heads, chunks, size : int
        How many of what; `size` is the number of tokens in a chunk.
    dtype : dtype
        Of the computation.
    """

    def __init__(self, heads: int, chunks: int, size: int, dtype: Any) -> None:
        rows = power_of_two(size)
        lead = (heads, chunks)
        # Tokens beyond `size` fill up to a power of two: they decay nothing.
        self._until = np.zeros((*lead, rows), dtype)
        self._after = np.zeros((*lead, rows), dtype)
        sums = np.zeros((*lead, rows, rows), dtype)
        self._levels = []
        block = 1
        while block < rows:
            self._levels.append(_level(self._until, self._after, sums, block))
            block *= 2
        self._sums = sums[..., :size, :size]
        self._size = size
        #: What is left of an earlier token when a later one reads; 1 above that.
        self.between = np.empty((*lead, size, size), dtype)
        #: What is left of the memory before the chunk when each token reads.
        self.entering = np.empty((*lead, size, 1), dtype)
        #: What is left of each token at the end of the chunk.
        self.leaving = np.empty((*lead, 1, size), dtype)

    def load(self, log_decay: Real) -> None:
        """Take in log-decays ``(heads, chunks, tokens)``, of any real dtype."""
        self._until[..., : self._size] = log_decay
        self._until[..., self._size :] = 0
        self._after[...] = 0
        for level in self._levels:
            np.add(level.columns, level.rows, out=level.pairs)
            np.add(level.earlier, level.whole, out=level.earlier)
            np.add(level.later, level.first, out=level.later)
        np.exp(self._sums, out=self.between)
        np.exp(self._until[..., : self._size], out=self.entering[..., 0])
        np.exp(self._after[..., : self._size], out=self.leaving[..., 0, :])


def _level(until: Real, after: Real, sums: Real, block: int) -> _Level:
    """Cut the buffers into pairs of blocks."""
    *lead, rows = until.shape
    pairs = (*lead, rows // (2 * block), 2, block)
    before, behind = until.reshape(pairs), after.reshape(pairs)
    later, earlier = before[..., 1, :], behind[..., 0, :]
    return _Level(
        later,
        later[..., -1:],
        before[..., 0, -1:],
        earlier,
        later[..., :, None],
        earlier[..., None, :],
        below(sums, block),
    )
