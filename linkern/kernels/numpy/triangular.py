"""Lower triangular matrices by recursive halving, in place (`core.triangular`).

    M = [ A  0 ]      A and B are halves of the same kind, C is a full block.
        [ C  B ]

All blocks ``C`` of one size are one strided view, and so are the rows that they belong
to: each level is written where it is stored, without concatenation.
"""

import numpy as np
from numpy.lib.stride_tricks import as_strided

from linkern.core.causal import right_product
from linkern.kernels.numpy.causal import all_finite, lower_product
from linkern.kernels.numpy.types import Real

__all__ = ["Inverse", "block_sizes", "diagonal", "halves", "off_diagonal"]


def block_sizes(rows: int) -> list[int]:
    """Return the sizes of the blocks ``C`` of a matrix, smallest first."""
    return [1 << level for level in range(rows.bit_length() - 1)]


def halves(rows: Real, block: int) -> tuple[Real, Real]:
    """Cut rows ``(..., R, D)`` into pairs of blocks; return the earlier and the later.

    Both are views.
    """
    *lead, length, dim = rows.shape
    pairs = rows.reshape(*lead, length // (2 * block), 2, block, dim, copy=False)
    return pairs[..., 0, :, :], pairs[..., 1, :, :]


def off_diagonal(matrices: Real, block: int, kinds: int = 1) -> Real:
    """Return the blocks ``C`` of one size, ``(..., n, m, m)``, as a view.

    The diagonal of ``(..., C, C)`` is cut into blocks of `block` tokens; the blocks
    returned couple each second one with its predecessor. With several `kinds` of rows
    per token, adjacent in memory, ``(..., C S, C)`` gives ``(..., n, m S, m)``.
    """
    *outer, down, right = matrices.strides
    count = matrices.shape[-1] // (2 * block)
    return as_strided(
        matrices[..., block * kinds :, :],
        (*matrices.shape[:-2], count, block * kinds, block),
        (*outer, 2 * block * (kinds * down + right), down, right),
    )


def diagonal(matrices: Real) -> Real:
    """Return the diagonals of ``(..., C, C)`` as a writable view."""
    *outer, down, right = matrices.strides
    return as_strided(matrices, matrices.shape[:-1], (*outer, down + right))


class Inverse:
    """``(I - N)^{-1}`` in place of strictly lower triangular ``N (..., R, R)``.

    Parameters
    ----------
    matrices : array
        Storage of ``N``, with zeros above the diagonal.
    """

    def __init__(self, matrices: Real) -> None:
        blocks = block_sizes(matrices.shape[-1])
        self._diagonal = diagonal(matrices)
        self._off_diagonal = [off_diagonal(matrices, size) for size in blocks]
        self._diagonal_blocks = [_diagonal_blocks(matrices, size) for size in blocks]
        self._scratch = [np.empty(x.shape, x.dtype) for x in self._off_diagonal]

    @property
    def is_finite(self) -> bool:
        """True if no entry of the solution is an infinity or NaN."""
        # What is not finite in a block is not finite in the next larger one either.
        return not self._off_diagonal or all_finite(self._off_diagonal[-1])

    def solve(self, *, finite: bool = True) -> None:
        """Replace ``C`` by ``B' C A'``, from the smallest blocks to the largest.

        Unless `finite`, zeros of ``A'`` and ``B'`` hold back what is not.
        """
        self._diagonal[...] = 1
        levels = zip(
            self._off_diagonal, self._diagonal_blocks, self._scratch, strict=True
        )
        for block, (first, second), scratch in levels:
            if block.shape[-1] == 2:
                _solve_two(
                    block, first[..., 1, 0], second[..., 1, 0], scratch[..., 0, 0]
                )
            elif block.shape[-1] > 2:
                if finite:
                    np.matmul(block, first, out=scratch)
                else:
                    scratch[...] = right_product(block, first)
                lower_product(second, scratch, out=block, finite=finite)


def _solve_two(block: Real, first: Real, second: Real, scratch: Real) -> None:
    """Do the same for 2 x 2 blocks entry by entry, which is faster than products."""
    for row in range(2):
        np.multiply(block[..., row, 1], first, out=scratch)
        np.add(block[..., row, 0], scratch, out=block[..., row, 0])
    for column in range(2):
        np.multiply(second, block[..., 0, column], out=scratch)
        np.add(block[..., 1, column], scratch, out=block[..., 1, column])


def _diagonal_blocks(matrices: Real, block: int) -> tuple[Real, Real]:
    """Return the blocks ``A`` and ``B`` of all pairs, ``(..., n, m, m)``, as views."""
    *outer, down, right = matrices.strides
    shape = (*matrices.shape[:-2], matrices.shape[-1] // (2 * block), block, block)
    steps = (*outer, 2 * block * (down + right), down, right)
    second = matrices[..., block:, block:]
    return as_strided(matrices, shape, steps), as_strided(second, shape, steps)
