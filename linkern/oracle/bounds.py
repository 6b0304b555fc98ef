r"""Declared arithmetic, and what its roundings amount to.

A sum of terms each of which meets at most ``h`` roundings of unit ``u`` is off by at
most ``gamma_h = h u / (1 - h u)`` times the sum over absolute values, in any order.

Where inputs are drawn independently, rounding errors are all but independent too, and
their sum grows like the square root: ``gamma_h`` may be replaced by ``exp(lambda
sqrt(h) u + h u^2 / (1 - u)) - 1``. Source: N. Higham and T. Mary, "A new approach to
probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019). This is a second
tier, for such draws only: on constant or tied data it is false.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SIGNIFICAND_BITS",
    "Bounded",
    "Precisions",
    "gamma",
    "probable",
    "smallest",
    "unit_roundoff",
]

Real = NDArray[np.float64]

SIGNIFICAND_BITS = {
    "float64": 53,
    "float32": 24,
    "tfloat32": 11,
    "float16": 11,
    "bfloat16": 8,
}
_SMALLEST_EXPONENT = {
    "float64": -1074,
    "float32": -149,
    "tfloat32": -136,
    "float16": -24,
    "bfloat16": -133,
}
# Beyond this, gamma_h proves nothing worth the name.
_PROVABLE = 0.5


@dataclass(frozen=True)
class Precisions:
    """The arithmetic a kernel declares, stage by stage, as dtype names.

    Parameters
    ----------
    accumulator : str
        In which sums are formed, and features and quotients evaluated.
    feature, operand, score, state, normalizer : str or None
        To which the features, the operands of products, the scores, the carried memory
        and the carried normalizer are rounded besides; None for not at all.
    truncates : bool
        Whether sums are rounded towards zero and not to nearest.
    gate_roundings, gate_error : float
        Relative roundings, and besides them the absolute error, with which a kernel
        makes one log-decay.
    rate_roundings : float
        Relative roundings with which it makes one rate.
    """

    accumulator: str
    feature: str | None = None
    operand: str | None = None
    score: str | None = None
    state: str | None = None
    normalizer: str | None = None
    truncates: bool = False
    gate_roundings: float = 0.0
    gate_error: float = 0.0
    rate_roundings: float = 0.0

    @property
    def unit(self) -> float:
        """The largest relative error of one operation of the accumulator."""
        return unit_roundoff(self.accumulator) * (2 if self.truncates else 1)


@dataclass(frozen=True)
class Bounded:
    """The exact output and a bound on everybody's error before the final rounding.

    Parameters
    ----------
    output : array (..., T, V)
        Exact output, float64.
    bound : array (..., T, V)
        Proved bound on the absolute error; infinite where nothing is proved.
    sharp : array (..., T, V) or None
        What is left of it for a kernel that only sums, and divides once, where the sums
        are of integers; None where they are not.
    """

    output: Real
    bound: Real
    sharp: Real | None = None

    def rows(self, first: int, last: int) -> "Bounded":
        """Return the same for the rows from `first` to before `last`."""
        return Bounded(self.output[..., first:last, :], self.bound[..., first:last, :])

    def channels(self, chosen: NDArray[Any]) -> "Bounded":
        """Return the same for chosen channels, in their order."""
        bound = np.broadcast_to(self.bound, self.output.shape)
        return Bounded(self.output[..., chosen], bound[..., chosen])

    def once_stored(self, dtype: str) -> Real:
        """Return the bound on the error of the result after it is stored as `dtype`.

        Subnormal numbers are equally far apart, however small they are.
        """
        relative = unit_roundoff(dtype) * (abs(self.output) + self.bound)
        return np.asarray(self.bound + np.maximum(relative, smallest(dtype)))


def smallest(dtype: str) -> float:
    """Return half the smallest subnormal of a dtype name: what underflow costs at most.

    That of float64 is no float64; its double is returned.

    Examples
    --------
    >>> smallest("float16") == 2.0**-25
    True
    >>> smallest("float64") == 2.0**-1074
    True
    """
    return float(2.0 ** max(_SMALLEST_EXPONENT[dtype] - 1, -1074))


def unit_roundoff(dtype: str | None) -> float:
    """Return the unit roundoff of a dtype name; 0 for None.

    Examples
    --------
    >>> unit_roundoff("float32") == 2.0**-24
    True
    """
    return 0.0 if dtype is None else 2.0 ** -SIGNIFICAND_BITS[dtype]


def gamma(h: Real | float, u: float) -> Real:
    """Return ``h u / (1 - h u)``, infinite where ``h u > 0.5``."""
    product = np.asarray(h, dtype=np.float64) * u
    provable = product <= _PROVABLE
    if provable.all():
        return np.asarray(product / (1 - product))
    return np.where(provable, product / np.where(provable, 1 - product, 1), np.inf)


def probable(h: Real | float, u: float, confidence: float) -> Real:
    """Return the probabilistic counterpart of `gamma`, never more than it.

    Examples
    --------
    >>> bool(probable(10_000, 2.0**-24, confidence=3) < gamma(10_000, 2.0**-24) / 30)
    True
    """
    h = np.asarray(h, dtype=np.float64)
    with np.errstate(over="ignore"):
        grown = np.expm1(confidence * np.sqrt(h) * u + h * u * u / (1 - u))
    return np.minimum(grown, gamma(h, u))
