"""Search of the shortest set: a conjunction of atoms, or a union of two.

A set costs the bits of its words and numbers, and those of its exceptions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.index_sets.atoms import (
    Atom,
    Measure,
    Places,
    interval_atoms,
)
from linkern.testing.diagnosis.index_sets.chunks import chunk_atoms
from linkern.testing.diagnosis.index_sets.gradient_atoms import value_atoms
from linkern.testing.diagnosis.index_sets.thresholds import thresholds_of
from linkern.testing.influence.maps import Flags, Index, InfluenceMap, Real

__all__ = ["EXCEPTION", "IndexSet", "Table", "inside_of", "shortest"]

# A set is a conjunction of at most so many atoms.
MOST_ATOMS = 4
# Conjunctions that are kept while longer ones are searched.
BEAM = 32
# A wrong entry outside of a set costs as many bits as so many right ones inside.
LOSS, STRICT = 6.0, 1e6
# The same while a union is searched: its first part leaves entries to the second.
PART_LOSS = 0.4
# Exceptions come in at most so many clumps, whose bits are those of one entry.
CLUMPS, ROUNDS = 30, 3
# The second part of a union explains at least this share of the wrong entries.
SECOND_PART = 0.01
# Bits of a right entry inside of a set, and of the words of a union.
EXCEPTION, UNION = 4.0, 4.0
# Kinds of entries, right and wrong, by which conjunctions are searched.
KINDS = 4000
# Sets whose lengths differ by less are as short.
TIE = 2.0


@dataclass(frozen=True)
class IndexSet:
    """Places that a conjunction of atoms holds of.

    Parameters
    ----------
    atoms : tuple of Atom
        Statements that hold of each place; everywhere if there is none.
    alternatives : tuple of str
        Other sets, as short, of the same wrong entries.
    missed : float
        Share of the wrong entries outside of the set.
    spared : float
        Share of the entries of the set that are right.
    """

    atoms: tuple[Atom, ...] = ()
    alternatives: tuple[str, ...] = ()
    missed: float = 0.0
    spared: float = 0.0

    @property
    def text(self) -> str:
        """The set in words."""
        return " and ".join(atom.text for atom in self.atoms) or "everywhere"

    @property
    def cost(self) -> float:
        """Bits of its words and numbers."""
        return sum(atom.cost for atom in self.atoms)

    @property
    def chunk(self) -> int | None:
        """The chunk size that it names."""
        return next((atom.chunk for atom in self.atoms if atom.chunk), None)

    def contains(self, influence: InfluenceMap) -> Flags:
        """Return the entries of a map that lie in it."""
        inside = np.ones(len(influence.exact), np.bool_)
        for atom in self.atoms:
            inside &= atom.contains(influence)
        return inside


@dataclass(frozen=True, eq=False)
class Table:
    """Entries of some maps that say something, and the bits of an exception."""

    known: Mapping[str, Index]
    quantities: Mapping[str, Real]
    wrong: Flags
    exception: float

    def part(self, chosen: Flags) -> "Table":
        """Return the table of some entries."""
        known = {name: x[chosen] for name, x in self.known.items()}
        quantities = {name: x[chosen] for name, x in self.quantities.items()}
        return Table(known, quantities, self.wrong[chosen], self.exception)

    def holds(self, atom: Atom) -> Flags:
        """Return the entries that an atom holds of."""
        return atom.holds({**self.known, **self.quantities}, len(self.wrong))


def inside_of(table: Table, chosen: IndexSet) -> Flags:
    """Return the entries of a table in a set."""
    holds = [table.holds(atom) for atom in chosen.atoms]
    return np.asarray(np.all([np.ones(len(table.wrong), np.bool_), *holds], axis=0))


def shortest(table: Table, measure: Measure | None) -> IndexSet:
    """Return the shortest conjunction, or union of two, of a table."""
    best, length = _shortest(table, measure)
    if length - best.cost > 4 * EXCEPTION:
        union = _union(table, measure)
        if union is not None and union[1] < length:
            return union[0]
    return best


def _shortest(
    table: Table, measure: Measure | None, loss: float = LOSS
) -> tuple[IndexSet, float]:
    """Return the shortest conjunction, and its bits with those of its exceptions."""
    atoms: dict[str, Atom] = {}
    for x in (loss, PART_LOSS * LOSS, STRICT) if loss == LOSS else (loss,):
        weight = np.where(table.wrong, -x, 1.0)
        for rated in (chunk_atoms, interval_atoms, value_atoms):
            pairs = rated(table.known, weight)
            atoms |= {a.text: a for gain, a in pairs if gain > 0}
        if measure is not None:
            more = thresholds_of(measure, table.quantities, table.wrong, x)
            atoms |= {a.text: a for a in more}
    candidates = [*atoms.values()]
    inside, wrong, right = _signatures(table, candidates)
    costs = np.array([0.0, *(a.cost for a in candidates)])
    price = table.exception
    for _ in range(ROUNDS):
        ranked = _ranked(inside, costs, price * right, loss * EXCEPTION * wrong)
        (length, chosen), *others = ranked
        spared = right[np.all(inside[[0, *chosen]], axis=0)].sum()
        price = table.exception / max(1.0, spared / CLUMPS)

    def covered(indices: tuple[int, ...]) -> Flags:
        return np.asarray(np.all(inside[[0, *indices]], axis=0))

    def named(indices: tuple[int, ...]) -> IndexSet:
        chosen = (candidates[k - 1] for k in indices)
        return IndexSet(tuple(sorted(chosen, key=_order)))

    cover = covered(chosen)
    same = [
        named(other).text
        for more, other in others
        if more <= length + TIE and (covered(other) == cover).all()
    ]
    missed = wrong[~cover].sum() / max(wrong.sum(), 1)
    spared = right[cover].sum() / max((right + wrong)[cover].sum(), 1)
    best = replace(
        named(chosen),
        alternatives=tuple(same),
        missed=float(missed),
        spared=float(spared),
    )
    return best, length


def _order(atom: Atom) -> tuple[bool, str]:
    """Return the key that atoms of a set are ordered by: pairs come first."""
    return not atom.text.startswith("pairs"), atom.text


def _signatures(table: Table, atoms: Sequence[Atom]) -> tuple[Flags, Real, Real]:
    """Return the atoms that hold of entries of a kind, and how many such there are.

    Entries are of a kind if the same atoms hold of them. The first row of the result
    holds of all entries: it is no atom.
    """
    rng = np.random.default_rng(0)
    marks = rng.integers(0, 2**62, len(atoms), dtype=np.int64)
    mixed = np.zeros(len(table.wrong), np.int64)
    masks = np.ones((len(atoms) + 1, len(table.wrong)), np.bool_)
    for k, atom in enumerate(atoms):
        masks[k + 1] = table.holds(atom)
        mixed ^= np.where(masks[k + 1], marks[k], 0)
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    wrong = np.bincount(inverse, table.wrong).astype(np.float64)
    return masks[:, first], wrong, np.bincount(inverse) - wrong


Ranked = list[tuple[float, tuple[int, ...]]]


def _ranked(inside: Flags, costs: Real, spared: Real, missed: Real) -> Ranked:
    """Return conjunctions with their bits, the shortest first.

    They are searched on some kinds of entries, and measured on all of them.

    Parameters
    ----------
    inside : array (atoms, kinds) of bool
        Kinds of entries that each atom holds of.
    costs : array (atoms,)
        Bits of the atoms.
    spared, missed : array (kinds,)
        Bits of the right entries of a kind inside of a set, of the wrong ones outside.
    """
    rng = np.random.default_rng(0)
    chosen = np.arange(inside.shape[1])
    if len(chosen) > 2 * KINDS:
        parts = (np.flatnonzero(x) for x in (spared, missed))
        drawn = [rng.permutation(x)[:KINDS] for x in parts]
        chosen = np.unique(np.concatenate(drawn))
    some = [x[chosen] * x.sum() / max(x[chosen].sum(), 1e-9) for x in (spared, missed)]
    beam = _conjunctions(inside[:, chosen].astype(np.float32), costs, *some)
    kept: dict[tuple[int, ...], float] = {}
    for indices in beam[:BEAM]:
        mask = np.all(inside[[0, *indices]], axis=0)
        bits = costs[[*indices]].sum() + spared[mask].sum() + missed[~mask].sum()
        kept[indices] = float(bits)
    best = min(kept, key=lambda x: kept[x])
    while len(best) < min(MOST_ATOMS, len(costs) - 1):
        mask = np.all(inside[[0, *best]], axis=0)
        weights = np.where(mask, spared - missed, 0.0)
        each = missed.sum() + inside @ weights + costs + costs[[*best]].sum()
        k = int(np.argmin(each[1:])) + 1
        if each[k] >= kept[best]:
            break
        best = tuple(sorted((*best, k)))
        kept[best] = float(each[k])
    return sorted((length, indices) for indices, length in kept.items())


def _conjunctions(
    inside: NDArray[np.float32], costs: Real, spared: Real, missed: Real
) -> list[tuple[int, ...]]:
    """Return conjunctions, the shortest first, as `_ranked` does, of all kinds."""
    weighted = (inside * (spared - missed)).astype(np.float32)
    kept: dict[tuple[int, ...], float] = {(): float(spared.sum())}
    beam: list[tuple[int, ...]] = [()]
    for _ in range(MOST_ATOMS):
        masks = np.array([np.prod(inside[[0, *x]], axis=0) for x in beam])
        lengths = (masks @ weighted.T).astype(np.float64) + missed.sum()
        lengths += costs + np.array([[costs[[*x]].sum()] for x in beam])
        longer: dict[tuple[int, ...], float] = {}
        for indices, row in zip(beam, lengths, strict=True):
            for k in np.flatnonzero(row < kept[indices]):
                if k and k not in indices:
                    longer[tuple(sorted((*indices, int(k))))] = float(row[k])
        kept |= longer
        beam = sorted(longer, key=lambda x: longer[x])[:BEAM]
        if not beam:
            break
    return sorted(kept, key=lambda x: kept[x])


def _union(table: Table, measure: Measure | None) -> tuple[IndexSet, float] | None:
    """Return the shortest union of two conjunctions, and its bits."""
    results = []
    for loss in (PART_LOSS, 1.0):
        first, _ = _shortest(table, measure, loss)
        inside = inside_of(table, first)
        rest = table.part(~inside)
        if not first.atoms or rest.wrong.sum() < SECOND_PART * table.wrong.sum():
            continue
        second, _ = _shortest(rest, measure)
        if not second.atoms:
            continue
        both = inside | inside_of(table, second)
        right, wrong = ~table.wrong, table.wrong
        exceptions = min(both[right].sum(), CLUMPS)
        length = first.cost + second.cost + UNION + table.exception * exceptions
        length += LOSS * EXCEPTION * (~both[wrong]).sum()
        atom = _either(first, second)
        spared = float(right[both].mean())
        missed = float((~both[wrong]).mean())
        results.append((IndexSet((atom,), missed=missed, spared=spared), float(length)))
    return min(results, key=lambda x: x[1], default=None)


def _either(first: IndexSet, second: IndexSet) -> Atom:
    """Return the atom that holds of either of two sets."""
    measures = [a.measure for a in (*first.atoms, *second.atoms) if a.measure]

    def test(known: Places) -> Flags:
        count = len(known["length"])
        sides: Iterator[Flags] = (
            np.all([atom.holds(known, count) for atom in part.atoms], axis=0)
            for part in (first, second)
        )
        return next(sides) | next(sides)

    return Atom(
        f"{first.text}, or {second.text}",
        first.cost + second.cost + UNION,
        test,
        chunk=first.chunk or second.chunk,
        measure=next(iter(measures), None),
    )
