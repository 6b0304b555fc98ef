# ruff: noqa: ARG005 -- all pulls of a rule take the same arguments
"""Products of triangular matrices whose zeros hold back infinities and NaN.

Row i of a lower triangular ``M`` times ``X`` is a sum over the rows ``j <= i`` of
``X``. A matrix product adds ``0 * X_j`` for the later rows as well, which is NaN if
``X_j`` is not finite. Here it adds nothing, so that no token reaches an earlier one,
whatever its numbers are. Gradients are products of the same kind, in every library
that differentiates (`linkern.core.derivatives`).

Where a look at the numbers is cheap, the plain product comes first: only if it is not
finite is anything repeated.
"""

from collections.abc import Callable
from typing import cast

from linkern.array import all_finite, device_of, mT, namespace
from linkern.core.derivatives import Rule, ruled
from linkern.typing import Array

__all__ = [
    "PRODUCTS",
    "chained_product",
    "lower_product",
    "lower_scores",
    "right_product",
    "upper_product",
]


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
    return ruled(PRODUCTS["lower_product"], matrix, rows, strict=strict)


def upper_product(matrix: Array, rows: Array, *, strict: bool = False) -> Array:
    """Return ``matrix @ rows`` for an upper triangular matrix: `lower_product` upwards.

    Row i of the result depends on the rows from row i on; `strict`: behind row i.
    """
    return ruled(PRODUCTS["upper_product"], matrix, rows, strict=strict)


def right_product(rows: Array, matrix: Array) -> Array:
    """Return ``rows @ matrix`` for a lower triangular matrix.

    Column j of the result depends on the columns of `rows` from column j on. It has no
    rule: what is differentiated is a function that calls it.
    """

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


def chained_product(later: Array, earlier: Array) -> Array:
    """Return ``later @ earlier`` of two lower triangular matrices ``(..., C, C)``.

    Entry ``(i, j)`` depends on row i of `later` and column j of `earlier` between the
    tokens j and i alone: what is not finite elsewhere meets a zero of the other one.
    """
    return ruled(PRODUCTS["chained_product"], later, earlier)


def lower_scores(rows: Array, columns: Array, *, strict: bool = False) -> Array:
    """Return ``rows_i^T columns_j`` for ``j <= i``; for ``j < i`` if `strict`."""
    return ruled(PRODUCTS["lower_scores"], rows, columns, strict=strict)


def _lower_product(matrix: Array, rows: Array, *, strict: bool) -> Array:
    def reached(finite: Array, positions: Array) -> Array:
        xp, length = namespace(finite), rows.shape[-2]
        first = xp.min(xp.where(finite, length, positions), axis=-2, keepdims=True)
        return cast(Array, positions >= first + int(strict))

    return _product(matrix, rows, reached)


def _upper_product(matrix: Array, rows: Array, *, strict: bool) -> Array:
    def reached(finite: Array, positions: Array) -> Array:
        xp = namespace(finite)
        last = xp.max(xp.where(finite, -1, positions), axis=-2, keepdims=True)
        return cast(Array, positions <= last - int(strict))

    return _product(matrix, rows, reached)


def _chained_product(later: Array, earlier: Array) -> Array:
    product = later @ earlier
    known = all_finite(product)
    if known:
        return product
    xp, length = namespace(later), later.shape[-1]
    positions = xp.arange(length, device=device_of(later))
    there = xp.isfinite(later), xp.isfinite(earlier)
    last = xp.max(xp.where(there[0], -1, positions), axis=-1, keepdims=True)
    rows = positions[:, None]
    first = xp.min(xp.where(there[1], length, rows), axis=-2, keepdims=True)
    clean = [
        xp.where(finite, x, xp.zeros_like(x))
        for finite, x in zip(there, (later, earlier), strict=True)
    ]
    reached = (positions <= last) | (rows >= first)
    return _kept(product, clean[0] @ clean[1], reached, known=known is not None)


def _lower_scores(rows: Array, columns: Array, *, strict: bool) -> Array:
    return _lower(rows @ mT(columns), strict=strict)


def _lower(pairs: Array, *, strict: bool) -> Array:
    """Return the pairs of a token and earlier ones; of itself too, if not `strict`."""
    return cast(Array, namespace(pairs).tril(pairs, k=-int(strict)))


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


# The cotangent of a triangular matrix is triangular; there is no pair of a token and a
# later one, so no cotangent of any.
PRODUCTS = {
    "lower_product": Rule(
        "lower_product",
        _lower_product,
        (
            lambda c, _, matrix, rows, strict: lower_scores(c, rows, strict=strict),
            lambda c, _, matrix, rows, strict: upper_product(
                mT(matrix), c, strict=strict
            ),
        ),
        plain=lambda matrix, rows, strict: _lower(matrix, strict=strict) @ rows,
    ),
    "chained_product": Rule(
        "chained_product",
        _chained_product,
        (
            lambda c, _, later, earlier: _lower(
                mT(lower_product(earlier, mT(_lower(c, strict=False)))), strict=False
            ),
            lambda c, _, later, earlier: _lower(
                upper_product(mT(later), _lower(c, strict=False)), strict=False
            ),
        ),
        plain=lambda later, earlier: (
            _lower(later, strict=False) @ _lower(earlier, strict=False)
        ),
    ),
    "upper_product": Rule(
        "upper_product",
        _upper_product,
        (
            lambda c, _, matrix, rows, strict: mT(lower_scores(rows, c, strict=strict)),
            lambda c, _, matrix, rows, strict: lower_product(
                mT(matrix), c, strict=strict
            ),
        ),
        plain=lambda matrix, rows, strict: mT(_lower(mT(matrix), strict=strict)) @ rows,
    ),
    "lower_scores": Rule(
        "lower_scores",
        _lower_scores,
        (
            lambda c, _, rows, columns, strict: lower_product(
                _lower(c, strict=strict), columns, strict=strict
            ),
            lambda c, _, rows, columns, strict: upper_product(
                mT(_lower(c, strict=strict)), rows, strict=strict
            ),
        ),
        plain=_lower_scores,
    ),
}
