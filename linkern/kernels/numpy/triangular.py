"""Lower triangular matrices by halves, in place: the twin of `linkern.core.triangular`.

    M = [ A  0 ]      A and B are halves of the same kind, C is a full block.
        [ C  B ]

All blocks ``C`` of one size are one view, and so are the rows that they belong to:
nothing is joined or taken apart, each level is written where it stays.
"""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

__all__ = ["Inverse", "below", "diagonal", "halves", "sizes"]

Real = NDArray[Any]


def sizes(rows: int) -> list[int]:
    """Return the sizes of the blocks ``C`` of a matrix, from the smallest."""
    return [1 << level for level in range(rows.bit_length() - 1)]


def halves(rows: Real, block: int) -> tuple[Real, Real]:
    """Cut rows ``(..., R, D)`` into pairs of blocks: the earlier ones, the later."""
    *lead, length, dim = rows.shape
    pairs = rows.reshape(*lead, length // (2 * block), 2, block, dim, copy=False)
    return pairs[..., 0, :, :], pairs[..., 1, :, :]


def below(matrices: Real, block: int, sorts: int = 1) -> Real:
    """Return the blocks between the halves of every pair: ``(..., n, m, m)``, a view.

    The diagonal of ``(..., C, C)`` is cut into blocks of `block`; these lie below each
    second one's left neighbour. With several `sorts` of rows, the rows of one token
    follow each other: ``(..., C S, C)`` gives ``(..., n, m S, m)``.
    """
    *outer, down, right = matrices.strides
    count = matrices.shape[-1] // (2 * block)
    return as_strided(
        matrices[..., block * sorts :, :],
        (*matrices.shape[:-2], count, block * sorts, block),
        (*outer, 2 * block * (sorts * down + right), down, right),
    )


def diagonal(matrices: Real) -> Real:
    """Return the diagonals of ``(..., C, C)``, a view that may be written to."""
    *outer, down, right = matrices.strides
    return as_strided(matrices, matrices.shape[:-1], (*outer, down + right))


class Inverse:
    """``(I - N)^{-1}`` in place of strictly lower triangular ``N (..., R, R)``.

    Parameters
    ----------
    matrices : array
        Where ``N`` will be, with zeros above the diagonal.
    """

    def __init__(self, matrices: Real) -> None:
        blocks = sizes(matrices.shape[-1])
        self._own = diagonal(matrices)
        self._below = [below(matrices, size) for size in blocks]
        self._pairs = [_diagonal_blocks(matrices, size) for size in blocks]
        self._found = [np.empty(x.shape, x.dtype) for x in self._below]

    def solve(self) -> None:
        """Turn ``C`` into ``B' C A'``, from the smallest blocks to the largest."""
        self._own[...] = 1
        levels = zip(self._below, self._pairs, self._found, strict=True)
        for block, (first, second), found in levels:
            if block.shape[-1] == 2:
                _by_entries(
                    block, first[..., 1, 0], second[..., 1, 0], found[..., 0, 0]
                )
            elif block.shape[-1] > 2:
                np.matmul(block, first, out=found)
                np.matmul(second, found, out=block)


def _by_entries(block: Real, first: Real, second: Real, spare: Real) -> None:
    """Do so for blocks of two rows, for which a product each takes longer."""
    for row in range(2):
        np.multiply(block[..., row, 1], first, out=spare)
        np.add(block[..., row, 0], spare, out=block[..., row, 0])
    for column in range(2):
        np.multiply(second, block[..., 0, column], out=spare)
        np.add(block[..., 1, column], spare, out=block[..., 1, column])


def _diagonal_blocks(matrices: Real, block: int) -> tuple[Real, Real]:
    """Return the blocks ``A`` and ``B`` of all pairs, ``(..., n, m, m)``, as views."""
    *outer, down, right = matrices.strides
    shape = (*matrices.shape[:-2], matrices.shape[-1] // (2 * block), block, block)
    steps = (*outer, 2 * block * (down + right), down, right)
    second = matrices[..., block:, block:]
    return as_strided(matrices, shape, steps), as_strided(second, shape, steps)
