"""Triangular products in place whose zeros hold back infinities and NaN.

The products of `linkern.core.causal` with results in buffers. What is not finite in a
block of tokens is not finite in the state after it either, where it is found at little
cost: only then are products slower than those of matrices.
"""

import numpy as np

from linkern.core import causal
from linkern.kernels.numpy.types import Real

__all__ = ["all_finite", "lower_product", "upper_product"]


def all_finite(state: Real) -> bool:
    """Return True if no entry is an infinity or NaN."""
    return bool(np.isfinite(state).all())


def lower_product(
    matrix: Real, rows: Real, *, out: Real, finite: bool, strict: bool = False
) -> None:
    """Write ``matrix @ rows`` of a lower triangular matrix: no row gets a later one.

    `finite` is True if all rows are known to be finite.
    """
    if finite:
        np.matmul(matrix, rows, out=out)
    else:
        out[...] = causal.lower_product(matrix, rows, strict=strict)


def upper_product(
    matrix: Real, rows: Real, *, out: Real, finite: bool, strict: bool = False
) -> None:
    """Write ``matrix @ rows`` of an upper triangular matrix: no row gets an earlier."""
    if finite:
        np.matmul(matrix, rows, out=out)
    else:
        out[...] = causal.upper_product(matrix, rows, strict=strict)
