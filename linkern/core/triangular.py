"""Lower triangular matrices by recursive halves: built, inverted, multiplied in blocks.

    M = [ A  0 ]      A and B are halves of the same kind, C is a full block.
        [ C  B ]

Everything that a span of tokens needs of pairs of tokens is a lower triangular matrix
over them. Cutting it in half again and again leaves blocks ``C`` between earlier and
later tokens, which are plain matrix products, and a diagonal. All halves of one level
are handled in one call, as a further leading axis. Sizes are powers of two.
"""

from linkern.array import concat, namespace, on_jax, reshape, zeros
from linkern.core.compiled import unit_lower_inverse
from linkern.typing import Array

__all__ = ["apart", "inverse", "paired", "power_of_two", "together"]


def power_of_two(size: int) -> int:
    """Return the least power of two that is not less."""
    return 1 << max(size - 1, 0).bit_length()


def paired(rows: Array, size: int) -> tuple[Array, Array]:
    """Cut rows ``(..., C, D)`` into pairs of blocks: the earlier ones, the later."""
    *lead, length, dim = rows.shape
    pairs = reshape(rows, (*lead, length // (2 * size), 2, size, dim))
    return pairs[..., 0, :, :], pairs[..., 1, :, :]


def together(diagonal: Array, below: Array) -> Array:
    """Join ``(..., 2 n, m, m)`` and ``(..., n, m, m)`` to ``(..., n, 2 m, 2 m)``."""
    *lead, n, m, _ = below.shape
    pairs = reshape(diagonal, (*lead, n, 2, m, m))
    first, second = pairs[..., 0, :, :], pairs[..., 1, :, :]
    upper = concat([first, zeros((*lead, n, m, m), like=below)], axis=-1)
    return concat([upper, concat([below, second], axis=-1)], axis=-2)


def apart(matrix: Array) -> tuple[Array, Array]:
    """Undo `together`."""
    *lead, n, m, _ = matrix.shape
    middle = m // 2
    first = matrix[..., :middle, :middle]
    second = matrix[..., middle:, middle:]
    stacked = concat([first[..., None, :, :], second[..., None, :, :]], axis=-3)
    diagonal = reshape(stacked, (*lead, 2 * n, middle, middle))
    return diagonal, matrix[..., middle:, :middle]


def inverse(strictly_lower: Array) -> Array:
    """Return ``(I + N)^{-1}`` for strictly lower triangular ``N (..., m, m)``.

    The inverse of the picture above is ``[A', 0; -B' C A', B']``: two products for each
    level, and no pivot, so that no row can be touched by a later one.
    """
    if on_jax(strictly_lower):
        return unit_lower_inverse(strictly_lower)
    xp = namespace(strictly_lower)
    *lead, m, _ = strictly_lower.shape
    levels, rest = [], strictly_lower[..., None, :, :]
    while rest.shape[-1] > 1:
        rest, below = apart(rest)
        levels.append(below)
    inverses = xp.ones_like(rest)
    for below in reversed(levels):
        n, size = below.shape[-3], below.shape[-1]
        pairs = reshape(inverses, (*lead, n, 2, size, size))
        first, second = pairs[..., 0, :, :], pairs[..., 1, :, :]
        inverses = together(inverses, -(second @ (below @ first)))
    return reshape(inverses, (*lead, m, m))
