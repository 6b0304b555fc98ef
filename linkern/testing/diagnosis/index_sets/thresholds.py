"""Atoms about quantities: "where denominator is below 0.001"."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from linkern.testing.diagnosis.index_sets.atoms import Atom, Measure, Rated
from linkern.testing.influence.maps import Real

__all__ = ["threshold_atoms"]


def threshold_atoms(
    measure: Measure, quantities: Mapping[str, Real], weight: Real
) -> Iterator[Rated]:
    """Yield the best statements of the kind "where a quantity is below c".

    Parameters
    ----------
    measure : callable
        Returns the quantities of a map, as logarithms of magnitudes.
    quantities : mapping of str to array (N,)
        The same of the entries that say something.
    weight : array (N,)
        The gain of excluding each entry: negative of wrong ones.
    """
    words = 4 + math.log2(max(len(quantities), 1))
    for name, x in quantities.items():
        values, inverse = np.unique(x, return_inverse=True)
        if np.isnan(x).any() or len(values) < 2:
            continue
        below = np.cumsum(np.bincount(inverse, weight))
        for side, gains in (("above", below), ("below", below[-1] - below)):
            k = int(np.argmax(gains[:-1]))
            limit, number = _between(values[k], values[k + 1])
            # of two names of one quantity, the shorter
            cost = words + 2.0 * len(number) + len(name) / 16
            yield gains[k], _threshold(measure, name, side, limit, number, cost)


def _between(low: float, high: float) -> tuple[float, str]:
    """Return the number of fewest digits between two logarithms, and its text."""
    with np.errstate(over="ignore", under="ignore"):
        small, large = float(np.exp(low)), float(np.exp(high))
    if 0 < small < large < math.inf:
        for digits in range(1, 17):
            step = 10.0 ** (math.floor(math.log10(large)) - digits + 1)
            text = f"{math.floor(large / step) * step:.{digits}g}"
            if small < float(text) <= large:
                return math.log(float(text)), f"{float(text):g}"
    return high, f"{large:.3g}"


def _threshold(
    measure: Measure, name: str, side: str, limit: float, number: str, cost: float
) -> Atom:
    text = f"where {name} is {side} {number}"
    if side == "below":
        return Atom(text, cost, lambda p: p[name] < limit, measure=measure)
    return Atom(text, cost, lambda p: p[name] >= limit, measure=measure)
