"""Placing: sets of wrong entries, held to fresh maps and to what is right."""

from dataclasses import replace

import numpy as np

from linkern.testing.diagnosis.factors.factor import Factor, holds
from linkern.testing.diagnosis.factors.quantities import SUMMED, signed_quantities
from linkern.testing.diagnosis.factors.spelling import CONSTANTS, is_logarithm
from linkern.testing.diagnosis.index_sets.coordinates import BOUNDED
from linkern.testing.diagnosis.index_sets.describe import describe, is_certain, misfit
from linkern.testing.diagnosis.index_sets.search import EXACT, IndexSet
from linkern.testing.influence.maps import InfluenceMap, Real

__all__ = [
    "MOST_WRONG",
    "SPARED",
    "about_call_size",
    "affected",
    "from_call_size_on",
    "place_of",
    "place_of_affected",
    "place_of_two",
    "shorter",
    "true_part",
    "with_rest",
]

Maps = list[InfluenceMap]
# A place that leaves out more than this share of the wrong entries, or holds more than
# this share of right ones, is none.
MISSED, SPARED = 0.02, 0.25
# Many statements fit by chance: then they hold no more than this share of right ones.
MANY, FEW_SPARED = 3, 0.05
# Where no words are that exact, those of which most entries are wrong.
MOST_WRONG = 0.5


def place_of(
    first: Maps, second: Maps, *, thresholds: bool = False, spared: float = SPARED
) -> IndexSet | None:
    """Return the place of the wrong entries, if it holds on fresh maps."""
    measure = _numbers if thresholds else None
    place = describe(first, measure)
    if not _located(place, second, spared):
        place = describe([*first, *second], measure)
    return place if _located(place, [*first, *second], spared) else None


def place_of_affected(
    place: IndexSet | None, factor: Factor, first: Maps, second: Maps
) -> IndexSet | None:
    """Return the place among the entries that a factor changes.

    One statement that is true of all of them says more than none. A constant in a
    denominator that no entry contradicts is in all of them.
    """
    if factor.kind == "in the denominator" and all(
        holds(factor, one, ~one.silent) for one in (*first, *second)
    ):
        return IndexSet()
    changed = [affected(part, factor) for part in (first, second)]
    shortest = place_of(*changed)
    if place is not None and from_call_size_on(place):
        return shortest if shortest is not None and not shortest.atoms else place
    if shortest is not None and not shortest.atoms and place and len(place.atoms) == 1:
        missed, spared = misfit(place, [*changed[0], *changed[1]])
        return place if missed + spared == 0 else shortest
    return shortest or place


def shorter(place: IndexSet, maps: Maps) -> IndexSet:
    """Return a place without the statements that make it fit no better."""
    for atom in place.atoms:
        others = tuple(x for x in place.atoms if x is not atom)
        missed, spared = misfit(IndexSet(others), maps)
        if missed + spared <= sum(misfit(place, maps)):
            return shorter(IndexSet(others, missed=missed, spared=spared), maps)
    return place


def place_of_two(first: Maps, second: Maps) -> IndexSet | None:
    """Return the union of two places of chunks that is all that is wrong, if one is.

    A chunk whose first state is a token late is wrong in two ways. Of places without
    chunks, two together fit by chance.
    """
    both = [*first, *second]
    one = describe(both, pure=True)
    if one is None or one.chunk is None or one.spared > EXACT:
        return None
    two = with_rest(shorter(one, both), both)
    return two if two.also and two.is_exact else None


def with_rest(place: IndexSet, maps: Maps) -> IndexSet:
    """Return a place with a second one, if that is all of what the first leaves out."""
    outside = [one.part(~place.contains(one)) for one in maps]
    rest = describe([one for one in outside if len(one.exact)])
    if rest is None or not 0 < len(rest.atoms) <= 2:
        return place
    if max(misfit(rest, outside)) > EXACT:
        return place
    both = replace(place, also=rest.atoms, missed=0.0)
    return replace(both, missed=misfit(both, maps)[0])


def true_part(
    place: IndexSet, factor: Factor | None, maps: Maps, usual: Maps
) -> IndexSet | None:
    """Return a place, or all but one of its statements, if that is true of some maps.

    Nothing is wrong in the usual ones.
    """
    if factor is not None:
        maps, usual = affected(maps, factor), affected(usual, factor)
    if is_certain(place, maps, usual):
        return place
    for left_out in place.atoms if len(place.atoms) > 1 else ():
        atoms = tuple(x for x in place.atoms if x is not left_out)
        missed, spared = misfit(IndexSet(atoms), maps)
        part = IndexSet(atoms, missed=missed, spared=spared)
        if missed <= MISSED and spared <= SPARED and is_certain(part, maps, usual):
            return part
    return None


def from_call_size_on(place: IndexSet) -> bool:
    """Return True if a place is about the size of calls alone, from a number on.

    A quantity that is 1 in a call hides a factor of it: small calls are few.
    """
    return about_call_size(place) and not any(atom.chunk for atom in place.atoms)


def about_call_size(place: IndexSet) -> bool:
    """Return True if a place is about the size of calls alone."""
    sizes = {(name,) for name in BOUNDED}
    return bool(place.atoms) and all(atom.axes in sizes for atom in place.atoms)


def _located(place: IndexSet | None, maps: Maps, most: float) -> bool:
    """Return True if the wrong entries of some maps are those of a place.

    Of its entries, at most a share of `most` may be right.
    """
    if place is None:
        return False
    missed, spared = misfit(place, maps)
    most = min(most, FEW_SPARED) if len(place.atoms) >= MANY else most
    return missed <= MISSED and spared <= most


def affected(maps: Maps, factor: Factor) -> Maps:
    """Return maps with the entries that a factor does not change marked as such."""
    marked = []
    for one in maps:
        with np.errstate(all="ignore"):
            change = abs(factor.predict(one) - one.exact)
        marked.append(replace(one, unaffected=change <= one.bound))
    return marked


def _numbers(one: InfluenceMap, only: frozenset[str] | None = None) -> dict[str, Real]:
    """Return the quantities of a map; of those of both signs, also the magnitudes.

    If names are given, the others are not computed.
    Sizes are left out: places have words for large ones, and small ones only put more
    tokens into a channel, where more can be seen. So is what an erase leaves,
    summed over channels: no kernel bounds it, and it is large where a rate is small.
    """
    numbers: dict[str, Real] = {}
    named = None if only is None else frozenset(name.strip("|") for name in only)
    for name, x in signed_quantities(one, None, named).items():
        if name in CONSTANTS or SUMMED in name:
            continue
        if is_logarithm(name):
            numbers[name] = x.log
            continue
        with np.errstate(over="ignore", under="ignore"):
            size = np.exp(x.log)
        numbers[name] = x.sign * size
        if (x.sign < 0).any():
            numbers[f"|{name}|"] = size
    return numbers
