"""Formulas of measured entries, from exact ones and quantities at hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from linkern.oracle import unit_roundoff
from linkern.testing.diagnosis.factors.moves import moved
from linkern.testing.diagnosis.factors.quantities import part, signed_quantities
from linkern.testing.influence.maps import Flags, InfluenceMap, Real

__all__ = ["Factor", "as_predicted", "holds", "tolerance"]

# Of smaller numbers the oracle does not know all digits.
SMALLEST = 1e-290
# Errors of the oracle itself.
LEAST = 1e-11


@dataclass(frozen=True)
class Factor:
    """Formula of measured entries, from exact ones and quantities at hand.

    Parameters
    ----------
    kind : str
        ``product``: exact times a product of quantities; ``clamp``: where that is on
        one side of 1; ``added``: exact plus a product; ``instead``: the product alone;
        ``in the denominator``: exact over 1 plus the product; ``moved``: the exact
        entry of another place.
    constant : float
        The constant of the product.
    exponents : mapping of str to float
        The exponent of each quantity, or of its magnitude if the name is in bars.
    text : str
        The formula in words.
    chunk : int or None
        The size of the chunks that quantities refer to.
    alternatives : tuple of str
        Other formulas that are the same in all entries.
    where : str
        The entries that a clamp changes, in words.
    cost : float
        Its length in bits.
    """

    kind: str
    constant: float
    exponents: Mapping[str, float]
    text: str
    chunk: int | None = None
    alternatives: tuple[str, ...] = ()
    where: str = ""
    cost: float = field(default=0.0, compare=False)

    def predict(self, entries: InfluenceMap) -> Real:
        """Return the entries that the formula stands for.

        They are infinite where a quantity does not exist, and NaN where an entry is too
        small to be multiplied.
        """
        if self.kind == "moved":
            return moved(entries, self.text)
        names = {name: name.strip("|") for name in self.exponents}
        table = {}
        if names:
            table = signed_quantities(entries, self.chunk, frozenset(names.values()))
        product = np.full(entries.exact.shape, self.constant)
        for name, exponent in self.exponents.items():
            if names[name] not in table:
                return np.full(entries.exact.shape, np.inf)
            one = table[names[name]]
            odd = exponent % 2 == 1 and name == names[name]
            with np.errstate(all="ignore"):
                power = np.exp(exponent * one.log) * one.sign**odd
            product = product * np.where(np.isnan(power), np.inf, power)
        with np.errstate(all="ignore"):
            match self.kind:
                case "clamp from above":
                    return np.asarray(entries.exact * np.minimum(product, 1))
                case "clamp from below":
                    return np.asarray(entries.exact * np.maximum(product, 1))
                case "added":
                    return np.asarray(entries.exact + product)
                case "instead":
                    return np.asarray(product)
                case "in the denominator":
                    return np.asarray(entries.exact / (1 + product))
            vanished = (abs(entries.exact) < SMALLEST) & (abs(product) > 1)
            return np.where(vanished, np.nan, entries.exact * product)


def tolerance(entries: InfluenceMap, predicted: Real) -> Real:
    """Return the error that rounding makes of other numbers than the exact ones.

    It is the bound, in proportion where numbers are larger; where an exact entry is
    zero, as much relatively as in the rest of the map.
    """
    size = abs(entries.exact)
    with np.errstate(all="ignore"):
        relative = np.where(size > 0, entries.bound / size, np.nan)
        usual = float(np.nanmedian(relative)) if (size > 0).any() else 0.0
        grown = entries.bound * np.fmax(1.0, abs(predicted) / size)
    usual = usual if np.isfinite(usual) else 0.0
    of_nothing = entries.bound + usual * abs(predicted)
    floor = _least(entries) * np.fmax(size, abs(predicted))
    return np.asarray(np.where(size > 0, grown, of_nothing) + floor)


def _least(entries: InfluenceMap) -> float:
    return max(LEAST, 16 * unit_roundoff(entries.problem.scope.dtype))


def holds(factor: Factor, entries: InfluenceMap, chosen: Flags) -> bool:
    """Return True if the chosen entries are as predicted, within rounding."""
    if factor.kind == "moved":
        # Entries at an edge of the map have no such neighbour.
        predicted = factor.predict(entries)[chosen]
        there = np.isfinite(predicted).mean() > 0.5
        return bool(there) and as_predicted(part(entries, chosen), predicted)
    few = part(entries, chosen)
    return as_predicted(few, factor.predict(few))


def as_predicted(entries: InfluenceMap, predicted: Real) -> bool:
    """Return True if entries are as predicted within rounding, or cannot be told."""
    with np.errstate(all="ignore"):
        error = abs(entries.measured - predicted)
        close = (error <= tolerance(entries, predicted)) & np.isfinite(predicted)
    return bool((close | np.isnan(predicted)).all())
