"""Factors: the shortest product of quantities between exact and measured entries.

The logarithm of a ratio is a sum of logarithms of quantities, with small exponents.
They are fitted to few columns at once, rounded to multiples of one half, and kept if
they hold in every entry within rounding and describe all entries in fewer bits than the
numbers themselves. Nothing is said of entries of which no product holds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from linkern.testing.diagnosis.influence import Flags, Index, InfluenceMap, Real
from linkern.testing.diagnosis.quantities import Quantity, part, signed_quantities
from linkern.testing.diagnosis.spelling import CONSTANTS, Spelled, formula, spell

__all__ = ["Factor", "explain", "holds", "numbers"]

# Entries that a search looks at, and columns that it fits at once.
SAMPLE, MOST = 400, 3
# Bits by which a description must be shorter than the numbers.
MARGIN = 10.0
# Errors of this many units are at the floor of any comparison.
FLOOR = 16 * 2.0**-24


@dataclass(frozen=True)
class Factor:
    """Formula of measured entries, from exact ones and quantities at hand.

    Parameters
    ----------
    kind : str
        ``product``: exact times a product of quantities; ``added``: exact plus one;
        ``instead``: the product alone; ``in the denominator``: ``constant`` added to a
        quantity by which it is divided; ``clamp``: ``constant`` in place of a quantity.
    constant : float
        The constant of the product.
    exponents : mapping of str to float
        The exponent of each quantity.
    text : str
        The formula in words.
    chunk : int or None
        The size of the chunks that quantities refer to.
    alternatives : tuple of str
        Other formulas of which all entries are the same.
    cost : float
        Its length in bits.
    """

    kind: str
    constant: float
    exponents: Mapping[str, float]
    text: str
    chunk: int | None = None
    alternatives: tuple[str, ...] = ()
    cost: float = field(default=0.0, compare=False)

    def predict(self, entries: InfluenceMap) -> Real:
        """Return the entries that should have been measured; NaN where unknown."""
        product = np.full(entries.exact.shape, self.constant)
        if self.exponents:
            table = signed_quantities(entries, self.chunk)
            for name, exponent in self.exponents.items():
                if name not in table:
                    return np.full(entries.exact.shape, np.nan)
                product = product * _power(table[name], exponent)
        with np.errstate(all="ignore"):
            match self.kind:
                case "added":
                    return np.asarray(entries.exact + product)
                case "instead":
                    return np.asarray(product)
                case "in the denominator":
                    return np.asarray(entries.exact / (1 + product))
            return np.asarray(entries.exact * product)


def _power(quantity: Quantity, exponent: float) -> Real:
    odd = exponent % 2 == 1
    with np.errstate(all="ignore"):
        return np.asarray(np.exp(exponent * quantity.log) * quantity.sign**odd)


def tolerance(entries: InfluenceMap, predicted: Real) -> Real:
    """Return the error that rounding makes of other numbers than the exact ones.

    It is the bound, in proportion where numbers are larger, and as much relatively as
    elsewhere in the map where the exact entry is zero.
    """
    size = abs(entries.exact)
    with np.errstate(all="ignore"):
        relative = np.where(size > 0, entries.bound / size, np.nan)
        usual = np.nanmedian(relative) if (size > 0).any() else 0.0
        usual = max(float(np.nan_to_num(usual, posinf=0.0)), FLOOR)
        grown = entries.bound * np.fmax(1.0, abs(predicted) / size)
    grown = np.where(size > 0, grown, entries.bound)
    return np.asarray(grown + usual * abs(predicted) * (size == 0) + FLOOR * size)


def holds(factor: Factor, entries: InfluenceMap, chosen: Flags) -> bool:
    """Return True if the chosen entries are as predicted, within rounding."""
    few = part(entries, chosen)
    if not few.exact.size:
        return True
    predicted = factor.predict(few)
    if np.isnan(predicted).any():
        return False
    return bool(_distances(few, predicted).max() <= 1)


def _distances(entries: InfluenceMap, predicted: Real) -> Real:
    """Return how far measured entries are from predicted ones, in what is allowed."""
    allowed = tolerance(entries, predicted)
    with np.errstate(all="ignore"):
        error = abs(entries.measured - predicted)
        return np.where(error == 0, 0.0, np.nan_to_num(error / allowed, nan=np.inf))


def numbers(maps: Sequence[InfluenceMap], chosen: Sequence[Flags]) -> str:
    """Return the range of what was measured, for entries that follow no product."""
    few = [part(one, flags) for one, flags in zip(maps, chosen, strict=True)]
    measured = np.concatenate([one.measured for one in few])
    exact = np.concatenate([one.exact for one in few])
    if not np.isfinite(measured).all():
        return "not finite" if not np.isfinite(measured).any() else "partly not finite"
    known = exact != 0
    if not known.any():
        low, high = measured.min(), measured.max()
        return f"unlike any product: {low:.3g} to {high:.3g} in place of 0"
    ratios = np.sort(measured[known] / exact[known])
    low, high = np.quantile(ratios, (0.02, 0.98))
    digits = 3
    while f"{low:.{digits}g}" == f"{high:.{digits}g}" and digits < 8:
        digits += 1
    return f"unlike any product: ratios {low:.{digits}g} to {high:.{digits}g}"


def explain(
    maps: Sequence[InfluenceMap], chosen: Sequence[Flags], chunk: int | None
) -> Factor | None:
    """Return the shortest formula that holds in all chosen entries, if there is one.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of one tensor, of several problems.
    chosen : sequence of array of bool
        The entries of each map that are to be explained.
    chunk : int or None
        The size of chunks, if the entries are described by one.
    """
    parts = [
        part(one, flags & ~one.silent) for one, flags in zip(maps, chosen, strict=True)
    ]
    parts = [one for one in parts if one.exact.size]
    if not parts or not all(np.isfinite(one.measured).all() for one in parts):
        return None
    lost = Factor("product", 0.0, {}, "0", cost=2.0)
    best: Factor | None = None
    if _gain(lost, parts) > MARGIN:
        best = lost
    samples = [_sample(one, SAMPLE // len(parts)) for one in parts]
    tables = [signed_quantities(one, chunk) for one in samples]
    for kind in ("product", "instead", "added", "in the denominator"):
        for factor in _candidates(kind, samples, tables, chunk):
            if best is not None and factor.cost >= best.cost:
                continue
            if _gain(factor, samples) > MARGIN and _gain(factor, parts) > MARGIN:
                best = factor
        if best is not None:
            return best
    return None


def _sample(entries: InfluenceMap, most: int) -> InfluenceMap:
    """Return some of the entries: those known best, and others all over the map."""
    count = entries.exact.size
    if count <= most:
        return entries
    rng = np.random.default_rng(0)
    return part(entries, np.sort(rng.choice(count, most, replace=False)))


def _gain(factor: Factor, parts: Sequence[InfluenceMap]) -> float:
    """Return the bits that a formula spares; minus infinity where it does not hold.

    An entry that is D times as far from the exact one as rounding explains, and follows
    the formula, spares ``log2(D)`` bits. Equal entries spare them once.
    """
    gain, strong = -factor.cost, []
    for one in parts:
        predicted = factor.predict(one)
        if np.isnan(predicted).any() or not (_distances(one, predicted) <= 1).all():
            return -np.inf
        with np.errstate(all="ignore"):
            sure = abs(one.measured - one.exact) / tolerance(one, predicted)
        strong.append(np.nan_to_num(sure, nan=0.0, posinf=2.0**20))
    ratios = np.concatenate(strong)
    if np.median(ratios) < 4 and not (factor.constant == 0 and ratios.min() > 1):
        return -np.inf
    return gain + float(np.log2(np.clip(ratios, 1.0, 2.0**20)).sum())


@dataclass(frozen=True, eq=False)
class _Fit:
    """A system of equations: the logarithm to explain and its columns."""

    target: Real
    sign: Real
    weight: Real
    problem: Index
    columns: dict[str, Quantity]
    same: Mapping[str, tuple[str, ...]]


def _candidates(
    kind: str,
    samples: Sequence[InfluenceMap],
    tables: Sequence[Mapping[str, Quantity]],
    chunk: int | None,
) -> Iterator[Factor]:
    """Yield formulas of a kind that fit samples of the entries, the shortest first."""
    fit = _system(kind, samples, tables)
    if fit is None:
        return
    constants = [
        {name: float(table[name].log[0]) for name in CONSTANTS if name in table}
        for table in tables
    ]
    ranked: list[tuple[float, Factor]] = []
    for exponents in _exponents(kind, fit):
        for factor, residual in _spelled(kind, fit, exponents, constants, chunk):
            ranked.append((factor.cost + residual, factor))
    ranked.sort(key=lambda pair: pair[0])
    seen = None
    for score, factor in ranked[:12]:
        if seen is not None and score > seen + MARGIN:
            return
        seen = score if seen is None else seen
        yield factor


def _system(
    kind: str,
    samples: Sequence[InfluenceMap],
    tables: Sequence[Mapping[str, Quantity]],
) -> _Fit | None:
    """Return the equations of the entries that are known well, if there are enough."""
    rows, logs, signs, weights = [], [], [], []
    for one in samples:
        with np.errstate(all="ignore"):
            match kind:
                case "product":
                    wanted, spread = one.measured / one.exact, one.bound / one.exact
                case "instead":
                    wanted = one.measured
                    spread = tolerance(one, one.measured)
                case "added":
                    wanted = one.measured - one.exact
                    spread = tolerance(one, one.measured)
                case _:
                    wanted = one.exact / one.measured - 1
                    spread = (1 + abs(wanted)) * one.bound / one.exact
            log, relative = np.log(abs(wanted)), abs(spread / wanted) + FLOOR
        usable = np.isfinite(log) & (relative < 0.25)
        if usable.sum() < 0.5 * usable.size:
            return None
        rows.append(usable)
        logs.append(log[usable])
        signs.append(np.sign(wanted[usable]))
        weights.append(1 / relative[usable])
    names = [n for n in tables[0] if all(n in table for table in tables)]
    columns: dict[str, Quantity] = {}
    for name in names:
        many = [table[name] for table in tables]
        log = np.concatenate([q.log[u] for q, u in zip(many, rows, strict=True)])
        sign = np.concatenate([q.sign[u] for q, u in zip(many, rows, strict=True)])
        if np.isfinite(log).all() and np.ptp(log) > 1e-9:
            columns[name] = Quantity(log, sign, many[0].cost)
    columns, same = _distinct(columns)
    problem = np.repeat(np.arange(len(rows)), [u.sum() for u in rows])
    weight = np.concatenate(weights)
    weight = np.minimum(weight, 30 * np.median(weight))
    return _Fit(
        np.concatenate(logs), np.concatenate(signs), weight, problem, columns, same
    )


def _distinct(
    columns: dict[str, Quantity],
) -> tuple[dict[str, Quantity], dict[str, tuple[str, ...]]]:
    """Return the columns without those that repeat an earlier one, and their names."""
    kept: dict[str, Quantity] = {}
    same: dict[str, tuple[str, ...]] = {}
    for name, one in columns.items():
        for other, known in kept.items():
            if np.allclose(one.log, known.log, rtol=1e-9, atol=1e-9):
                same[other] = (*same.get(other, ()), name)
                break
        else:
            kept[name] = one
    return kept, same


def _exponents(kind: str, fit: _Fit) -> Iterator[dict[str, float]]:
    """Yield the exponents of up to three quantities that leave no more than rounding.

    The normal equations are solved for every subset: those of one and two columns in
    closed form, those of three after taking the first column out of all others.
    """
    yield {}
    names = [*fit.columns]
    count = fit.target.size
    if not names or count < 3:
        return
    w = fit.weight / np.sqrt((fit.weight**2).mean())
    table = np.stack([fit.columns[name].log for name in names] + [fit.target])
    table = (table - np.average(table, axis=1, weights=w**2)[:, None]) * w
    size = np.sqrt((table * table).sum(axis=1))
    table = table[:, :] / np.maximum(size, 1e-300)[:, None]
    gram = table @ table.T
    noise = (w / fit.weight / max(size[-1], 1e-300)) ** 2
    allowed = float(noise.sum()) + 1e-12
    ranked: list[tuple[float, tuple[int, ...]]] = []
    most = {"product": MOST, "instead": MOST + 1}.get(kind, 2)
    if kind == "in the denominator":
        most = 1
    distinct = np.unique(np.round(fit.target, 6)).size
    for used in range(1, min(most, MOST) + 1):
        if distinct < 2 * used + 1:
            break
        ranked += _subsets(gram, used, allowed)
    for _, chosen in sorted(ranked)[:400]:
        solved, *_ = np.linalg.lstsq(table[[*chosen]].T, table[-1], rcond=None)
        exact = solved * size[-1] / size[[*chosen]]
        rounded = [_rounded(names[i], x) for i, x in zip(chosen, exact, strict=True)]
        if all(rounded):
            yield {names[i]: x for i, x in zip(chosen, rounded, strict=True)}


def _subsets(
    gram: Real, used: int, allowed: float
) -> list[tuple[float, tuple[int, ...]]]:
    """Return the best subsets of columns, by what they leave of the last one."""
    count = len(gram) - 1
    if used == 1:
        left = 1 - gram[:-1, -1] ** 2
        return [(float(left[i]), (int(i),)) for i in np.flatnonzero(left <= allowed)]
    best: list[tuple[float, tuple[int, ...]]] = []
    for first in range(count) if used > 2 else (None,):
        reduced = gram
        if first is not None:
            reduced = gram - np.outer(gram[first], gram[first])
        own = np.diagonal(reduced)[:-1]
        b = reduced[:-1, -1]
        a = reduced[:-1, :-1]
        det = own[:, None] * own[None, :] - a * a
        gain = b[:, None] ** 2 * own[None, :] + b[None, :] ** 2 * own[:, None]
        gain = gain - 2 * a * b[:, None] * b[None, :]
        usable = det > 1e-7 * np.maximum(own[:, None] * own[None, :], 1e-7)
        usable &= (own > 1e-7)[:, None] & (own > 1e-7)[None, :]
        left = reduced[-1, -1] - np.where(usable, gain / np.where(usable, det, 1), 0.0)
        start = 0 if first is None else first + 1
        good = np.argwhere(np.triu((left <= allowed) & usable, 1))
        good = good[(good >= start).all(axis=1)]
        order = np.argsort(left[good[:, 0], good[:, 1]])[:100]
        best += [
            (float(left[i, j]), (*(() if first is None else (first,)), int(i), int(j)))
            for i, j in good[order]
        ]
    return sorted(best)[:300]


def _rounded(name: str, exponent: float) -> float:
    """Return the multiple of one half beside a number, or what base 2 makes of it."""
    nearest = round(2 * exponent) / 2
    bases = (np.log(2) - 1, 1 / np.log(2) - 1) if "log_decay" in name else ()
    options = (nearest, *(sign * x for x in bases for sign in (1, -1)))
    best = min(options, key=lambda x: abs(x - exponent))
    if abs(best - exponent) > 0.05 or abs(best) > 4:
        return 0.0
    return float(best)


def _spelled(
    kind: str,
    fit: _Fit,
    exponents: dict[str, float],
    constants: Sequence[Mapping[str, float]],
    chunk: int | None,
) -> Iterator[tuple[Factor, float]]:
    """Yield formulas whose constant has a short name, and the bits of their misfit."""
    log, sign = fit.target.copy(), fit.sign.copy()
    cost = 0.0
    for name, exponent in exponents.items():
        column = fit.columns[name]
        log -= exponent * column.log
        sign *= column.sign ** (exponent % 2 == 1)
        cost += column.cost + 2 * abs(exponent)
    if np.ptp(sign):
        return
    levels = [np.median(log[fit.problem == i]) for i in range(len(constants))]
    spread = max(float(np.median(1 / fit.weight)), FLOOR)
    for one in spell(levels, constants, spread):
        rest = log - np.array([one.log(i) for i in constants])[fit.problem]
        misfit = np.maximum(abs(rest) * fit.weight, FLOOR * fit.weight)
        # The largest misfit is to be within rounding; small ones speak for a formula.
        bits = min(misfit.size, 48) * float(np.log2(np.sqrt((misfit**2).mean())))
        yield _made(kind, one, float(sign[0]), exponents, cost, chunk, fit), bits


def _made(
    kind: str,
    constant: Spelled,
    sign: float,
    exponents: dict[str, float],
    cost: float,
    chunk: int | None,
    fit: _Fit,
) -> Factor:
    def text(powers: Mapping[str, float]) -> str:
        return _text(kind, sign, constant, powers)

    others = tuple(
        text({other if n == name else n: x for n, x in exponents.items()})
        for name in exponents
        for other in fit.same.get(name, ())
    )
    powers, total = {**constant.exponents, **exponents}, cost + constant.cost
    number = sign * constant.number
    return Factor(kind, number, powers, text(exponents), chunk, others, total)


def _text(
    kind: str, sign: float, constant: Spelled, exponents: Mapping[str, float]
) -> str:
    """Return a formula in words."""
    if kind == "in the denominator":
        name, power = next(iter({**constant.exponents, **exponents}.items()), ("1", -1))
        term = (
            constant.text if power == -1 else formula(sign, constant, {name: power + 1})
        )
        return f"{name} / ({name} {'-' if sign < 0 else '+'} {term})"
    text = formula(sign, constant, exponents)
    match kind:
        case "added":
            return f"plus {text}"
        case "instead":
            return f"{text} in its place"
    return text
