"""Fits of logarithms: small exponents of few quantities that leave only rounding."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from linkern.testing.diagnosis.factors.quantities import Quantity
from linkern.testing.influence.maps import Index, Real

__all__ = ["System", "distinct", "exponents"]

# Subsets that are looked at closer, of each size.
KEPT = 150
# Columns that are as good as a combination of others.
DEPENDENT = 1e-7
LARGEST_EXPONENT = 4


@dataclass(frozen=True, eq=False)
class System:
    """Equations: a logarithm is to be a sum of columns and a constant for each problem.

    Parameters
    ----------
    target, sign : array (N,)
        The logarithm and the sign of what is to be explained.
    weight : array (N,)
        One over the error that its logarithm may have.
    problem : array (N,)
        The number of the problem of each entry.
    columns : mapping of str to Quantity
        The quantities, no two of them the same.
    same : mapping of str to tuple of str
        Further names of each column.
    """

    target: Real
    sign: Real
    weight: Real
    problem: Index
    columns: Mapping[str, Quantity]
    same: Mapping[str, tuple[str, ...]]

    def centred(self, x: Real) -> Real:
        """Return columns without their mean in each problem, weighted."""
        w = self.weight**2
        total = np.maximum(np.bincount(self.problem, w), 1e-300)
        means = np.stack([np.bincount(self.problem, w * y) / total for y in x])
        return np.asarray((x - means[:, self.problem]) * self.weight)


def distinct(
    columns: Mapping[str, Quantity],
) -> tuple[dict[str, Quantity], dict[str, tuple[str, ...]]]:
    """Return columns without those that repeat a cheaper one, and all their names."""
    kept: dict[str, Quantity] = {}
    same: dict[str, tuple[str, ...]] = {}
    first: dict[bytes, str] = {}
    for name, one in sorted(columns.items(), key=lambda item: item[1].cost):
        key = (np.round(one.log, 8) + 0.0).tobytes()
        other = first.setdefault(key, name)
        if other == name:
            kept[name] = one
        else:
            same[other] = (*same.get(other, ()), name)
    return kept, same


def exponents(system: System, most: int) -> Iterator[dict[str, float]]:
    """Yield exponents of up to `most` quantities that leave no more than rounding.

    The normal equations of all subsets are solved at once; the exponents of those that
    leave little are rounded to multiples of one half.
    """
    yield {}
    names = [*system.columns]
    logs = np.stack([*(system.columns[n].log for n in names), system.target])
    table = system.centred(logs)
    size = np.sqrt((table * table).sum(axis=1))
    # More quantities than a few entries can tell apart fit anything.
    values = np.unique(np.round(table[-1] / np.maximum(size[-1], 1e-300), 7)).size
    if not names or size[-1] == 0:
        return
    table = table / np.maximum(size, 1e-300)[:, None]
    gram = table @ table.T
    allowed = system.target.size / size[-1] ** 2 + 1e-12
    for used in range(1, most + 1):
        if values < 2 * used + 1:
            return
        for chosen in _subsets(gram, used, allowed):
            solved, *_ = np.linalg.lstsq(table[[*chosen]].T, table[-1], rcond=None)
            powers = solved * size[-1] / size[[*chosen]]
            rounded = {
                names[i]: _rounded(names[i], float(x), alone=used == 1)
                for i, x in zip(chosen, powers, strict=True)
            }
            if all(rounded.values()):
                yield rounded


def _subsets(gram: Real, used: int, allowed: float) -> list[tuple[int, ...]]:
    """Return the subsets of columns that leave least of the last one."""
    best: list[tuple[float, tuple[int, ...]]] = []
    if used == 1:
        left = 1 - gram[:-1, -1] ** 2
        best = [(float(left[i]), (int(i),)) for i in np.flatnonzero(left <= allowed)]
    elif used == 2:
        best = _pairs(gram, (), allowed)
    else:
        for first in range(len(gram) - 1):
            rest = gram - np.outer(gram[first], gram[first])
            best += _pairs(rest, (first,), allowed)
    return [chosen for _, chosen in sorted(best)[:KEPT]]


def _pairs(
    gram: Real, taken: tuple[int, ...], allowed: float
) -> list[tuple[float, tuple[int, ...]]]:
    """Return pairs of columns behind those that were taken out, and what they leave."""
    own, a, b = np.diagonal(gram)[:-1], gram[:-1, :-1], gram[:-1, -1]
    both = own[:, None] * own
    det = both - a * a
    usable = (own[:, None] > DEPENDENT) & (own > DEPENDENT) & (det > DEPENDENT * both)
    shares = b[:, None] ** 2 * own
    fitted = (shares + shares.T - 2 * a * b[:, None] * b) / np.where(usable, det, 1.0)
    left = gram[-1, -1] - fitted
    pairs = np.argwhere(np.triu(usable & (left <= allowed), 1))
    pairs = pairs[pairs[:, 0] > max(taken, default=-1)]
    order = np.argsort(left[pairs[:, 0], pairs[:, 1]])[:KEPT]
    return [(float(left[i, j]), (*taken, int(i), int(j))) for i, j in pairs[order]]


def _rounded(name: str, exponent: float, *, alone: bool) -> float:
    """Return a short number beside an exponent; 0 if there is none.

    Powers of one number may have any exponent, and those of e the ones that make powers
    of 2 of them, or of 2 those of e.
    """
    if name.startswith("e^("):
        near = float(f"{exponent:.2g}")
        close = abs(near - exponent) <= 1e-3 * abs(exponent)
        return (near if close else exponent) if alone else 0.0
    options = [round(2 * exponent) / 2]
    if "log_decay" in name:
        bases = np.log(2) - 1, 1 / np.log(2) - 1
        options += [sign * float(x) for x in bases for sign in (1, -1)]
    best = min(options, key=lambda x: abs(x - exponent))
    near = abs(best - exponent) <= 0.05 and abs(best) <= LARGEST_EXPONENT
    return best if near else 0.0
