"""Factors: the shortest product of quantities between exact and measured entries.

The logarithm of a ratio is a sum of logarithms of quantities, with small exponents.
A formula is kept if it holds in every entry within rounding, and is shorter than the
numbers that it describes. Nothing is said of entries of which no formula holds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from linkern.oracle import unit_roundoff
from linkern.testing.diagnosis.fitting import System, distinct, exponents
from linkern.testing.diagnosis.influence import Flags, InfluenceMap, Real
from linkern.testing.diagnosis.moves import MOVES, moved
from linkern.testing.diagnosis.quantities import Quantity, part, signed_quantities
from linkern.testing.diagnosis.spelling import CONSTANTS, Spelled, formula, spell

__all__ = ["Factor", "explain", "holds", "numbers"]

# Entries that a search looks at, and those on which its results are tried first.
SAMPLE, TRIED = 400, 4000
# Bits by which a description must be shorter than the numbers, and than the next one.
MARGIN = 10.0
# Quantities in a product, by its kind.
MOST = {"product": 3, "instead": 3, "added": 3, "in the denominator": 1}
# Errors that are larger than rounding makes them by less follow many formulas.
STRONG = 4
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
        The exponent of each quantity.
    text : str
        The formula in words.
    chunk : int or None
        The size of the chunks that quantities refer to.
    alternatives : tuple of str
        Other formulas that are the same in all entries.
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
        """Return the entries that the formula stands for.

        They are infinite where a quantity does not exist, and NaN where an entry is too
        small to be multiplied.
        """
        if self.kind == "moved":
            return moved(entries, self.text)
        names = frozenset(self.exponents)
        table = signed_quantities(entries, self.chunk, names) if names else {}
        product = np.full(entries.exact.shape, self.constant)
        for name, exponent in self.exponents.items():
            if name not in table:
                return np.full(entries.exact.shape, np.inf)
            odd = exponent % 2 == 1
            with np.errstate(all="ignore"):
                power = np.exp(exponent * table[name].log) * table[name].sign ** odd
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
        return bool(there) and _as_predicted(part(entries, chosen), predicted)
    few = part(entries, chosen)
    return _as_predicted(few, factor.predict(few))


def _as_predicted(entries: InfluenceMap, predicted: Real) -> bool:
    with np.errstate(all="ignore"):
        error = abs(entries.measured - predicted)
        close = (error <= tolerance(entries, predicted)) & np.isfinite(predicted)
    return bool((close | np.isnan(predicted)).all())


def numbers(maps: Sequence[InfluenceMap], chosen: Sequence[Flags]) -> str:
    """Return the range of what was measured, for entries that follow no formula."""
    few = [part(one, flags) for one, flags in zip(maps, chosen, strict=True)]
    measured = np.concatenate([one.measured for one in few])
    exact = np.concatenate([one.exact for one in few])
    finite = np.isfinite(measured)
    if not finite.all():
        return "partly not finite" if finite.any() else "not finite"
    known = exact != 0
    values = measured[known] / exact[known] if known.any() else measured
    low, high = (float(x) for x in np.quantile(values, (0.02, 0.98)))
    digits = 3
    while f"{low:.{digits}g}" == f"{high:.{digits}g}" and digits < 8:
        digits += 1
    span = f"{low:.{digits}g} to {high:.{digits}g}"
    if known.any():
        return f"unlike any product: ratios {span}"
    return f"unlike any product: {span} in place of 0"


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
    every = [(x, flags & ~x.silent) for x, flags in zip(maps, chosen, strict=True)]
    pairs = [pair for pair in every if pair[1].any()]
    # Weights are products at least where keys have one channel each.
    simple = [pair for pair in pairs if "key channel" in pair[0].coordinates]
    factor = _product(pairs, chunk)
    if factor is None and len(simple) < len(pairs):
        factor = _product(simple, chunk)
    if factor is not None:
        return _clamped(factor, every)
    return _threshold(maps, chunk) or _move(pairs)


Pairs = Sequence[tuple[InfluenceMap, Flags]]


def _threshold(maps: Sequence[InfluenceMap], chunk: int | None) -> Factor | None:
    """Return a clamp, or a constant in a denominator, of which all entries follow.

    It shows where a quantity is beyond some number, and hardly in other entries.
    """
    pairs = [(one, (one.error > 2 * STRONG * one.bound) & ~one.silent) for one in maps]
    factor = _product([pair for pair in pairs if pair[1].any()], chunk)
    factor = factor and _clamped(factor, pairs)
    if factor is None or factor.kind in ("product", "instead", "added"):
        return None
    there = [~one.silent & (one.exact != 0) for one in maps]
    if all(holds(factor, one, flags) for one, flags in zip(maps, there, strict=True)):
        return factor
    return None


def _move(pairs: Pairs) -> Factor | None:
    """Return the move that holds in all chosen entries, if there is one."""
    few = [(one, flags & (one.error > STRONG * one.bound)) for one, flags in pairs]
    few = [(one, flags) for one, flags in few if flags.any()]
    for text in MOVES:
        factor = Factor("moved", 1.0, {}, text, cost=6.0)
        if few and all(holds(factor, one, flags) for one, flags in few):
            return factor
    return None


def _product(pairs: Pairs, chunk: int | None) -> Factor | None:
    """Return the shortest product of quantities that holds, if there is one."""
    parts = [part(one, flags) for one, flags in pairs]
    if not parts or not all(np.isfinite(one.measured).all() for one in parts):
        return None
    lost = Factor("product", 0.0, {}, "0", chunk, cost=2.0)
    if _gain(lost, parts) > MARGIN:
        return lost
    if (
        np.median(np.concatenate([x.error / tolerance(x, x.exact) for x in parts]))
        < STRONG
    ):
        return None
    samples = [_sample(one, SAMPLE // len(parts) + 1) for one in parts]
    tried = [_sample(one, TRIED // len(parts) + 1) for one in parts]
    tables = [signed_quantities(one, chunk) for one in samples]
    for kind in MOST:
        for factor in _candidates(kind, samples, tables, chunk):
            if all(_gain(factor, few) > MARGIN for few in (samples, tried, parts)):
                return factor
    return None


def _sample(entries: InfluenceMap, most: int) -> InfluenceMap:
    """Return some of the entries, drawn by chance."""
    count = entries.exact.size
    if count <= most:
        return entries
    rng = np.random.default_rng(count)
    return part(entries, np.sort(rng.choice(count, most, replace=False)))


def _gain(factor: Factor, parts: Sequence[InfluenceMap]) -> float:
    """Return the bits that a formula spares; minus infinity where it does not hold.

    An entry that is D times as far from the exact one as rounding explains, and follows
    the formula, spares ``log2(D)`` bits.
    """
    distances = []
    for one in parts:
        predicted = factor.predict(one)
        if not _as_predicted(one, predicted):
            return -np.inf
        with np.errstate(all="ignore"):
            allowed = tolerance(one, np.nan_to_num(predicted))
            distances.append((one.error / allowed)[~np.isnan(predicted)])
    ratios = np.clip(np.nan_to_num(np.concatenate(distances)), 1.0, 2.0**20)
    if not ratios.size or (np.median(ratios) < STRONG and factor.cost > 2):
        return -np.inf
    return float(np.log2(ratios).sum()) - factor.cost


def _candidates(
    kind: str,
    samples: Sequence[InfluenceMap],
    tables: Sequence[Mapping[str, Quantity]],
    chunk: int | None,
) -> Iterator[Factor]:
    """Yield formulas of a kind that fit samples of the entries, the shortest first."""
    system = _system(kind, samples, tables)
    if system is None:
        return
    constants = [
        {name: float(np.nanmax(table[name].log)) for name in CONSTANTS if name in table}
        for table in tables
    ]
    nothing = not any(one.exact.any() for one in samples)
    ranked = [
        (bits, _factor(kind, system, sign, spelled, powers, chunk, nothing=nothing))
        for powers in exponents(system, MOST[kind])
        for bits, sign, spelled in _spelled(system, powers, constants)
    ]
    ranked.sort(key=lambda pair: pair[0] + pair[1].cost)
    for bits, factor in ranked[:12]:
        # Formulas that leave much more than the best one are no better explained.
        if bits + factor.cost <= ranked[0][0] + ranked[0][1].cost + MARGIN:
            yield factor


def _system(
    kind: str,
    samples: Sequence[InfluenceMap],
    tables: Sequence[Mapping[str, Quantity]],
) -> System | None:
    """Return the equations of the entries that are known well, if most of them are."""
    wanted, spread = [], []
    for one in samples:
        allowed = tolerance(one, one.measured)
        with np.errstate(all="ignore"):
            match kind:
                case "product":
                    # Errors of a product are in proportion to it.
                    wanted.append(one.measured / one.exact)
                    spread.append(tolerance(one, one.exact) / abs(one.exact))
                case "instead":
                    wanted.append(one.measured)
                    spread.append(allowed / abs(one.measured))
                case "added":
                    wanted.append(one.measured - one.exact)
                    spread.append(allowed / abs(wanted[-1]))
                case _:
                    wanted.append(one.exact / one.measured - 1)
                    off = allowed * abs(one.exact) / one.measured**2
                    spread.append(off / abs(wanted[-1]))
    target, relative = np.concatenate(wanted), np.concatenate(spread)
    usable = np.isfinite(target) & (target != 0) & (relative < 0.25)
    if not usable.any() or usable.mean() < 0.5:
        return None
    count = [one.exact.size for one in samples]
    problem = np.repeat(np.arange(len(samples)), count)[usable]
    columns: dict[str, Quantity] = {}
    for name in [x for x in tables[0] if all(x in table for table in tables)]:
        log, sign = (
            np.concatenate([getattr(table[name], x) for table in tables])[usable]
            for x in ("log", "sign")
        )
        if np.isfinite(log).all():
            one_map = np.ptp(log[problem == problem[0]])
            if one_map > 1e-9 or any(
                np.ptp(log[problem == i]) > 1e-9 for i in np.unique(problem)
            ):
                columns[name] = Quantity(log, sign, tables[0][name].cost)
    weight = 1 / relative[usable]
    weight = np.minimum(weight, 30 * np.median(weight))
    target = target[usable]
    kept = distinct(columns)
    return System(np.log(abs(target)), np.sign(target), weight, problem, *kept)


def _spelled(
    system: System,
    powers: Mapping[str, float],
    constants: Sequence[Mapping[str, float]],
) -> Iterator[tuple[float, float, Spelled]]:
    """Yield short constants of a product, with its sign and the bits of its misfit."""
    log, sign = system.target.copy(), system.sign.copy()
    for name, exponent in powers.items():
        log -= exponent * system.columns[name].log
        sign *= system.columns[name].sign ** (exponent % 2 == 1)
    if np.ptp(sign):
        return
    there = np.unique(system.problem)
    levels = [float(np.median(log[system.problem == i])) for i in there]
    spread = float(np.median(1 / system.weight))
    scatter = np.sqrt((system.centred(log[None]) ** 2).mean()) * spread
    scatter = min(3 * scatter / np.sqrt(min(len(log), 100)) + LEAST, spread)
    natural = any("log_decay" in name for name in powers)
    known = [constants[i] for i in there]
    for one in spell(levels, known, spread, scatter, natural=natural):
        rest = log - np.array([one.log(x) for x in constants])[system.problem]
        misfit = np.sqrt(((rest * system.weight) ** 2).mean())
        # Fits below a hundredth of what rounding allows are as good as each other.
        bits = min(rest.size, 48) * float(np.log2(max(misfit, 0.01)))
        yield bits, float(sign[0]), one


def _factor(
    kind: str,
    system: System,
    sign: float,
    constant: Spelled,
    powers: Mapping[str, float],
    chunk: int | None,
    *,
    nothing: bool,
) -> Factor:
    """Return a formula, with the others that are the same in all entries."""

    def text(powers: Mapping[str, float]) -> str:
        if kind == "in the denominator":
            return _quotient(sign, constant, powers)
        words = formula(sign, constant, powers)
        suffix = "" if nothing else " in its place"
        return {"added": f"plus {words}", "instead": words + suffix}.get(kind, words)

    others = tuple(
        text({other if n == name else n: x for n, x in powers.items()})
        for name in powers
        for other in system.same.get(name, ())
    )
    cost = constant.cost + (sign < 0)
    cost += sum(system.columns[n].cost + 2 * abs(x) for n, x in powers.items())
    every = {**constant.exponents, **powers}
    number = sign * constant.number
    return Factor(kind, number, every, text(powers), chunk, others, cost)


def _quotient(sign: float, constant: Spelled, powers: Mapping[str, float]) -> str:
    """Return the text of 1 over 1 plus a product."""
    divided = [name for name, x in powers.items() if x == -1]
    if not divided:
        return f"1 / (1 + {formula(sign, constant, powers)})"
    name, *_ = divided
    rest = {other: x for other, x in powers.items() if other != name}
    added = formula(1.0, constant, rest)
    return f"{name} / ({name} {'-' if sign < 0 else '+'} {added})"


def _clamped(factor: Factor, pairs: Sequence[tuple[InfluenceMap, Flags]]) -> Factor:
    """Return a clamp in place of a constant over a quantity, if it is one.

    The product is on one side of 1 in the chosen entries, on the other in the rest.
    """
    powers = [*factor.exponents.values()]
    if factor.kind != "product" or powers not in ([1], [-1]) or factor.constant == 1:
        return factor
    inside, outside = [], []
    for one, flags in pairs:
        ratio = replace(factor, kind="instead").predict(one)
        inside.append(ratio[flags])
        outside.append(ratio[~flags & ~one.silent & (one.exact != 0)])
    ratios, others = np.concatenate(inside), np.concatenate(outside)
    others = others[np.isfinite(others)]
    if not others.size:
        return factor
    for kind, chosen, rest in (
        ("clamp from above", ratios < 1, others >= 1),
        ("clamp from below", ratios > 1, others <= 1),
    ):
        if chosen.all() and rest.mean() > 0.98:
            return replace(factor, kind=kind)
    return factor
