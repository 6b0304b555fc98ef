"""Search of the shortest set: a conjunction of atoms.

A set costs the bits of its words and numbers, and those of its exceptions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linkern.testing.diagnosis.index_sets.atoms import (
    BEST,
    Atom,
    Measure,
    interval_atoms,
)
from linkern.testing.diagnosis.index_sets.chunks import chunk_atoms
from linkern.testing.diagnosis.index_sets.columns import Columns, beside
from linkern.testing.diagnosis.index_sets.places import anywhere
from linkern.testing.diagnosis.index_sets.thresholds import threshold_atoms
from linkern.testing.influence.maps import Flags, Index, InfluenceMap, Real

__all__ = ["EXACT", "EXCEPTION", "IndexSet", "Table", "inside_of", "shortest"]

# A set is a conjunction of at most so many atoms.
MOST_ATOMS = 4
# Conjunctions that are kept while longer ones are searched.
BEAM = 32
# A wrong entry outside of a set costs as many bits as so many right ones inside.
LOSS = 6.0
# The same while the numbers of atoms are chosen: each may hold of too few, or too many.
LOOSE, STRICT = 2.4, 1e6
# Exceptions come in at most so many clumps, whose bits are those of one entry.
CLUMPS, ROUNDS = 60, 3
# Bits of a right entry inside of a set.
EXCEPTION = 4.0
# Sets whose lengths differ by less are as short.
TIE = 2.0
# Other sets, as short, that are said.
SAID = 4
# A set with no larger share of exceptions is exact.
EXACT = 0.01


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
    also : tuple of Atom
        A second conjunction, of places outside of the first; empty if there is none.
    """

    atoms: tuple[Atom, ...] = ()
    alternatives: tuple[str, ...] = ()
    missed: float = 0.0
    spared: float = 0.0
    also: tuple[Atom, ...] = ()

    @property
    def text(self) -> str:
        """The set in words."""
        parts = (self.atoms, self.also) if self.also else (self.atoms,)
        every = (" and ".join(atom.text for atom in x) or "everywhere" for x in parts)
        return ", or ".join(every)

    @property
    def data(self) -> tuple[tuple[Mapping[str, Any], ...], ...]:
        """The same for programs: a conjunction of statements, or two of them."""
        parts = (self.atoms, self.also) if self.also else (self.atoms,)
        return tuple(tuple(atom.data for atom in part) for part in parts)

    @property
    def cost(self) -> float:
        """Bits of its words and numbers."""
        return sum(atom.cost for atom in (*self.atoms, *self.also))

    @property
    def chunks(self) -> tuple[int, ...]:
        """The chunk sizes that it names."""
        return tuple(dict.fromkeys(atom.chunk for atom in self.atoms if atom.chunk))

    @property
    def chunk(self) -> int | None:
        """The first chunk size that it names."""
        return next(iter(self.chunks), None)

    @property
    def is_exact(self) -> bool:
        """True if hardly any exceptions are known."""
        return max(self.missed, self.spared) <= EXACT

    def contains(self, influence: InfluenceMap) -> Flags:
        """Return the entries of a map that lie in it."""
        inside = np.zeros(len(influence.exact), np.bool_)
        for atoms in (self.atoms, self.also) if self.also else (self.atoms,):
            every = [atom.contains(influence) for atom in atoms]
            inside |= np.all(every, axis=0) if every else True
        return inside


@dataclass(frozen=True, eq=False)
class Table:
    """Entries of some calls that say something, and the bits of an exception."""

    known: Columns
    quantities: Columns
    wrong: Flags
    exception: float
    call: Index

    def part(self, chosen: Flags | Index) -> "Table":
        """Return the table of some entries."""
        known, quantities = self.known.part(chosen), self.quantities.part(chosen)
        wrong, call = self.wrong[chosen], self.call[chosen]
        return Table(known, quantities, wrong, self.exception, call)

    def holds(self, atom: Atom) -> Flags:
        """Return the entries that an atom holds of."""
        return atom.holds(beside(self.known, self.quantities), len(self.wrong))


def inside_of(table: Table, atoms: Sequence[Atom]) -> Flags:
    """Return the entries of a table that all of some atoms hold of."""
    inside = np.ones(len(table.wrong), np.bool_)
    for atom in atoms:
        inside &= table.holds(atom)
    return inside


def shortest(table: Table, measure: Measure | None) -> IndexSet:
    """Return the set of the fewest bits, with those of its exceptions."""
    candidates = _candidates(table, measure)
    inside, wrong, right = _signatures(table, candidates)
    costs = np.array([0.0, *(a.cost for a in candidates)])
    apart = _apart([None, *(a.chunk for a in candidates)])
    price = table.exception
    for _ in range(ROUNDS):
        ranked = _ranked(inside, costs, price * right, LOSS * EXCEPTION * wrong, apart)
        (length, chosen), *others = ranked
        cover = inside[[0, *chosen]].all(axis=0)
        price = table.exception / max(1.0, right[cover].sum() / CLUMPS)
    same = [chosen]
    for more, other in others:
        if more <= length + TIE and (inside[[0, *other]].all(axis=0) == cover).all():
            same += [other] * all(not {*other} > {*shorter} for shorter in same)
    return _said([_named(candidates, other) for other in same])


