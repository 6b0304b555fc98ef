"""Atoms about quantities: "where denominator is below 0.001"."""

import math
import sys
from collections.abc import Iterator, Mapping

import numpy as np

from linkern.testing.diagnosis.index_sets.atoms import Atom, Measure, Rated
from linkern.testing.diagnosis.index_sets.places import Places
from linkern.testing.influence.maps import Flags, Real

__all__ = ["threshold_atoms"]

# A number that a quantity is by no chance has so many entries.
REPEATED = 8
# Bits of a statement, and of each digit of its number.
STATEMENT, DIGIT = 8.0, 2.0


def threshold_atoms(
    measure: Measure, quantities: Mapping[str, Real], weight: Real
) -> Iterator[Rated]:
    """Yield the best statements of the kind "where a quantity is below c".

    Parameters
    ----------
    measure : callable
        Returns the quantities of a map.
    quantities : mapping of str to array (N,)
        The same of the entries that say something.
    weight : array (N,)
        The gain of excluding each entry: negative of wrong ones.
    """
    words = STATEMENT + math.log2(max(len(quantities), 1))
    for name, x in quantities.items():
        values, inverse = np.unique(x, return_inverse=True)
        if np.isnan(x).any() or len(values) < 2:
            continue
        gain, count = np.bincount(inverse, weight), np.bincount(inverse)
        below = np.cumsum(gain)
        # of two names of one quantity, the shorter
        word = words + len(name) / 16
        for side, gains in (("above", below), ("below", below[-1] - below)):
            k = int(np.argmax(gains[:-1]))
            limit = _between(values[k], values[k + 1], reaches=side == "below")
            yield gains[k], _threshold(measure, name, side, limit, word)
        k = int(np.argmin(np.where(count < REPEATED, np.inf, gain)))
        if count[k] >= REPEATED:
            yield below[-1] - gain[k], _threshold(measure, name, "", values[k], word)


def _between(low: float, high: float, *, reaches: bool) -> float:
    """Return the number of fewest digits above one number and below another.

    It may be the other itself, if it `reaches` it or nothing is between.
    """
    size = max(abs(low), abs(high))
    if sys.float_info.min < size < math.inf:
        for digits in range(1, 17):
            step = 10.0 ** (math.floor(math.log10(size)) - digits + 1)
            for count in (math.floor(high / step), math.ceil(low / step)):
                number = float(f"{count * step:.{digits}g}")
                if low < number < high or (reaches and number == high):
                    return number
    return high


def _threshold(
    measure: Measure, name: str, side: str, limit: float, cost: float
) -> Atom:
    """Return an atom; it holds of no entry of a map that has no such quantity."""
    number = f"{limit:.6g}"
    text = f"where {name} is {side} {number}".replace("  ", " ")
    compare = {"below": np.less, "above": np.greater_equal, "": np.equal}[side]

    def test(known: Places) -> Flags:
        return np.asarray(compare(known.get(name, np.array(np.nan)), limit))

    data = {"of": name, side or "equal": limit}
    cost += DIGIT * _digits(limit)
    return Atom(text, cost, test, measure=measure, data=data)


def _digits(number: float) -> int:
    """Return how many digits of a number are written, powers of ten left out."""
    mantissa = f"{number:.5e}".partition("e")[0]
    return len(mantissa.strip("-0").replace(".", "").rstrip("0")) or 1
