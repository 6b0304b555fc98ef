"""Products of quantities between exact and measured entries: the search for them.

The logarithm of a ratio is a sum of logarithms of quantities, with small exponents.
A product is kept if it holds in every entry within rounding, and is shorter than the
numbers that it describes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from linkern.testing.diagnosis.factors.factor import (
    LEAST,
    MARGIN,
    WEAK,
    Factor,
    gain,
    tolerance,
)
from linkern.testing.diagnosis.factors.fitting import exponents
from linkern.testing.diagnosis.factors.quantities import Quantity, signed_quantities
from linkern.testing.diagnosis.factors.spelling import (
    CONSTANTS,
    Spelled,
    is_logarithm,
    spell,
    text_of,
)
from linkern.testing.influence.maps import Index, InfluenceMap, Real

__all__ = ["product_of"]

# Entries that a search looks at.
SAMPLE = 400
# Formulas that are tried of each kind.
BEST = 12
# The kinds with the most quantities in a product, and the product of measured entries.
SOUGHT: Mapping[str, tuple[int, Callable[[Real, Real], Real]]] = {
    "product": (3, lambda measured, exact: measured / exact),
    "instead": (3, lambda measured, _: measured),
    "in the denominator": (1, lambda measured, exact: exact / measured - 1),
    "added": (3, lambda measured, exact: measured - exact),
}


@dataclass(frozen=True, eq=False)
class System:
    """Equations: a logarithm is to be a sum of columns and a constant for each problem.

    Parameters
    ----------
    target, sign, weight : array (N,)
        The logarithm and the sign of what is to be explained, and one over the error
        that its logarithm may have.
    problem : array (N,)
        The number of the problem of each entry.
    columns : mapping of str to Quantity
        The quantities, no two of them the same.
    constants : list of mapping of str to float
        The logarithms of the numbers that all entries of each problem share.
    natural : bool
        True if a power of e is a constant as well: of operators with decays.
    """

    target: Real
    sign: Real
    weight: Real
    problem: Index
    columns: Mapping[str, Quantity]
    constants: list[dict[str, float]]
    natural: bool

    def centred(self, x: Real) -> Real:
        """Return columns without their mean in each problem, weighted."""
        w = self.weight**2
        total = np.maximum(np.bincount(self.problem, w), 1e-300)
        means = np.stack([np.bincount(self.problem, w * y) / total for y in x])
        return np.asarray((x - means[:, self.problem]) * self.weight)


def product_of(parts: Sequence[InfluenceMap], chunk: int | None) -> Factor | None:
    """Return the shortest product of quantities that holds in all entries of maps."""
    if not parts or not all(np.isfinite(one.measured).all() for one in parts):
        return None
    lost = Factor("product", 0.0, {}, "0", chunk, cost=2.0)
    if gain(lost, parts) > MARGIN:
        return lost
    with np.errstate(all="ignore"):
        sizes = np.concatenate([one.error / tolerance(one, one.exact) for one in parts])
    if np.median(sizes) < WEAK:
        return None
    samples = [_sample(one, SAMPLE // len(parts) + 1) for one in parts]
    tables = [signed_quantities(one, chunk) for one in samples]
    suffix = " in its place" if any(one.exact.any() for one in parts) else ""
    for kind in SOUGHT:
        system = _system(kind, samples, tables)
        for factor in _candidates(kind, system, chunk) if system else ():
            if all(gain(factor, few) > MARGIN for few in (samples, parts)):
                text = factor.text + suffix * (kind == "instead")
                return replace(factor, text=text)
    return None


def _sample(entries: InfluenceMap, most: int) -> InfluenceMap:
    """Return some of the entries, drawn by chance."""
    count = entries.exact.size
    rng = np.random.default_rng(count)
    return entries.part(np.sort(rng.permutation(count)[:most]))


def _system(
    kind: str,
    samples: Sequence[InfluenceMap],
    tables: Sequence[Mapping[str, Quantity]],
) -> System | None:
    """Return the equations of the entries that are known well, if most of them are."""
    wanted, spread = [], []
    _, read = SOUGHT[kind]
    for one in samples:
        with np.errstate(all="ignore"):
            allowed = tolerance(one, one.measured)
            if kind == "product":  # its errors are in proportion to it
                known, ratio = abs(one.exact) > one.bound, one.measured / one.exact
                grown = tolerance(one, one.exact) * abs(ratio)
                allowed = np.where(known, grown, allowed)
            x = read(one.measured, one.exact)
            wanted.append(x)
            spread.append(abs((read(one.measured + allowed, one.exact) - x) / x))
    target, relative = np.concatenate(wanted), np.concatenate(spread)
    usable = np.isfinite(target) & (target != 0) & (relative < 0.25)
    if usable.mean() < 0.5:
        return None
    problem = np.repeat(np.arange(len(samples)), [one.exact.size for one in samples])
    target, problem = target[usable], problem[usable]
    weight = 1 / np.maximum(relative[usable], LEAST)
    columns: dict[bytes, tuple[str, Quantity]] = {}
    for name in sorted(tables[0], key=lambda name: tables[0][name].cost):
        if not all(name in table for table in tables):
            continue
        log = np.concatenate([table[name].log for table in tables])[usable]
        sign = np.concatenate([table[name].sign for table in tables])[usable]
        varies = (np.ptp(log[problem == i]) > 1e-9 for i in np.unique(problem))
        if np.isfinite(log).all() and any(varies):
            column = name, Quantity(log, sign, tables[0][name].cost)
            columns.setdefault((np.round(log, 8) + 0.0).tobytes(), column)
    constants = [
        {name: float(np.nanmax(table[name].log)) for name in CONSTANTS if name in table}
        for table in tables
    ]
    log, sign = np.log(abs(target)), np.sign(target)
    natural = any(map(is_logarithm, tables[0]))
    every = dict(columns.values())
    return System(log, sign, weight, problem, every, constants, natural)


def _candidates(kind: str, system: System, chunk: int | None) -> list[Factor]:
    """Return formulas of a kind that fit samples of the entries, the shortest first."""
    names = [*system.columns]
    logs = [*(one.log for one in system.columns.values()), system.target]
    table = system.centred(np.stack(logs))
    most, _ = SOUGHT[kind]
    factors = []
    for fitted in exponents(table, names, most):
        words = sum(system.columns[x].cost + 2 * abs(n) for x, n in fitted.items())
        for sign, constant, powers in _constants(system, fitted):
            text = text_of(kind, sign, constant, powers)
            cost = words + constant.cost + (sign < 0)
            every = {**constant.exponents, **powers}
            number = sign * constant.number
            factors.append(Factor(kind, number, every, text, chunk, cost))
    return sorted(factors, key=lambda one: one.cost)[:BEST]


def _constants(
    system: System, powers: Mapping[str, float]
) -> Iterator[tuple[float, Spelled, Mapping[str, float]]]:
    """Yield the sign and short constants of a product, and its exponents.

    The exponents are those of magnitudes if signs do not matter.
    """
    log, sign = system.target.copy(), system.sign.copy()
    for name, exponent in powers.items():
        log -= exponent * system.columns[name].log
        sign *= system.columns[name].sign ** (exponent % 2 == 1)
    if np.ptp(sign):
        sign = system.sign
        powers = {f"|{name}|": x for name, x in powers.items()}
    if np.ptp(sign):
        return
    there = np.unique(system.problem)
    levels = [float(np.median(log[system.problem == i])) for i in there]
    spread = float(np.median(1 / system.weight))
    known = [system.constants[i] for i in there]
    for constant in spell(levels, known, spread, natural=system.natural):
        yield float(sign[0]), constant, powers
