"""Products of triangular matrices whose zeros hold back infinities and NaN.

Row i of a lower triangular ``M`` times ``X`` is a sum over the rows ``j <= i`` of
``X``. A matrix product adds ``0 * X_j`` for the later rows as well, which is NaN if
``X_j`` is not finite. Here it adds nothing, so that no token reaches an earlier one,
whatever its numbers are. Gradients are products of the same kind
(`linkern.autodiff.rules`).

Where a look at the numbers is cheap, the plain product comes first: only if it is not
finite is anything repeated.
"""

from collections.abc import Callable
from typing import cast

from linkern.array import all_finite, device_of, is_traced, mT, namespace
from linkern.typing import Array

__all__ = ["lower_product", "lower_scores", "right_product", "upper_product"]


def lower_product(matrix: Array, rows: Array, *, strict: bool = False) -> Array:
    """Return ``matrix @ rows`` for a lower triangular matrix.

    Parameters
    ----------
    matrix : array (..., C, C)
        Zeros above the diagonal; on it too if `strict`.
    rows : array (..., C, D)
        Rows of any numbers. Those behind row i have no effect on row i of the result.
    strict : bool
        Whether row i of `rows` has no effect on row i of the result either.

    Returns
    -------
    array (..., C, D)
        The matrix product, but for the rows that it would spoil.
    """
    if is_traced(matrix, rows):
        return _ruled("lower_product", matrix, rows, strict=strict)

    def reached(finite: Array, positions: Array) -> Array:
        xp, length = namespace(finite), rows.shape[-2]
        first = xp.min(xp.where(finite, length, positions), axis=-2, keepdims=True)
        return cast(Array, positions >= first + int(strict))

    return _product(matrix, rows, reached)


def upper_product(matrix: Array, rows: Array, *, strict: bool = False) -> Array:
    """Return ``matrix @ rows`` for an upper triangular matrix: `lower_product` upwards.

    Row i of the result depends on the rows from row i on; `strict`: behind row i.
    """
    if is_traced(matrix, rows):
        return _ruled("upper_product", matrix, rows, strict=strict)

    def reached(finite: Array, positions: Array) -> Array:
        xp = namespace(finite)
        last = xp.max(xp.where(finite, -1, positions), axis=-2, keepdims=True)
        return cast(Array, positions <= last - int(strict))

    return _product(matrix, rows, reached)


def right_product(rows: Array, matrix: Array) -> Array:
    """Return ``rows @ matrix`` for a lower triangular matrix.

    Column j of the result depends on the columns of `rows` from column j on.
    """
    if is_traced(rows, matrix):
        return mT(upper_product(mT(matrix), mT(rows)))

    def reached(finite: Array, positions: Array) -> Array:
        xp = namespace(finite)
        last = xp.max(xp.where(finite, -1, positions), axis=-1, keepdims=True)
        return cast(Array, positions <= last)

    product = rows @ matrix
    known = all_finite(product)
    if known:
        return product
    xp = namespace(rows)
    finite = xp.isfinite(rows)
    positions = xp.arange(rows.shape[-1], device=device_of(rows))
    clean = xp.where(finite, rows, xp.zeros_like(rows)) @ matrix
    return _kept(product, clean, reached(finite, positions), known=known is not None)


def lower_scores(rows: Array, columns: Array, *, strict: bool = False) -> Array:
    """Return ``rows_i^T columns_j`` for ``j <= i``; for ``j < i`` if `strict`."""
    if is_traced(rows, columns):
        return _ruled("lower_scores", rows, columns, strict=strict)
    pairs = rows @ mT(columns)
    return cast(Array, namespace(pairs).tril(pairs, k=-int(strict)))


def _ruled(name: str, *arrays: Array, strict: bool) -> Array:
    """Call the function by the rule that `linkern.autodiff` has for it."""
    return cast(Array, getattr(namespace(*arrays), name)(*arrays, strict=strict))


def _product(
    matrix: Array, rows: Array, reached: Callable[[Array, Array], Array]
) -> Array:
    """Return ``matrix @ rows``, with no effect of rows where they must have none.

    `reached` tells the entries that depend on a row that is not finite, from which
    entries are finite and from the positions of the rows, ``(C, 1)``. If the numbers
    cannot be looked at, these entries are NaN, even where the product is an infinity.
    """
    product = matrix @ rows
    known = all_finite(product)
    if known:
        return product
    xp = namespace(rows)
    finite = xp.isfinite(rows)
    positions = xp.arange(rows.shape[-2], device=device_of(rows))[:, None]
    clean = matrix @ xp.where(finite, rows, xp.zeros_like(rows))
    return _kept(product, clean, reached(finite, positions), known=known is not None)


def _kept(product: Array, clean: Array, reached: Array, *, known: bool) -> Array:
    """Return `product` where it is right, or NaN where it is not to be looked at.

    A finite entry of it is right, and has the bits of a call whose other entries are
    finite: `clean` may have others, since a library sums in another order elsewhere.
    """
    xp = namespace(product)
    if known:
        return cast(Array, xp.where(reached | xp.isfinite(product), product, clean))
    return cast(Array, xp.where(reached, float("nan"), clean))
