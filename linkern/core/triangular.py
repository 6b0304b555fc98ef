"""Lower triangular matrices by recursive halves: built, inverted, multiplied in blocks.

    M = [ A  0 ]      A and B are halves of the same kind, C is a full block.
        [ C  B ]

Everything that a span of tokens needs of pairs of tokens is a lower triangular matrix
over them. Cutting it in half again and again leaves blocks ``C`` between earlier and
later tokens, which are plain matrix products, and a diagonal. All halves of one level
are handled in one call, as a further leading axis. Sizes are powers of two.
"""

from collections.abc import Callable
from operator import matmul
from typing import cast

from linkern.array import (
    all_finite,
    concat,
    mT,
    namespace,
    on_jax,
    reshape,
    zeros,
)
from linkern.core.causal import lower_product, right_product, upper_product
from linkern.core.compiled import unit_lower_inverse
from linkern.core.derivatives import Rule, ruled
from linkern.typing import Array

__all__ = ["INVERSE", "apart", "inverse", "paired", "power_of_two", "together"]


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
    if strictly_lower.shape[-1] == 1:  # nothing is below the diagonal
        return cast(Array, namespace(strictly_lower).ones_like(strictly_lower))
    return ruled(INVERSE, strictly_lower)


def _held_back(strictly_lower: Array) -> Array:
    """Return the inverse, no row of which sees what is not finite in a later one."""
    if on_jax(strictly_lower):
        return _solved(strictly_lower)
    result = _inverse(strictly_lower, matmul, matmul)
    if all_finite(result):
        return result
    return _inverse(strictly_lower, lower_product, right_product)


def _solved(strictly_lower: Array) -> Array:
    """Return the inverse by a solver of JAX, NaN where it depends on no finite number.

    Entry ``(i, j)`` depends on the entries ``(k, l)`` with ``j <= l < k <= i``.
    """
    xp = namespace(strictly_lower)
    finite = xp.isfinite(strictly_lower)
    nothing = xp.zeros_like(strictly_lower)
    clean = unit_lower_inverse(xp.where(finite, strictly_lower, nothing))
    positions = xp.arange(strictly_lower.shape[-1])
    last = xp.max(xp.where(finite, -1, positions), axis=-1)
    above = xp.tril(xp.ones(strictly_lower.shape[-2:], dtype=bool))
    last = xp.max(xp.where(above, last[..., None, :], -1), axis=-1, keepdims=True)
    return cast(Array, xp.where(positions <= last, float("nan"), clean))


def _inverse(
    strictly_lower: Array,
    from_the_left: Callable[[Array, Array], Array],
    from_the_right: Callable[[Array, Array], Array],
) -> Array:
    """Return the inverse by two functions that multiply by a triangular matrix."""
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
        reached = from_the_right(below, first)
        inverses = together(inverses, -from_the_left(second, reached))
    return reshape(inverses, (*lead, m, m))


def _pulled(cotangent: Array, result: Array, _: Array) -> Array:
    """Return the cotangent of ``N``: ``-M^T C M^T`` below the diagonal."""
    xp = namespace(result)
    right = lower_product(result, mT(xp.tril(cotangent)))
    both = upper_product(mT(result), mT(right))
    return cast(Array, -xp.tril(both, k=-1))


def _moved(tangent: Array, result: Array, _: Array) -> Array:
    """Return the tangent of the inverse: ``-M dN M``."""
    xp = namespace(result)
    below = xp.tril(tangent, k=-1)
    right = mT(upper_product(mT(result), mT(below)))
    return cast(Array, -xp.tril(lower_product(result, right)))


def _plainly_moved(tangent: Array, result: Array, _: Array) -> Array:
    """Return the same, of finite numbers."""
    return cast(Array, -result @ namespace(result).tril(tangent, k=-1) @ result)


INVERSE = Rule("inverse", _held_back, (_pulled,), _plainly_moved, _moved)
