"""Formulas of measured entries, from exact ones and quantities at hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from linkern.oracle import unit_roundoff
from linkern.testing.diagnosis.factors.quantities import signed_quantities
from linkern.testing.influence.maps import Flags, InfluenceMap, Real

__all__ = [
    "CLAMPS",
    "KINDS",
    "MARGIN",
    "Factor",
    "by_rule",
    "gain",
    "holds",
    "tolerance",
    "untold",
]

# Of smaller numbers the oracle does not know all digits.
SMALLEST = 1e-290
# Errors of the oracle itself.
LEAST = 1e-11
# Bits by which a description must be shorter than the numbers, and than the next one.
MARGIN = 10.0
# Errors that are larger than rounding makes them by less follow many formulas. They are
# told by those that leave hardly anything of them.
STRONG, WEAK, LEFT = 4.0, 1.5, 0.01

# Entries by their kind, of exact ones and a product.
KINDS: Mapping[str, Callable[[Real, Real], Real]] = {
    "product": lambda exact, x: exact * x,
    "instead": lambda _, x: x,
    "added": lambda exact, x: exact + x,
    "in the denominator": lambda exact, x: exact / (1 + x),
    "clamp from above": lambda exact, x: exact * np.minimum(x, 1),
    "clamp from below": lambda exact, x: exact * np.maximum(x, 1),
}
# Those that are so where a quantity is beyond 1 alone.
CLAMPS = ("clamp from above", "clamp from below")


@dataclass(frozen=True)
class Factor:
    """Formula of measured entries, from exact ones and quantities at hand.

    Parameters
    ----------
    kind : str
        ``product``: exact times a product of quantities; ``clamp from above``, ``clamp
        from below``: where that is on one side of 1; ``added``: exact plus a product;
        ``instead``: the product alone; ``in the denominator``: exact over 1 plus the
        product; ``moved``, ``replaced``, ``partial``, ``in a part``, ``divided``:
        other numbers of the oracle.
    constant : float
        The constant of the product.
    exponents : mapping of str to float
        The exponent of each quantity, or of its magnitude if the name is in bars.
    text : str
        The formula in words.
    chunk : int or None
        The size of the chunks that quantities refer to.
    cost : float
        Its length in bits.
    rule : callable, optional
        Returns the entries of a whole map, NaN where it cannot tell: of other kinds.
    where : str
        The entries that it changes, in words, if it says so.
    """

    kind: str
    constant: float
    exponents: Mapping[str, float]
    text: str
    chunk: int | None = None
    cost: float = field(default=0.0, compare=False)
    rule: Callable[[InfluenceMap], Real] | None = None
    where: str = ""

    @property
    def data(self) -> dict[str, Any]:
        """The same for programs; of a rule, its words are all there is."""
        if self.rule is not None:
            return {"kind": self.kind, "words": self.text}
        data = {"kind": self.kind, "constant": self.constant}
        data |= {"exponents": dict(self.exponents)}
        return data | ({"chunk": self.chunk} if self.chunk else {})

    def predict(self, entries: InfluenceMap) -> Real:
        """Return the entries that the formula stands for.

        They are infinite where a quantity does not exist, and NaN where an entry is too
        small to be multiplied.
        """
        if self.rule is not None:
            return self.rule(entries)
        wanted = frozenset(name.strip("|") for name in self.exponents)
        table = signed_quantities(entries, self.chunk, wanted) if wanted else {}
        product = np.full(entries.exact.shape, self.constant)
        if not wanted <= table.keys():
            return np.full(entries.exact.shape, np.inf)
        with np.errstate(all="ignore"):
            for name, exponent in self.exponents.items():
                one = table[name.strip("|")]
                odd = exponent % 2 == 1 and not name.startswith("|")
                power = np.exp(exponent * one.log) * one.sign**odd
                product = product * np.where(np.isnan(power), np.inf, power)
            predicted = KINDS[self.kind](entries.exact, product)
        vanished = (abs(entries.exact) < SMALLEST) & (abs(product) > 1)
        return np.where(vanished & (self.kind == "product"), np.nan, predicted)


def by_rule(
    kind: str,
    text: str,
    rule: Callable[[InfluenceMap], Real],
    cost: float,
    *,
    chunk: int | None = None,
    where: str = "",
) -> Factor:
    """Return a factor whose entries a rule computes."""
    return Factor(kind, 1.0, {}, text, chunk, cost, rule, where)


def untold(entries: InfluenceMap) -> Real:
    """Return NaN for all entries: a rule that holds of whole calls, not of a map."""
    return np.full(entries.exact.shape, np.nan)


def tolerance(entries: InfluenceMap, predicted: Real) -> Real:
    """Return the error that rounding makes of other numbers than the exact ones.

    It is the bound, in proportion where numbers are larger; where an exact entry is
    zero, or hidden by its bound, as much relatively as in the rest of the map.
    """
    size, scale = abs(entries.exact), abs(predicted)
    with np.errstate(all="ignore"):
        relative, known = entries.bound / size, size > entries.bound
        usual = np.median(relative[known]) if known.any() else 0.0
        grown = np.fmax(entries.bound, np.where(known, relative, usual) * scale)
    least = max(LEAST, 16 * unit_roundoff(entries.problem.scope.dtype))
    return np.asarray(grown + least * np.fmax(size, scale))


def holds(factor: Factor, entries: InfluenceMap, chosen: Flags) -> bool:
    """Return True if the chosen entries are as predicted, within rounding.

    Entries that are predicted as NaN count as right; a rule must predict half of them.
    """
    few = entries.part(chosen)
    # Other places that a rule reads are not always among the chosen entries.
    rule = factor.rule is not None
    predicted = factor.predict(entries)[chosen] if rule else factor.predict(few)
    told = ~np.isnan(predicted)
    return _as_predicted(few, predicted) and (
        not rule or not told.size or told.mean() > 0.5
    )


def gain(factor: Factor, parts: Sequence[InfluenceMap]) -> float:
    """Return the bits that a formula spares; minus infinity where it does not hold.

    An entry that is D times as far from the exact one as rounding explains, and follows
    the formula, spares ``log2(D)`` bits.
    """
    before, after = [], []
    for one in parts:
        predicted = factor.predict(one)
        if not _as_predicted(one, predicted):
            return -np.inf
        known = ~np.isnan(predicted)
        with np.errstate(all="ignore"):
            allowed = tolerance(one, np.nan_to_num(predicted))
            before.append((one.error / allowed)[known])
            after.append((abs(one.measured - predicted) / allowed)[known])
    ratios = np.clip(np.nan_to_num(np.concatenate(before)), 1.0, 2.0**20)
    if not ratios.size:
        return -np.inf
    left = (np.concatenate(after) ** 2).sum() / (ratios**2).sum()
    strong = WEAK if left < LEFT else STRONG
    if np.median(ratios) < strong and factor.cost > 2:
        return -np.inf
    return float(np.log2(ratios).sum()) - factor.cost


def _as_predicted(entries: InfluenceMap, predicted: Real) -> bool:
    """Return True if entries are as predicted within rounding, or cannot be told."""
    with np.errstate(all="ignore"):
        close = abs(entries.measured - predicted) <= tolerance(entries, predicted)
    return bool((close & np.isfinite(predicted) | np.isnan(predicted)).all())
