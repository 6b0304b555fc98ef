"""Factors: measured entries as the shortest formula of exact ones.

Products of quantities are tried first; then what strong errors follow and all entries
agree with; then entries of another place, and products of other exact entries, those
of joined sequences. Nothing is said of entries of which no formula holds.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from linkern.testing.diagnosis.factors.factor import (
    CLAMPS,
    STRONG,
    Factor,
    by_rule,
    holds,
)
from linkern.testing.diagnosis.factors.moves import MOVES, moved
from linkern.testing.diagnosis.factors.products import product_of
from linkern.testing.influence.maps import Flags, InfluenceMap, Real

__all__ = ["explain", "numbers"]

Pairs = Sequence[tuple[InfluenceMap, Flags]]


def numbers(maps: Sequence[InfluenceMap], chosen: Sequence[Flags]) -> str:
    """Return the range of what was measured, for entries that follow no formula."""
    few = [one.part(flags) for one, flags in zip(maps, chosen, strict=True)]
    measured = np.concatenate([one.measured for one in few])
    exact = np.concatenate([one.exact for one in few])
    finite = np.isfinite(measured)
    if not finite.all():
        return "partly not finite" if finite.any() else "not finite"
    bound = np.concatenate([one.bound for one in few])
    # What is within its bound of zero may be zero: a ratio to it says nothing.
    known = abs(exact) > np.where(np.isfinite(bound), bound, 0.0)
    with np.errstate(all="ignore"):
        values = measured[known] / exact[known] if known.any() else measured
        low, high = (float(x) for x in np.quantile(values, (0.02, 0.98)))
    digits = 3
    while f"{low:.{digits}g}" == f"{high:.{digits}g}" and digits < 8:
        digits += 1
    span = f"{low:.{digits}g} to {high:.{digits}g}"
    if known.any():
        return f"unlike any product that was tried: ratios {span}"
    return f"unlike any product that was tried: {span} in place of 0"


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
    pairs = [(x, flags & ~x.silent) for x, flags in zip(maps, chosen, strict=True)]
    strong = [(x, x.beyond(2 * STRONG) & ~x.silent) for x in maps]
    factor = _product(pairs, chunk)
    wide = _everywhere(factor or _product(strong, chunk), maps)
    return wide or factor or _move(pairs, chunk)


def _product(pairs: Pairs, chunk: int | None) -> Factor | None:
    return product_of([one.part(flags) for one, flags in pairs if flags.any()], chunk)


def _everywhere(factor: Factor | None, maps: Sequence[InfluenceMap]) -> Factor | None:
    """Return a clamp, or a constant in a denominator, that all entries agree with.

    It shows where a quantity is beyond some number, and hardly in other entries.
    """
    if factor is None or abs(factor.constant) in (0, 1) or len(factor.exponents) != 1:
        return None
    others = {"in the denominator": ["in the denominator"], "product": [*CLAMPS]}
    for kind in others.get(factor.kind, ()):
        other = replace(factor, kind=kind)
        if all(holds(other, one, ~one.silent & (one.exact != 0)) for one in maps):
            return other
    return None


def _move(pairs: Pairs, chunk: int | None) -> Factor | None:
    """Return the move that holds in all clearly wrong entries, if there is one.

    If none does, a product may hold of other entries that maps have.
    """
    strong = [(one, flags & one.beyond(STRONG)) for one, flags in pairs]
    strong = [(one, flags) for one, flags in strong if flags.any()]
    others = dict.fromkeys(text for one, _ in strong for text in one.others)
    for text in (*MOVES, *others):
        move = partial(moved, text=text)
        factor = by_rule("moved", text, move, 6.0)
        if strong and all(holds(factor, one, flags) for one, flags in strong):
            return factor
    return next(filter(None, (_multiple(strong, x, chunk) for x in others)), None)


def _multiple(pairs: Pairs, text: str, chunk: int | None) -> Factor | None:
    """Return the product by which entries are a multiple of other exact ones."""

    def in_place(one: InfluenceMap) -> InfluenceMap:
        return replace(one, exact=moved(one, text))

    product = _product([(in_place(one), flags) for one, flags in pairs], chunk)
    if product is None or product.kind != "product":
        return None
    words, cost = f"{product.text} times {text}", product.cost + 6.0

    def rule(one: InfluenceMap) -> Real:
        return product.predict(in_place(one))

    return by_rule("moved", words, rule, cost, chunk=chunk)
