"""Atoms about quantities: "where denominator is below 0.001"."""

import math
from collections.abc import Mapping

import numpy as np

from linkern.testing.diagnosis.index_sets.atoms import BEST, Atom, Measure, Rated
from linkern.testing.influence.maps import Flags, Real

__all__ = ["thresholds_of"]


def thresholds_of(
    measure: Measure, quantities: Mapping[str, Real], wrong: Flags, loss: float
) -> list[Atom]:
    """Return the best statements of the kind "where a quantity is below c".

    Parameters
    ----------
    measure : callable
        Returns the quantities of a map, as logarithms of magnitudes.
    quantities : mapping of str to array (N,)
        The same of the entries that say something.
    wrong : array (N,) of bool
        The wrong ones of them.
    loss : float
        Right entries to exclude for each wrong one that is excluded.
    """
    weight = np.where(wrong, -loss, 1.0)
    words = 4 + math.log2(max(len(quantities), 1))
    rated: list[Rated] = []
    for name, x in quantities.items():
        values, inverse = np.unique(x, return_inverse=True)
        if np.isnan(x).any() or len(values) < 2:
            continue
        before = np.cumsum(np.bincount(inverse, weight))
        for side, gains in (("above", before), ("below", before[-1] - before)):
            k = int(np.argmax(gains[:-1]))
            limit, text = _between(values[k], values[k + 1])
            atom = _threshold(measure, name, side, limit, text, words)
            rated.append((gains[k], atom))
    rated.sort(key=lambda pair: (-pair[0], pair[1].text))
    return [atom for gain, atom in rated[: 2 * BEST] if gain > 0]


def _between(low: float, high: float) -> tuple[float, str]:
    """Return the number of fewest digits between two logarithms, and its text."""
    with np.errstate(over="ignore", under="ignore"):
        small, large = float(np.exp(low)), float(np.exp(high))
    if not 0 < small < large < math.inf:
        return high, f"{large:.3g}"
    for digits in range(1, 17):
        step = 10.0 ** (math.floor(math.log10(large)) - digits + 1)
        text = f"{math.floor(large / step) * step:.{digits}g}"
        if small < float(text) <= large:
            return math.log(float(text)), f"{float(text):g}"
    return high, f"{large:.3g}"


def _threshold(
    measure: Measure, name: str, side: str, limit: float, number: str, words: float
) -> Atom:
    text, cost = f"where {name} is {side} {number}", words + 2.0 * len(number)
    cost += len(name) / 16  # of two names of one quantity, the shorter
    if side == "below":
        return Atom(text, cost, lambda p: p[name] < limit, measure=measure)
    return Atom(text, cost, lambda p: p[name] >= limit, measure=measure)
