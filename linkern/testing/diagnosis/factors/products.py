"""Products of quantities between exact and measured entries: the search for them.

The logarithm of a ratio is a sum of logarithms of quantities, with small exponents.
A product is kept if it holds in every entry within rounding, and is shorter than the
numbers that it describes.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from linkern.testing.diagnosis.factors.fitting import System, distinct, exponents
from linkern.testing.diagnosis.factors.formulas import (
    LEAST,
    Factor,
    as_predicted,
    tolerance,
)
from linkern.testing.diagnosis.factors.quantities import (
    Quantity,
    part,
    signed_quantities,
)
from linkern.testing.diagnosis.factors.spelling import (
    CONSTANTS,
    Spelled,
    formula,
    spell,
)
from linkern.testing.influence.maps import InfluenceMap

__all__ = ["STRONG", "product_of"]

# Entries that a search looks at, and those on which its results are tried first.
SAMPLE, TRIED = 400, 4000
# Bits by which a description must be shorter than the numbers, and than the next one.
MARGIN = 10.0
# Quantities in a product, by its kind.
MOST = {"product": 3, "instead": 3, "added": 3, "in the denominator": 1}
# Errors that are larger than rounding makes them by less follow many formulas: of
# constants, and of products that vary as the errors do and leave little of them.
STRONG, WEAK, LEFT = 4.0, 1.5, 0.1


def product_of(parts: Sequence[InfluenceMap], chunk: int | None) -> Factor | None:
    """Return the shortest product of quantities that holds in all entries of maps."""
    if not parts or not all(np.isfinite(one.measured).all() for one in parts):
        return None
    lost = Factor("product", 0.0, {}, "0", chunk, cost=2.0)
    if _gain(lost, parts) > MARGIN:
        return lost
    if (
        np.median(np.concatenate([x.error / tolerance(x, x.exact) for x in parts]))
        < WEAK
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
    left = (np.concatenate(after) ** 2).sum() < LEFT * (ratios**2).sum()
    strong = WEAK if factor.exponents and left else STRONG
    if np.median(ratios) < strong and factor.cost > 2:
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
        (bits, _factor(kind, system, sign, spelled, named, chunk, nothing=nothing))
        for powers in exponents(system, MOST[kind])
        for bits, sign, spelled, named in _spelled(system, powers, constants)
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
    known = [constants[i] for i in there]
    for one in spell(levels, known, spread, scatter, natural=natural):
        rest = log - np.array([one.log(x) for x in constants])[system.problem]
        misfit = np.sqrt(((rest * system.weight) ** 2).mean())
        # Fits below a hundredth of what rounding allows are as good as each other.
        bits = min(rest.size, 48) * float(np.log2(max(misfit, 0.01)))
        yield bits, float(sign[0]), one, powers


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
    cost += sum(
        system.columns[n.strip("|")].cost + 2 * abs(x) for n, x in powers.items()
    )
    every = {**constant.exponents, **powers}
    number = sign * constant.number
    return Factor(kind, number, every, text(powers), chunk, others, cost=cost)


def _quotient(sign: float, constant: Spelled, powers: Mapping[str, float]) -> str:
    """Return the text of 1 over 1 plus a product."""
    divided = [name for name, x in powers.items() if x == -1]
    if not divided:
        return f"1 / (1 + {formula(sign, constant, powers)})"
    name, *_ = divided
    rest = {other: x for other, x in powers.items() if other != name}
    added = formula(1.0, constant, rest)
    return f"{name} / ({name} {'-' if sign < 0 else '+'} {added})"
