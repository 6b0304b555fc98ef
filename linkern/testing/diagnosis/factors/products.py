"""Products of quantities between exact and measured entries: the search for them.

The logarithm of a ratio is a sum of logarithms of quantities, with small exponents.
A product is kept if it holds in every entry within rounding, and is shorter than the
numbers that it describes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from linkern.testing.diagnosis.factors.factor import (
    LEAST,
    Factor,
    as_predicted,
    tolerance,
)
from linkern.testing.diagnosis.factors.fitting import exponents
from linkern.testing.diagnosis.factors.quantities import (
    Quantity,
    part,
    signed_quantities,
)
from linkern.testing.diagnosis.factors.spelling import (
    CONSTANTS,
    Spelled,
    spell,
    text_of,
)
from linkern.testing.influence.maps import Index, InfluenceMap, Real

__all__ = ["STRONG", "product_of"]

# Entries that a search looks at, and those on which its results are tried first.
SAMPLE, TRIED = 400, 4000
# Bits by which a description must be shorter than the numbers, and than the next one.
MARGIN = 10.0
# Formulas that are tried of each kind.
BEST = 12
# Errors that are larger than rounding makes them by less follow many formulas. They are
# told by those that leave little of them, and hardly anything if they are constants.
STRONG, WEAK, LEFT = 4.0, 1.5, 0.1
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
    target, sign : array (N,)
        The logarithm and the sign of what is to be explained.
    weight : array (N,)
        One over the error that its logarithm may have.
    problem : array (N,)
        The number of the problem of each entry.
    columns : mapping of str to Quantity
        The quantities, no two of them the same.
    same : mapping of str to list of str
        Further names of each column.
    constants : list of mapping of str to float
        The logarithms of the numbers that all entries of each problem share.
    """

    target: Real
    sign: Real
    weight: Real
    problem: Index
    columns: Mapping[str, Quantity]
    same: Mapping[str, list[str]]
    constants: list[dict[str, float]]

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
    if _gain(lost, parts) > MARGIN:
        return lost
    sizes = np.concatenate([one.error / tolerance(one, one.exact) for one in parts])
    if np.median(sizes) < WEAK:
        return None
    samples, tried = (
        [_sample(one, most // len(parts) + 1) for one in parts]
        for most in (SAMPLE, TRIED)
    )
    tables = [signed_quantities(one, chunk) for one in samples]
    for kind in SOUGHT:
        system = _system(kind, samples, tables)
        for factor in _candidates(kind, system, chunk) if system else ():
            if all(_gain(factor, few) > MARGIN for few in (samples, tried, parts)):
                return factor
    return None


def _sample(entries: InfluenceMap, most: int) -> InfluenceMap:
    """Return some of the entries, drawn by chance."""
    count = entries.exact.size
    rng = np.random.default_rng(count)
    return part(entries, np.sort(rng.permutation(count)[:most]))


def _gain(factor: Factor, parts: Sequence[InfluenceMap]) -> float:
    """Return the bits that a formula spares; minus infinity where it does not hold.

    An entry that is D times as far from the exact one as rounding explains, and follows
    the formula, spares ``log2(D)`` bits.
    """
    before, after = [], []
    for one in parts:
        predicted = factor.predict(one)
        if not as_predicted(one, predicted):
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
    varies = factor.exponents and factor.kind != "instead"
    strong = WEAK if left < (LEFT if varies else LEFT**2) else STRONG
    if np.median(ratios) < strong and factor.cost > 2:
        return -np.inf
    return float(np.log2(ratios).sum()) - factor.cost


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
                allowed = tolerance(one, one.exact) * abs(one.measured / one.exact)
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
    weight = np.minimum(weight, 30 * np.median(weight))
    columns: dict[str, Quantity] = {}
    same: dict[str, list[str]] = {}
    first: dict[bytes, str] = {}
    for name in sorted(tables[0], key=lambda name: tables[0][name].cost):
        if not all(name in table for table in tables):
            continue
        log = np.concatenate([table[name].log for table in tables])[usable]
        sign = np.concatenate([table[name].sign for table in tables])[usable]
        varies = (np.ptp(log[problem == i]) > 1e-9 for i in np.unique(problem))
        if np.isfinite(log).all() and any(varies):
            known = first.setdefault((np.round(log, 8) + 0.0).tobytes(), name)
            same.setdefault(known, []).append(name)
            columns.setdefault(known, Quantity(log, sign, tables[0][name].cost))
    constants = [
        {name: float(np.nanmax(table[name].log)) for name in CONSTANTS if name in table}
        for table in tables
    ]
    log, sign = np.log(abs(target)), np.sign(target)
    return System(log, sign, weight, problem, columns, same, constants)


def _candidates(kind: str, system: System, chunk: int | None) -> Iterator[Factor]:
    """Yield formulas of a kind that fit samples of the entries, the shortest first."""
    names = [*system.columns]
    logs = [*(one.log for one in system.columns.values()), system.target]
    table = system.centred(np.stack(logs))
    most, _ = SOUGHT[kind]
    ranked = [
        (bits, _factor(kind, system, sign, spelled, named, chunk))
        for powers in exponents(table, names, most)
        for bits, sign, spelled, named in _spelled(system, powers)
    ]
    ranked.sort(key=lambda pair: pair[0] + pair[1].cost)
    for bits, factor in ranked[:BEST]:
        # Formulas that leave much more than the best one are no better explained.
        if bits + factor.cost <= ranked[0][0] + ranked[0][1].cost + MARGIN:
            yield factor


def _spelled(
    system: System, powers: Mapping[str, float]
) -> Iterator[tuple[float, float, Spelled, Mapping[str, float]]]:
    """Yield short constants of a product.

    Yields
    ------
    bits, sign : float
        The bits of the misfit; the sign of the constant.
    constant : Spelled
        The constant.
    powers : mapping of str to float
        The exponents, of magnitudes if signs do not matter.
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
    scatter = np.sqrt((system.centred(log[None]) ** 2).mean()) * spread
    scatter = min(3 * scatter / np.sqrt(min(len(log), 100)) + LEAST, spread)
    natural = any("log_decay" in name for name in powers)
    known = [system.constants[i] for i in there]
    for one in spell(levels, known, spread, scatter, natural=natural):
        offsets = np.array([one.log(x) for x in system.constants])
        misfit = np.sqrt(
            (((log - offsets[system.problem]) * system.weight) ** 2).mean()
        )
        # Fits below a hundredth of what rounding allows are as good as each other.
        bits = min(log.size, 48) * float(np.log2(max(misfit, 0.01)))
        yield bits, float(sign[0]), one, powers


def _factor(
    kind: str,
    system: System,
    sign: float,
    constant: Spelled,
    powers: Mapping[str, float],
    chunk: int | None,
) -> Factor:
    """Return a formula, with the others that are the same in all entries."""
    names = {name: system.same[name.strip("|")] for name in powers}
    bars = {name: "|" if name.startswith("|") else "" for name in powers}
    others = tuple(
        text_of(
            kind, sign, constant, {x if n == name else n: powers[n] for n in powers}
        )
        for name, same in names.items()
        for x in (bars[name] + other + bars[name] for other in same[1:])
    )
    cost = constant.cost + (sign < 0)
    cost += sum(
        system.columns[n.strip("|")].cost + 2 * abs(x) for n, x in powers.items()
    )
    every = {**constant.exponents, **powers}
    text = text_of(kind, sign, constant, powers)
    return Factor(kind, sign * constant.number, every, text, chunk, others, cost)
