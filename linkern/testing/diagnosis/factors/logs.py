"""Logarithms of numbers of any sign: those of products are sums of them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.factors.places import LEAST_LOG
from linkern.testing.influence.maps import Real

__all__ = ["Logs", "Made", "at_least", "log_of"]

# Real parts add up to those of magnitudes, an odd imaginary part is a sign.
Logs = NDArray[Any]
# Names of quantities, their bits, and what makes their logarithms.
Made = Iterator[tuple[str, float, Callable[[], Logs]]]


def log_of(values: Real) -> Logs:
    """Return logarithms, minus infinity of zeros."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(abs(values)) + 1j * (values < 0))


def at_least(values: Real) -> Logs:
    """Return logarithms, that of 0 as the least of a decay."""
    return np.asarray(np.maximum(log_of(values).real, LEAST_LOG) + 1j * (values < 0))
