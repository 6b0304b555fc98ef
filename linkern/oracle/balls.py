"""Numbers with what rounding may have done to them: a value and a radius.

A `Ball` holds the exact value (in float64) and a bound on the error with which any
kernel of a declared arithmetic may know it. Without a declared arithmetic (`rounding`
None) there are no radii, and the same functions are plain float64.

A sum of products of computed ``x, y`` with radii ``r, s``, in any order of its ``h``
operations, is off by at most ``(1 + g)(|x| + r)(|y| + s) - |x||y|``, summed, with
``g = gamma_h``: nothing is neglected, neither second orders nor underflow.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.bounds import (
    SIGNIFICAND_BITS,
    Bounded,
    Precisions,
    gamma,
    probable,
    smallest,
    unit_roundoff,
)

__all__ = ["Ball", "Rounding", "added", "contracted", "quotient", "summed_to"]

Real = NDArray[np.float64]


@dataclass(frozen=True)
class Ball:
    """A value and how far a kernel's can be from it.

    Parameters
    ----------
    value : array
        What is exact, in float64.
    error : array or None
        Bound on the absolute error; None for none at all.
    sharp : array or None
        What is left of it where sums are exact, for kernels that only sum.
    """

    value: Real
    error: Real | None = None
    sharp: Real | None = None

    @property
    def radius(self) -> Real:
        """The error, as zeros where there is none."""
        return np.zeros_like(self.value) if self.error is None else self.error

    @property
    def reach(self) -> Real:
        """The largest magnitude that a computed value can have."""
        return abs(self.value) if self.error is None else abs(self.value) + self.error

    def bounded(self) -> Bounded:
        """Return it as the judge reads it: infinite where nothing is proved."""
        bound = self.radius
        known = np.isfinite(bound)
        return Bounded(self.value, np.where(known, bound, np.inf), self.sharp)


@dataclass(frozen=True)
class Rounding:
    """The arithmetic that kernels declare, as a source of radii.

    Parameters
    ----------
    precisions : Precisions
        The dtypes of the stages.
    chunk_size : int or None
        Declared chunk size.
    confidence : float or None
        The lambda of the probabilistic tier; None for the proved one.
    """

    precisions: Precisions
    chunk_size: int | None = None
    confidence: float | None = None

    @property
    def unit(self) -> float:
        """The largest relative error of one operation."""
        return self.precisions.unit

    @property
    def tiny(self) -> float:
        """The largest error of one underflow: accelerators flush subnormals to zero.

        Those of float64 are kept, but products of this error with others must be
        numbers of float64.
        """
        least = smallest(self.precisions.accumulator)
        flushed = 2.0 ** SIGNIFICAND_BITS[self.precisions.accumulator]
        return least if self.precisions.accumulator == "float16" else least * flushed

    @property
    def lowest(self) -> float:
        """The magnitude of a log-decay beyond which every factor is zero."""
        # What an underflow costs in float64 is itself no number of float64.
        least = max(smallest(self.precisions.accumulator), 2.0**-1074)
        return -float(np.log(least))

    def rounded(self, operations: Real | float) -> Real:
        """Return what roundings of the accumulator amount to."""
        if self.confidence is None or self.precisions.truncates:
            return gamma(operations, self.unit)
        return probable(operations, self.unit, self.confidence)

    def accumulated(self, operations: Real | float) -> Real:
        """Return what roundings of the accumulator amount to, the oracle's included."""
        oracle_error = gamma(operations, unit_roundoff("float64"))
        return self.rounded(operations) + oracle_error

    def stages(self, products: int = 2) -> float:
        """Return the growth by declared narrow stages around `products` operands."""
        return float(
            (1 + unit_roundoff(self.precisions.score))
            * (1 + unit_roundoff(self.precisions.operand)) ** products
            * (1 + unit_roundoff(self.precisions.feature)) ** 2
        )

    def grown(self, operations: Real | float, products: int = 2) -> Real:
        """Return roundings of the accumulator and of declared narrow stages."""
        grown = (1 + self.accumulated(operations)) * self.stages(products)
        return np.asarray(grown - 1)


def contracted(
    spec: str, x: Ball, y: Ball, rounding: Rounding | None, *, prepared: bool = False
) -> Ball:
    """Return ``einsum(spec, x, y)`` and its radius.

    With `prepared` the rounding of the product itself is accounted for elsewhere.
    """
    value = np.einsum(spec, x.value, y.value)
    if rounding is None or (prepared and x.error is None and y.error is None):
        return Ball(value)
    terms = _terms(spec, x.value, y.value)
    gauge = np.einsum(spec, abs(x.value), abs(y.value))
    full = gauge
    if x.error is not None or y.error is not None:
        full = np.einsum(spec, x.reach, y.reach)
    growth = rounding.grown(terms + 2)
    error = growth * full + (full - gauge) + rounding.tiny * (terms + 2)
    return Ball(value, error)


def _terms(spec: str, x: Real, y: Real) -> int:
    """Return over how many products a contraction sums."""
    inputs, output = spec.replace("...", "").split("->")
    total = 1
    sizes: dict[str, int] = {}
    for labels, operand in zip(inputs.split(","), (x, y), strict=True):
        sizes.update(zip(reversed(labels), reversed(operand.shape), strict=False))
    for label in set(sizes) - set(output):
        total *= sizes[label]
    return total


def added(x: Ball, y: Ball, rounding: Rounding | None) -> Ball:
    """Return a sum of two; infinities of the value are exact."""
    value = np.asarray(x.value + y.value)
    if rounding is None:
        return Ball(value)
    reach = x.reach + y.reach
    error = x.radius + y.radius + rounding.grown(2) * reach
    return Ball(value, np.where(np.isfinite(value), error, 0.0))


def quotient(x: Ball, y: Ball, rounding: Rounding | None) -> Ball:
    """Return ``x / y``; infinitely uncertain where the divisor may be zero."""
    value = x.value / y.value
    if rounding is None:
        return Ball(value)
    margin = abs(y.value) - y.radius
    core = (x.radius + abs(value) * y.radius) / margin
    error = core + rounding.grown(4) * (abs(value) + core) + rounding.tiny
    return Ball(value, np.where(margin > 0, error, np.inf))


def summed_to(x: Ball, shape: tuple[int, ...], rounding: Rounding | None) -> Ball:
    """Return the sum over what broadcasting a `shape` had repeated."""
    extra = x.value.ndim - len(shape)
    axes = tuple(
        i for i, n in enumerate(x.value.shape) if i < extra or shape[i - extra] != n
    )
    if not axes:
        return Ball(x.value.reshape(shape), x.error)
    value = x.value.sum(axis=axes).reshape(shape)
    if rounding is None:
        return Ball(value)
    terms = int(np.prod([x.value.shape[i] for i in axes]))
    error = x.radius.sum(axis=axes) + rounding.accumulated(terms) * x.reach.sum(axes)
    return Ball(value, error.reshape(shape))
