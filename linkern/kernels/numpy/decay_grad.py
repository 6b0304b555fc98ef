r"""The gradient of log-decays: a sum over exactly the pairs that a decay lies between.

The memory before a chunk is a token before all others, and the memory after it one
behind them. With ``M_ij`` the part of the result that token i reads of token j,

    dg_t = sum_{i >= t} sum_{j < t} M_ij,

so a sum up the columns and one along the rows. It is no difference of two sums: what a
decay does not lie between does not enter, not even if it is infinite.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PairSums"]

Real = NDArray[Any]

# Rows that are summed up together: about the root of the tokens in a chunk.
_TOGETHER = 8


class PairSums:
    """What goes from token to token in some chunks of some heads.

    Parameters
    ----------
    heads, chunks, size : int
        How many of what; `size` is the number of tokens in a chunk.
    dtype : dtype
        Of the computation.
    """

    def __init__(self, heads: int, chunks: int, size: int, dtype: Any) -> None:
        count = -(-(size + 1) // _TOGETHER)
        rows = count * _TOGETHER
        # Rows read, columns are read: the first column is the memory before the chunk,
        # the row behind the tokens is the memory after it. More rows stay empty. They
        # come first, so that all chunks are summed in one stride.
        whole = np.zeros((rows, heads, chunks, size + 1), dtype)
        used = np.moveaxis(whole[:size], 0, 2)
        #: Token i of token j; those not seen may hold anything.
        self.pairs = used[..., 1:]
        #: Each token of the memory before.
        self.entering = used[..., :1]
        #: The memory after of each token, and of the memory before.
        self.leaving, self.whole = whole[size, ..., 1:], whole[size, ..., 0]
        blocks = whole.reshape(count, _TOGETHER, *whole.shape[1:])
        self._inside = [
            (blocks[:, i], blocks[:, i + 1]) for i in reversed(range(_TOGETHER - 1))
        ]
        self._across = [
            (blocks[i], blocks[i + 1, 0]) for i in reversed(range(count - 1))
        ]
        self._sums = whole[:size]
        self._bits = self._sums.view(f"i{whole.itemsize}")
        mask = -np.tri(size, size + 1, dtype=self._bits.dtype)
        self._mask = mask[:, None, None, :]
        self._ones = np.ones((size + 1, 1), dtype)
        self._found = np.empty((size, heads, chunks, 1), dtype)

    def write(self, output: Real) -> None:
        """Write the gradients ``(heads, chunks, tokens, 1)``; the sums are used up."""
        for row, later in self._inside:
            np.add(row, later, out=row)
        for block, later in self._across:
            np.add(block, later, out=block)
        np.bitwise_and(self._bits, self._mask, out=self._bits)
        np.matmul(self._sums, self._ones, out=self._found)
        np.copyto(output, np.moveaxis(self._found, 0, 2), casting="unsafe")