def _said(same: Sequence[IndexSet]) -> IndexSet:
    """Return the first set, and those of the others that differ from it somewhere.

    Of sets that hold of the same places everywhere, that of fewest chunk sizes is said.
    """
    known = anywhere()
    alike: dict[bytes, list[IndexSet]] = {}
    for one in same:
        if any(atom.measure for atom in one.atoms):  # of quantities nothing is known
            alike[one.text.encode()] = [one]
            continue
        inside = [atom.holds(known, len(known["row"])) for atom in one.atoms]
        alike.setdefault(np.all(inside, axis=0).tobytes(), []).append(one)

    def sizes(one: IndexSet) -> tuple[int, int]:
        named = [atom.chunk for atom in one.atoms if atom.chunk]
        return len({*named}), -len(named)

    best, *others = (min(sets, key=sizes) for sets in alike.values())
    return replace(best, alternatives=tuple(x.text for x in others[:SAID]))


def _candidates(table: Table, measure: Measure | None) -> list[Atom]:
    """Return the atoms that tell wrong entries from right ones, by some losses."""
    atoms: dict[str, Atom] = {}
    losses = np.array([[LOSS], [LOOSE], [STRICT]])
    weights = np.where(table.wrong, -losses, 1.0)
    for weight, rated in zip(weights, chunk_atoms(table.known, weights), strict=True):
        rated.extend(interval_atoms(table.known, weight))
        if measure is not None:
            bounds = threshold_atoms(measure, table.quantities, weight)
            best = sorted(bounds, key=lambda pair: (-pair[0], pair[1].text))
            rated.extend(best[: 2 * BEST])
        atoms |= {atom.text: atom for gain, atom in rated if gain > 0}
    return [*atoms.values()]


def _named(candidates: Sequence[Atom], chosen: Sequence[int]) -> IndexSet:
    """Return the set of some candidates; statements about pairs come first."""
    atoms = [candidates[k - 1] for k in chosen]
    key = lambda a: (not a.text.startswith("pairs"), a.text)  # noqa: E731
    return IndexSet(tuple(sorted(atoms, key=key)))


def _signatures(table: Table, atoms: Sequence[Atom]) -> tuple[Flags, Real, Real]:
    """Return the atoms that hold of entries of a kind, and how many such there are.

    Entries are of a kind if the same atoms hold of them. The first row of the result
    holds of all entries: it is no atom.
    """
    every = np.ones(len(table.wrong), np.bool_)
    masks = np.array([every, *map(table.holds, atoms)])
    packed = np.packbits(masks, axis=0)
    marks = np.random.default_rng(0).integers(1, 2**62, (len(packed), 256))
    mixed = np.zeros(len(every), np.int64)
    for mark, x in zip(marks, packed, strict=True):
        mixed ^= mark[x]
    _, first, kind = np.unique(mixed, return_index=True, return_inverse=True)
    wrong = np.bincount(kind, table.wrong).astype(np.float64)
    return masks[:, first], wrong, np.bincount(kind) - wrong


def _apart(chunks: Sequence[int | None]) -> Flags:
    """Return the pairs of atoms with chunks of which neither fits into the other.

    Together they would draw any edge; no kernel has such chunks.
    """
    one = np.array([chunk or 1 for chunk in chunks])
    return np.asarray((one[:, None] % one != 0) & (one % one[:, None] != 0))


def _ranked(
    inside: Flags, costs: Real, spared: Real, missed: Real, apart: Flags
) -> list[tuple[float, tuple[int, ...]]]:
    """Return conjunctions with their bits, the shortest first.

    Parameters
    ----------
    inside : array (atoms, kinds) of bool
        Kinds of entries that each atom holds of.
    costs : array (atoms,)
        Bits of the atoms.
    spared, missed : array (kinds,)
        Bits of the right entries of a kind inside of a set, of the wrong ones outside.
    apart : array (atoms, atoms) of bool
        Atoms that are in no conjunction together.
    """
    held = inside.astype(np.float32)
    weighted = (held * (spared - missed)).astype(np.float32).T
    kept: dict[tuple[int, ...], float] = {(): float(spared.sum())}
    beam: list[tuple[int, ...]] = [()]
    for _ in range(MOST_ATOMS):
        masks = np.array([held[[0, *x]].min(axis=0) for x in beam])
        lengths = (masks @ weighted).astype(np.float64) + missed.sum() + costs
        lengths += np.array([[costs[[*x]].sum()] for x in beam])
        lengths[lengths >= np.array([[kept[x]] for x in beam])] = np.inf
        lengths[[apart[[*x]].any(axis=0) for x in beam]] = np.inf
        longer: dict[tuple[int, ...], float] = {}
        for at in np.argsort(lengths, axis=None)[: MOST_ATOMS * BEAM]:
            row, k = divmod(int(at), len(costs))
            if np.isfinite(lengths[row, k]) and k not in (0, *beam[row]):
                indices = tuple(sorted((*beam[row], k)))
                longer[indices] = float(lengths[row, k])
        kept |= longer
        beam = sorted(longer, key=lambda x: longer[x])[:BEAM]
        if not beam:
            break
    return sorted((length, indices) for indices, length in kept.items())[:BEAM]
