"""Index sets: the places of wrong entries in the fewest words.

A set is a conjunction of atoms. Of all conjunctions, the one is chosen whose words,
numbers and exceptions take the fewest bits: the shortest description.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from linkern.testing.diagnosis.index_sets.atoms import (
    TOKENS,
    UNKNOWN,
    Atom,
    Measure,
    interval,
    places,
)
from linkern.testing.diagnosis.index_sets.search import (
    EXCEPTION,
    IndexSet,
    Table,
    inside_of,
    shortest,
)
from linkern.testing.influence.maps import InfluenceMap, Real

__all__ = ["IndexSet", "corner", "describe", "misfit"]

# Wrong entries, and right ones, by which sets are searched.
SAMPLE = 6_000
# Quantities are consulted where a larger share of entries is off.
OPEN = 0.02
# Wrong places that each atom of a set needs, at least.
INSTANCES = 2
# Times that exceptions are added to a sample.
ROUNDS = 3


def corner(maps: Sequence[InfluenceMap]) -> int | None:
    """Return the smallest length at which a wrong entry shows, if there is any."""
    lengths = []
    for x in maps:
        tokens = [x.coordinates[k] for k in ("row", "source") if k in x.coordinates]
        if tokens and x.wrong.any():
            last = np.max([tokens_of[x.wrong] for tokens_of in tokens], axis=0)
            lengths.append(int(last.min()) + 1)
    return min(lengths, default=None)


def misfit(chosen: IndexSet, maps: Sequence[InfluenceMap]) -> tuple[float, float]:
    """Return how far a set is from the wrong entries of some maps.

    Returns
    -------
    missed, spared : float
        The share of the wrong entries that lie outside of the set; the share of the
        entries inside that are right, of those where a deviation would show.
    """
    measure = next((a.measure for a in chosen.atoms if a.measure), None)
    if not any(x.wrong.any() for x in maps):
        return 0.0, float(any(chosen.contains(x).any() for x in maps))
    maps = _of_wrong_calls(maps)
    missed, spared = _errors(_table(maps, measure), chosen)
    if spared > OPEN and _has_dense(maps):
        _, other = _errors(_table(maps, measure, dense=True), chosen)
        spared = min(spared, other)
    return missed, spared


def describe(
    maps: Sequence[InfluenceMap], quantities: Measure | None = None
) -> IndexSet | None:
    """Return the shortest description of the wrong entries of some maps.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of one tensor, of several problems: a set has to explain all of them.
    quantities : callable, optional
        Returns logarithms of quantities of a map. They are consulted where places
        alone do not describe the entries.

    Returns
    -------
    IndexSet or None
        None if no entry is wrong, and if the wrong ones are too few for the words.
    """
    maps = _of_wrong_calls(maps)
    if not maps:
        return None
    best = _of_table(_table(maps, None), None)
    if best.spared > OPEN and _has_dense(maps):
        other = _of_table(_table(maps, None, dense=True), None)
        best = min((best, other), key=lambda x: (x.missed + x.spared, x.cost))
    if best.missed + best.spared > OPEN and quantities is not None:
        other = _of_table(_table([*map(_thinned, maps)], quantities), quantities)
        best = min((best, other), key=lambda x: (x.missed + x.spared, x.cost))
    return best if _instances(maps) >= INSTANCES * len(best.atoms) else None


def _instances(maps: Sequence[InfluenceMap]) -> int:
    """Return how many tokens, or pairs of them, are wrong in calls of some lengths."""
    codes = []
    for x in maps:
        axes = [x.coordinates[k][x.wrong] for k in TOKENS if k in x.coordinates]
        if not axes:
            return int(x.wrong.sum())
        codes.append(x.problem.length + sum(y << 20 * k for k, y in enumerate(axes, 1)))
    return len(np.unique(np.concatenate(codes)))


def _of_wrong_calls(maps: Sequence[InfluenceMap]) -> list[InfluenceMap]:
    """Return the maps of those sorts of calls in which something is wrong.

    Calls are of a sort if they take the same inputs and the same scale.
    """

    def sort(x: InfluenceMap) -> tuple[str, ...]:
        inputs = getattr(x.problem, "inputs", ())
        return (*sorted(inputs), str(x.problem.knobs.get("scale")))

    wrong = {sort(x) for x in maps if x.wrong.any()}
    return [x for x in maps if len(x.exact) and sort(x) in wrong]


def _thinned(influence: InfluenceMap) -> InfluenceMap:
    """Return a map of some of the wrong and some of the right entries."""
    rng = np.random.default_rng(0)
    parts = (np.flatnonzero(x) for x in (influence.wrong, ~influence.wrong))
    few = SAMPLE // 4
    chosen = np.sort(np.concatenate([rng.permutation(x)[:few] for x in parts]))
    columns = ("measured", "exact", "bound", "likely")
    unaffected = influence.unaffected
    return replace(
        influence,
        **{name: getattr(influence, name)[chosen] for name in columns},
        coordinates={k: x[chosen] for k, x in influence.coordinates.items()},
        unaffected=None if unaffected is None else unaffected[chosen],
    )


def _has_dense(maps: Sequence[InfluenceMap]) -> bool:
    """Return True if a map with wrong entries is not one of products."""
    return any(x.wrong.any() and not x.is_product for x in maps)


def _of_table(whole: Table, measure: Measure | None) -> IndexSet:
    """Return the set that a sample and the exceptions from its set lead to."""
    rng = np.random.default_rng(0)
    parts = (np.flatnonzero(x) for x in (whole.wrong, ~whole.wrong))
    chosen = np.concatenate([rng.permutation(x)[:SAMPLE] for x in parts])
    for _ in range(ROUNDS):
        best = shortest(whole.part(chosen), measure)
        off = np.flatnonzero(inside_of(whole, best.atoms) != whole.wrong)
        if np.isin(off, chosen).any() or not len(off):
            break
        chosen = np.concatenate([chosen, rng.permutation(off)[:SAMPLE]])
    missed, spared = _errors(whole, best)
    atoms = _on_chunk(whole, best.atoms)
    return replace(best, atoms=atoms, missed=missed, spared=spared)


def _on_chunk(table: Table, atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """Return the atoms of a set, from the second chunk on if that is the same."""
    size, axis = next(
        ((a.chunk, a.axes[0]) for a in atoms if a.chunk and a.axes), (0, "")
    )
    for atom in atoms:
        name, _ = atom.first
        if size and name in ("row", "source", "length"):
            later = interval(axis if name == "length" else name, ">=", size)
            others = tuple(later if x is atom else x for x in atoms)
            if (inside_of(table, others) == inside_of(table, atoms)).all():
                atoms = others
    return atoms


def _errors(table: Table, chosen: IndexSet) -> tuple[float, float]:
    """Return the share of wrong entries outside of a set, of right ones inside."""
    inside = inside_of(table, chosen.atoms)
    missed, right = (~inside)[table.wrong], (~table.wrong)[inside]
    return float(missed.mean()), float(right.mean()) if len(right) else 0.0


def _table(
    maps: Sequence[InfluenceMap], quantities: Measure | None, dense: bool = False
) -> Table:
    """Return the entries of all maps of which a deviation would show.

    In maps of products a token is affected by those of its channel alone: if `dense`,
    their right entries are left out.
    """
    wrong = np.concatenate([x.wrong for x in maps])
    bound = np.concatenate([x.bound for x in maps])
    exact = abs(np.concatenate([x.exact for x in maps]))
    error = np.concatenate([x.error for x in maps])
    with np.errstate(all="ignore"):
        relative = (error / exact)[wrong & np.isfinite(error)]
        usual = np.median(relative) if relative.size else np.inf
        faint = ~(bound <= usual * exact) & (exact > 0)
        near = np.mean(error[wrong] < 2 * bound[wrong])
    doubtful = np.concatenate([x.doubtful | x.silent for x in maps])
    unclear = doubtful | faint | ~np.isfinite(bound)
    if dense:
        unclear |= np.repeat([x.is_product for x in maps], [len(x.exact) for x in maps])
    chosen = np.flatnonzero(wrong | ~unclear)
    exception = float(np.clip(-np.log2(max(near, 1e-9)), 0.5, EXCEPTION))
    tables = [places(x) for x in maps]
    names = dict.fromkeys(name for x in tables for name in x)
    known = {
        name: np.concatenate(
            [
                x.get(name, np.full(len(one.exact), UNKNOWN))
                for x, one in zip(tables, maps, strict=True)
            ]
        )[chosen]
        for name in names
    }
    other: dict[str, Real] = {}
    if quantities is not None:
        measured = [quantities(x) for x in maps]
        for name in sorted(set(measured[0]).intersection(*measured)):
            other[name] = np.concatenate([x[name] for x in measured])[chosen]
    return Table(known, other, wrong[chosen], exception)
