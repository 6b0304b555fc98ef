r"""Gradient of log-decays: a sum over the pairs of tokens that a decay separates.

The state before a chunk counts as a token before all others, the state after it as a
token behind them. With ``M_ij`` the part of the result that token i reads of token j,

    dg_t = sum_{i >= t} sum_{j < t} M_ij,

a cumulative sum up the columns and a sum along the rows. It is no difference of two
sums: a pair that a decay does not separate does not enter, even if it is infinite.
"""

from typing import Any

import numpy as np

from linkern.kernels.numpy.types import Real

__all__ = ["DecayGrad"]

# Rows that are summed together: about the square root of the tokens in a chunk.
_GROUP = 8


class DecayGrad:
    """The matrices ``M`` of some chunks of some heads, and their sums.

    Parameters
    ----------
    heads, chunks, size : int
        Heads, chunks of each, and tokens in a chunk.
    dtype : dtype
        Dtype of the computation.
    """

    def __init__(self, heads: int, chunks: int, size: int, dtype: Any) -> None:
        count = -(-(size + 1) // _GROUP)
        rows = count * _GROUP
        # The first column is the state before the chunk, the row behind the tokens is
        # the state after it; further rows are zeros. Rows are the first axis, so that
        # all chunks are summed in one stride.
        matrix = np.zeros((rows, heads, chunks, size + 1), dtype)
        tokens = np.moveaxis(matrix[:size], 0, 2)
        #: Token i reads token j; masked entries may hold anything.
        self.score_products = tokens[..., 1:]
        #: Tokens read the state before the chunk.
        self.state_reads = tokens[..., :1]
        #: The state after the chunk reads tokens, and the state before the chunk.
        self.state_writes = matrix[size, ..., 1:]
        self.state_carried = matrix[size, ..., 0]
        groups = matrix.reshape(count, _GROUP, *matrix.shape[1:])
        self._within_groups = [
            (groups[:, i], groups[:, i + 1]) for i in reversed(range(_GROUP - 1))
        ]
        self._across_groups = [
            (groups[i], groups[i + 1, 0]) for i in reversed(range(count - 1))
        ]
        self._sums = matrix[:size]
        self._bits = self._sums.view(f"i{matrix.itemsize}")
        mask = -np.tri(size, size + 1, dtype=self._bits.dtype)
        self._mask = mask[:, None, None, :]
        self._ones = np.ones((size + 1, 1), dtype)
        self._result = np.empty((size, heads, chunks, 1), dtype)

    def write(self, output: Real) -> None:
        """Write the gradients ``(heads, chunks, tokens, 1)``; overwrites ``M``."""
        for row, later in self._within_groups:
            np.add(row, later, out=row)
        for group, later in self._across_groups:
            np.add(group, later, out=group)
        np.bitwise_and(self._bits, self._mask, out=self._bits)
        np.matmul(self._sums, self._ones, out=self._result)
        np.copyto(output, np.moveaxis(self._result, 0, 2), casting="unsafe")
