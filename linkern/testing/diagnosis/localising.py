"""Localising: the place and the factor of a deviation, held to fresh maps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from linkern.testing.diagnosis.alternatives.floors import other_floor
from linkern.testing.diagnosis.alternatives.other_decays import other_decays
from linkern.testing.diagnosis.alternatives.other_gradients import other_gradient
from linkern.testing.diagnosis.alternatives.replaced_inputs import replaced
from linkern.testing.diagnosis.erase_views import erased, read, written
from linkern.testing.diagnosis.factors.explain import explain
from linkern.testing.diagnosis.factors.factor import CLAMPS, Factor, holds
from linkern.testing.diagnosis.index_sets.search import EXACT, IndexSet
from linkern.testing.diagnosis.placing import (
    MOST_WRONG,
    SPARED,
    about_call_size,
    from_call_size_on,
    place_of,
    place_of_affected,
    place_of_two,
    shorter,
    true_part,
    with_rest,
)
from linkern.testing.diagnosis.views import View, beside_rows, lost, row_sums, steps
from linkern.testing.influence.maps import InfluenceMap

__all__ = ["Finding", "localise"]

Maps = list[InfluenceMap]
# Errors beyond so many times the bound are clear.
CLEAR = 2.0
# Errors of rounding to a narrow format are hardly larger than this part of an entry.
COARSE = 2.0**-6
# Bits of the words that a view is named with, and of entries that nothing explains.
WORDS, NUMBERS = 4.0, 40.0
# Views of the terms of a delta rule, and bits of a factor that they cannot shorten.
TERMS, SIMPLE = (erased, read), 10.0
# Times fewer entries that are wrong in what explains others.
FEWER = 8
# What may be in place of an input, of a divisor, of decays or of a gradient.
OTHERS = replaced, other_floor, other_decays, other_gradient
# Bits that shares of a row must spare: they are wrong in fewer places than weights.
SHARES = 1.0


@dataclass(frozen=True)
class Finding:
    """Place and factor of the wrong entries of one tensor.

    Parameters
    ----------
    maps : list of InfluenceMap
        The maps that have wrong entries, fresh ones among them.
    place : IndexSet or None
        The places that are wrong; None if no description held on the fresh maps.
    factor : Factor or None
        Measured entries as a function of the exact ones, or of other inputs; None if
        nothing held.
    broken : bool
        True if some entries are not finite that should be, whatever the view.
    """

    maps: Maps
    place: IndexSet | None
    factor: Factor | None
    broken: bool = False

    @property
    def cost(self) -> float:
        """Bits of all that is said, and of what the place does not fit."""
        place, factor = NUMBERS, NUMBERS
        if self.place is not None:
            place = self.place.cost + NUMBERS * (self.place.missed + self.place.spared)
        if self.factor is not None:
            factor = self.factor.cost
        return place + factor

    def is_whole(self, most: float) -> bool:
        """Return True if there is a place, and a factor of so many bits at most."""
        factor = self.factor
        return self.place is not None and factor is not None and factor.cost <= most

    @property
    def is_partly_right(self) -> bool:
        """True if a formula is in place of weights some of which are right."""
        instead = self.factor is not None and self.factor.kind == "instead"
        return instead and self.place is not None and self.place.spared > EXACT

    def explains(self, other: "Finding") -> bool:
        """Return True if far fewer entries are wrong, where no formula holds.

        What no formula tells is told by numbers, one for each entry.
        """
        place = self.place
        if self.factor or other.factor or place is None or other.coarse:
            return False
        if place.missed + place.spared > SPARED:
            return False
        few, many = (sum(int(x.wrong.sum()) for x in y.maps) for y in (self, other))
        return FEWER * few < many

    @property
    def words(self) -> tuple[str, str]:
        """Words of the place and of the factor, empty where there are none."""
        place = self.place.text if self.place else ""
        return place, self.factor.text if self.factor else ""

    @property
    def coarse(self) -> bool:
        """True if no formula holds and errors are as small as those of rounding."""
        errors = (_relative(one) for one in self.maps)
        return self.factor is None and all(error <= COARSE for error in errors)


def localise(maps: Maps, fresh: Callable[[], Maps]) -> Finding:
    """Return the place and the factor of the wrong entries of one tensor.

    Parameters
    ----------
    maps : list of InfluenceMap
        Maps of the tensor, of which one at least has wrong entries.
    fresh : callable
        Measures maps of it on other inputs. What does not hold on them is fitted to
        all maps once more, and dropped if that fails.
    """
    every = maps, fresh()
    first, second = (_telling(part) for part in every)
    best, shares = _finding(*every), False
    for view, others in _views(maps):
        terms = view in TERMS
        if best.is_whole(SIMPLE if terms else np.inf) and not others:
            continue
        seen = [_seen(view, part) for part in every]
        if any(one.wrong.any() for one in seen[0]):
            finding = _finding(*seen)
            fewer = finding.cost + (SHARES if others else WORDS) < best.cost
            fewer &= finding.words != best.words
            fewer |= terms and finding.explains(best)
            # Beside wrong shares of a row, its sum says little without a factor.
            if fewer and (finding.factor or not (shares and best.place)):
                best, shares = replace(finding, broken=best.broken), others
    if best.factor is None and not best.broken:
        best = _with_replacement(best, first, second)
    elif best.is_partly_right:
        best = _with_divisor(best, first, second)
    elif best.place is None:
        # A product that holds of entries in no place may be a part of what is lost.
        other = _with_replacement(best, first, second)
        best = best if other.place is None else other
    if best.factor is None and not best.coarse and not best.broken:
        return _of_writes(_of_whole_rows(best, *every), *every)
    return best


def _of_whole_rows(finding: Finding, *every: Maps) -> Finding:
    """Return the finding of factors of rows, if weights are right beside each other."""
    scope = finding.maps[0].problem.scope
    if not (_of_weights(finding.maps) and (scope.normalised or scope.operator.floored)):
        return finding
    beside, rows = (
        [_seen(view, maps) for maps in every] for view in (beside_rows, row_sums)
    )
    wrong = [one for maps in every for one in maps if one.wrong.any()]
    told = [one for one in map(beside_rows, wrong) if one is not None]
    if len(told) < len(wrong) or any(one.wrong.any() for x in beside for one in x):
        return finding
    if not any(one.wrong.any() for one in rows[0]):
        return finding
    return replace(_finding(*rows), broken=finding.broken)


def _of_writes(finding: Finding, *every: Maps) -> Finding:
    """Return the finding of what tokens write, if that has a factor in both terms."""
    writes = [_seen(written, maps) for maps in every]
    if finding.factor or not any(one.wrong.any() for one in writes[0]):
        return finding
    other = _finding(*writes)
    return replace(other, broken=finding.broken) if other.factor else finding


def _with_divisor(finding: Finding, first: Maps, second: Maps) -> Finding:
    """Return a finding with the divisor that rows have instead, if there is one.

    Where all that is wrong is divided by 1, no divisor is one in the words of factors.
    """
    wrong = [one for one in (*first, *second) if one.wrong.any()]
    factor = other_floor(wrong)
    return finding if factor is None else Finding(wrong, IndexSet(), factor)


def _with_replacement(finding: Finding, first: Maps, second: Maps) -> Finding:
    """Return a finding with the input, or the gradient, that is in place of another."""
    both = [*first, *second]
    wrong = [one for one in both if one.wrong.any()]
    factor = next(filter(None, (other(wrong) for other in OTHERS)), None)
    if factor is None:
        return finding
    place = finding.place
    told = all(holds(factor, one, ~one.silent) for one in both)
    whole = factor.kind in ("partial", "in a part", "instead") and told
    if whole or factor.kind == "divided":
        place = IndexSet()  # of all entries, those that happen to be equal as well
    elif place is None or not place.is_exact:
        place = place_of_affected(place, factor, first, second)
        if place and told:
            place = replace(place, missed=0.0, spared=0.0)
    return Finding(wrong, place, factor)


def _views(maps: Maps) -> Iterator[tuple[View, bool]]:
    """Yield the views of maps, and if they are tried where a place is known."""
    if _of_weights(maps) and maps[0].problem.scope.normalised:
        yield beside_rows, True
        yield row_sums, False
    if maps[0].problem.scope.operator.erases:
        wrong = [one for one in maps if one.is_product and one.wrong.any()]
        if all(lost(one) is not None for one in wrong):
            yield lost, False
        yield erased, False
        yield read, False
    yield steps, False


def _of_weights(maps: Maps) -> bool:
    """Return True for weights: gradients of queries and keys are no shares of a row."""
    return maps[0].tensor in ("output", "gradient of value")


def _seen(view: View, maps: Maps) -> Maps:
    seen = (view(one) for one in maps)
    return [one for one in seen if one is not None]


def _finding(*every: Maps) -> Finding:
    """Return what is wrong in two lists of maps, the second of fresh inputs."""
    first, second = (_telling(maps) for maps in every)
    both = [*first, *second]
    place = place_of(first, second)
    factor = _explained(_products(first), _products(second), place)
    if factor is not None and not _says_all(factor, both):
        factor = None
    if factor is None and (place is None or not place.is_exact):
        place = place_of_two(first, second) or place
    clamped = factor is not None and factor.kind in CLAMPS
    vague = place is None or place.spared > EXACT or from_call_size_on(place)
    # It is one in some calls, whose entries are right.
    vague |= factor is not None and not {"B", "H"}.isdisjoint(factor.exponents)
    if factor is not None and not clamped and vague:
        place = place_of_affected(place, factor, first, second)
    if place is None:
        place = place_of(first, second, thresholds=True)
    usual = every[0][0].problem.kind
    if usual != first[0].problem.kind:
        # What is usual is right: the inputs that are not say more than a place.
        alike = [_of_sizes(maps, first[0]) for maps in every]
    else:
        alike = [_denying(maps, factor, usual) for maps in every]
    if any(alike):
        contrast = place_of(*alike, thresholds=True)
        if contrast is not None and contrast.spared <= EXACT:
            place = contrast
    if place is None:
        place = place_of(first, second, spared=MOST_WRONG)
        # Of many statements, some hold of most of a few calls by chance; and one of
        # the size of calls holds of the only wrong one.
        if place is not None and (len(place.atoms) > 1 or about_call_size(place)):
            place = None
    if place is not None and place.missed:
        place = with_rest(shorter(place, both), both)
    wrong = [one for one in both if one.wrong.any()]
    broken = any(
        not np.isfinite(one.measured[one.wrong & np.isfinite(one.exact)]).all()
        for one in wrong
    )
    finding = Finding(wrong, place, factor, broken)
    # What rounds by chance is right by chance.
    if place is None or finding.coarse:
        return finding
    others = [x for maps in every for x in maps if x.problem.kind == usual]
    others = [] if any(x.wrong.any() for x in others) else others
    return replace(finding, place=true_part(place, factor, both, others))


def _says_all(factor: Factor, maps: Maps) -> bool:
    """Return True unless a formula in place of weights is one of products alone.

    What multiplies a product may do more to weights that are sums of them. What is in
    place of all weights is in place of sums, too.
    """
    sums = [one for one in maps if one.wrong.any() and not one.is_product]
    erases = maps[0].problem.scope.operator.erases
    alone = factor.kind == "instead" and erases
    return not alone or all(holds(factor, x, x.wrong) for x in sums)


def _relative(one: InfluenceMap) -> float:
    """Return the largest relative error that is usual in a map."""
    with np.errstate(all="ignore"):
        relative = one.error[one.wrong] / abs(one.exact[one.wrong])
    return float(np.median(relative)) if relative.size else 0.0


def _telling(maps: Maps) -> Maps:
    """Return the maps of the first kind of inputs with wrong entries.

    The first kind is that under which all weights are visible. Errors that are hardly
    larger than rounding makes them are told by other kinds, if those have larger ones.
    """
    for least in (CLEAR, 1.0):
        for kind in dict.fromkeys(one.problem.kind for one in maps):
            same = [one for one in maps if one.problem.kind == kind]
            if any(one.beyond(least).any() for one in same):
                return _first_wrong_span(same)
    return maps


def _first_wrong_span(maps: Maps) -> Maps:
    """Return the maps of spans up to the first wrong one.

    Later ones inherit what is wrong in the state that is handed over.
    """

    def last(one: InfluenceMap) -> int:
        return int(one.coordinates.get("span", np.zeros(1)).max(initial=0))

    first = min((last(one) for one in maps if one.wrong.any()), default=0)
    return [one for one in maps if last(one) <= first]


def _of_sizes(maps: Maps, as_in: InfluenceMap) -> Maps:
    """Return the maps of all kinds of inputs that have the sizes of one of them."""
    sizes = as_in.problem.shape
    return [one for one in maps if one.problem.shape.length == sizes.length]


def _denying(maps: Maps, factor: Factor | None, usual: str) -> Maps:
    """Return all maps if a factor that holds of usual ones does not of the others.

    Some of these, all of whose wrong entries it explains, would show it and are right.
    """
    others = [one for one in maps if one.problem.kind != usual]
    if factor is None or not all(holds(factor, one, one.wrong) for one in others):
        return []
    with np.errstate(all="ignore"):
        shown = (abs(factor.predict(x) - x.exact) > CLEAR * x.bound for x in others)
        right = [
            (y & ~x.wrong & ~x.silent).any() for x, y in zip(others, shown, strict=True)
        ]
    return maps if any(right) else []


def _products(maps: Maps) -> Maps:
    """Return the maps that are products if one of them has wrong entries, or all."""
    products = [one for one in maps if one.is_product]
    return products if any(one.wrong.any() for one in products) else maps


def _chunks(place: IndexSet | None) -> tuple[int | None, ...]:
    """Return the sizes of chunks to try for a place; None where it tells of none.

    A place that names sizes has those. Where a place begins at token n, chunks have
    n tokens, or half as many: a state that is overwritten holds two of them.
    """
    if place is None or place.chunks:
        return place.chunks if place else (None,)
    data = place.atoms[0].data if len(place.atoms) == 1 and not place.also else {}
    begins = data.get("of") in ("row", "source") and "counted" not in data
    size = data.get("at_least", 1) if begins else 1
    return tuple(n for n in (size, size // 2) if n > 1) or (None,)


def _explained(maps: Maps, others: Maps, place: IndexSet | None) -> Factor | None:
    """Return a factor that holds in the wrong entries of all maps."""
    pooled, wrong = [*maps, *others], [one for one in others if one.wrong.any()]
    for chunk in _chunks(place):
        factor = explain(maps, [one.wrong for one in maps], chunk)
        if factor and not all(holds(factor, one, one.wrong) for one in wrong):
            factor = explain(pooled, [one.wrong for one in pooled], chunk)
        if factor is not None:
            return factor
    return None
