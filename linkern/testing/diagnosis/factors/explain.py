"""Factors: measured entries as the shortest formula of exact ones.

Products of quantities are tried first; then thresholds, of which all entries of a map
tell; then entries of another place. Nothing is said of entries of which no formula
holds.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from linkern.testing.diagnosis.factors.formulas import Factor, holds
from linkern.testing.diagnosis.factors.moves import MOVES
from linkern.testing.diagnosis.factors.products import STRONG, product_of
from linkern.testing.diagnosis.factors.quantities import part
from linkern.testing.influence.maps import Flags, InfluenceMap

__all__ = ["Factor", "explain", "holds", "numbers"]

Pairs = Sequence[tuple[InfluenceMap, Flags]]


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
    """Return the shortest product that holds in all chosen entries, if there is one."""
    return product_of([part(one, flags) for one, flags in pairs], chunk)


def _clamped(factor: Factor, pairs: Sequence[tuple[InfluenceMap, Flags]]) -> Factor:
    """Return a clamp in place of a constant over a quantity, if it is one.

    The product is on one side of 1 in the chosen entries, on the other in the rest.
    """
    powers = [*factor.exponents.values()]
    if (
        factor.kind != "product"
        or powers not in ([1], [-1])
        or factor.constant in (1, -1)
    ):
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
            return replace(factor, kind=kind, where=_where(factor, kind))
    return factor


def _where(factor: Factor, kind: str) -> str:
    """Return the words for the entries in which a clamp is beyond its limit."""
    ((name, power),) = factor.exponents.items()
    limit = float(-np.log(factor.constant) / power)
    limit = limit if "log_decay" in name else float(np.exp(limit))
    side = "below" if (kind == "clamp from above") == (power > 0) else "above"
    return f"where {name} is {side} {limit:.4g}"
