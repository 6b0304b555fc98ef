"""Index sets: the places of wrong entries in the fewest words.

A set is a conjunction of atoms. Of all conjunctions, the one is chosen whose words,
numbers and exceptions take the fewest bits: the shortest description.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.index_sets.atoms import Atom, Measure, interval
from linkern.testing.diagnosis.index_sets.columns import Columns
from linkern.testing.diagnosis.index_sets.coordinates import TOKENS, UNKNOWN
from linkern.testing.diagnosis.index_sets.evidence import holds_throughout
from linkern.testing.diagnosis.index_sets.places import Places, places
from linkern.testing.diagnosis.index_sets.search import (
    EXCEPTION,
    IndexSet,
    Table,
    inside_of,
    shortest,
)
from linkern.testing.influence.maps import Flags, Index, InfluenceMap

__all__ = ["corner", "describe", "is_certain", "misfit"]

# Wrong entries, and right ones, by which sets are searched.
SAMPLE, FEW = 4_000, 1_500
# Quantities are consulted where a larger share of entries is off.
OPEN = 0.02
# Wrong places that each atom of a set needs, at least.
INSTANCES = 2
# What a right entry inside costs where sets are to hold none.
PURE = 32.0
# Times that exceptions are added to a sample.
ROUNDS = 3


def corner(maps: Sequence[InfluenceMap]) -> int | None:
    """Return the smallest length at which a wrong entry shows, if that can be told.

    None unless a right entry shows at a smaller length: maps may have no entry there.
    """
    wrong, right = [], []
    for x in maps:
        tokens = [x.coordinates[k] for k in ("row", "source") if k in x.coordinates]
        if tokens:
            lengths = np.max(tokens, axis=0) + 1
            wrong += lengths[x.wrong].tolist()
            right += lengths[~x.wrong & ~x.silent].tolist()
    first = min(wrong, default=0)
    return first if min(right, default=first) < first else None


def misfit(chosen: IndexSet, maps: Sequence[InfluenceMap]) -> tuple[float, float]:
    """Return how far a set is from the wrong entries of some maps.

    Returns
    -------
    missed, spared : float
        The share of the wrong entries that lie outside of the set; the share of the
        entries inside that are right, of those where a deviation would show.
    """
    if not any(x.wrong.any() for x in maps):
        return 0.0, float(any(chosen.contains(x).any() for x in maps))
    tables = _tables(_of_wrong_calls(maps), *_measured(chosen.atoms))
    errors = [_errors(table, chosen) for table in tables]
    return errors[0][0], min(spared for _, spared in errors)


def is_certain(
    chosen: IndexSet, maps: Sequence[InfluenceMap], usual: Sequence[InfluenceMap] = ()
) -> bool:
    """Return True if all that a set says is seen in the entries of some maps.

    One statement may miss a size of calls; several fit a few calls by chance. No set
    holds calls of usual inputs in which nothing is wrong.
    """
    maps, each = [*maps, *usual], len(chosen.atoms) > 1 or bool(usual)
    tables = _tables(_of_wrong_calls(maps), *_measured(chosen.atoms))
    return any(holds_throughout(x, chosen.atoms, each_call=each) for x in tables)


def describe(
    maps: Sequence[InfluenceMap],
    quantities: Measure | None = None,
    *,
    pure: bool = False,
) -> IndexSet | None:
    """Return the shortest description of the wrong entries of some maps.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of one tensor, of several problems: a set has to explain all of them.
    quantities : callable, optional
        Returns quantities of a map by their names. They are consulted where places
        alone do not describe the entries.
    pure : bool
        Rather leave wrong entries out than say a set with right ones.

    Returns
    -------
    IndexSet or None
        None if no entry is wrong, and if the wrong ones are too few for the words.
    """
    maps = _of_wrong_calls(maps)
    if not maps:
        return None
    best = _best(IndexSet(missed=1.0), maps, None, PURE if pure else 1.0)
    # A quantity has no number in a call of no token.
    few = [x.part(_few(x.wrong, FEW)) for x in maps if x.problem.shape.length]
    wrong = any(x.wrong.any() for x in few)
    if quantities is not None and wrong and _off(best) > OPEN:
        best = _best(best, few, quantities)
    # All entries of a call are wrong alike.
    of_calls = [atom.axes for atom in best.atoms] == [("length",)]
    least = 0 if of_calls else INSTANCES * len(best.atoms)
    return best if _instances(maps) >= least else None


def _best(
    best: IndexSet,
    maps: Sequence[InfluenceMap],
    measure: Measure | None,
    price: float = 1.0,
) -> IndexSet:
    """Return a set, or a better one of some maps if it is off.

    A right entry inside costs as many times its usual bits as `price` says.
    """
    for table in _tables(maps, measure):
        if _off(best) > OPEN:
            priced = replace(table, exception=price * table.exception)
            other = _of_table(priced, measure)
            best = min(best, other, key=lambda x: (_off(x), x.cost))
    return best


def _measured(atoms: Sequence[Atom]) -> tuple[Measure | None, frozenset[str]]:
    """Return what measures the quantities that atoms are about, and their names."""
    about = {atom.data["of"]: atom.measure for atom in atoms if atom.measure}
    return next(iter(about.values()), None), frozenset(about)


def _off(chosen: IndexSet) -> float:
    return chosen.missed + chosen.spared


def _instances(maps: Sequence[InfluenceMap]) -> int:
    """Return how many tokens, or pairs of them, are wrong in calls of some lengths."""
    seen: set[tuple[int, ...]] = set()
    for x in maps:
        names = (*TOKENS, "earlier token")
        named = [k for k in names if k in x.coordinates]
        # Heads in which the same sequence is wrong are no further evidence.
        named = named or [
            k for k in ("sequence", "span", "start") if k in x.coordinates
        ]
        axes = [x.coordinates[k][x.wrong] for k in named]
        if not axes:
            return sum(int(y.wrong.sum()) for y in maps)
        length = x.problem.length
        distinct = np.unique(np.stack(axes), axis=1).T.tolist()
        seen |= {(length, *place) for place in distinct}
    return len(seen)


def _of_wrong_calls(maps: Sequence[InfluenceMap]) -> list[InfluenceMap]:
    """Return the maps of those sorts of calls in which something is wrong.

    Calls are of a sort if they take the same inputs and the same scale, and if weights
    are products in both or in none. Maps of zeros say nothing beside others.
    """

    def sort(x: InfluenceMap) -> tuple[object, ...]:
        scale = str(x.problem.knobs.get("scale"))
        return (*sorted(x.problem.inputs), scale, x.is_product)

    wrong = {sort(x) for x in maps if x.wrong.any()}
    maps = [x for x in maps if len(x.exact) and sort(x) in wrong]
    telling = [x for x in maps if x.exact.any()]
    return [x for x in maps if x.wrong.any() or x in telling or not telling]


def _few(wrong: Flags, count: int) -> Index:
    """Return the indices of at most so many wrong and so many right entries."""
    rng = np.random.default_rng(0)
    parts = (np.flatnonzero(x) for x in (wrong, ~wrong))
    return np.concatenate([rng.permutation(x)[:count] for x in parts])


def _of_table(whole: Table, measure: Measure | None) -> IndexSet:
    """Return the set that a sample and the exceptions from its set lead to."""
    chosen = _few(whole.wrong, SAMPLE)
    for _ in range(ROUNDS):
        best = shortest(whole.part(chosen), measure)
        off = np.flatnonzero(inside_of(whole, best.atoms) != whole.wrong)
        if np.isin(off, chosen).any() or not len(off):
            break
        chosen = np.concatenate([chosen, off[:: len(off) // SAMPLE + 1]])
    missed, spared = _errors(whole, best)
    atoms = _on_chunk(whole, best.atoms)
    return replace(best, atoms=atoms, missed=missed, spared=spared)


def _on_chunk(table: Table, atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """Return the atoms of a set, from the second chunk on if that is the same."""
    size, axis = next(
        ((a.chunk, a.axes[0]) for a in atoms if a.chunk and a.axes), (0, "")
    )
    for atom in atoms:
        name = atom.data.get("of", "")
        begins = "at_least" in atom.data and "counted" not in atom.data
        if size and begins and name in ("row", "source", "length"):
            later = interval(axis if name == "length" else name, ">=", size)
            others = tuple(later if x is atom else x for x in atoms)
            if (inside_of(table, others) == inside_of(table, atoms)).all():
                atoms = others
    return atoms


def _errors(table: Table, chosen: IndexSet) -> tuple[float, float]:
    """Return the share of wrong entries outside of a set, of right ones inside."""
    inside = inside_of(table, chosen.atoms)
    if chosen.also:
        inside |= inside_of(table, chosen.also)
    missed, right = (~inside)[table.wrong], (~table.wrong)[inside]
    return float(missed.mean()), float(right.mean()) if len(right) else 0.0


def _tables(
    maps: Sequence[InfluenceMap],
    measure: Measure | None,
    only: frozenset[str] | None = None,
) -> Iterator[Table]:
    """Yield the entries of all maps of which a deviation would show.

    In maps of products a token is affected by those of its channel alone: if there are
    others, a second table leaves the right entries of products out. If all wrong ones
    are of tokens that others erase, right ones that nothing erases decide nothing.
    """
    wrong, bound, exact, error, clear = (
        np.concatenate(columns)
        for columns in zip(
            *((x.wrong, x.bound, abs(x.exact), x.error, _clear(x)) for x in maps),
            strict=True,
        )
    )
    with np.errstate(all="ignore"):
        relative = (error / exact)[wrong & np.isfinite(error)]
        usual = np.median(relative) if relative.size else np.inf
        clear &= (bound <= usual * exact) | (exact <= 0)
        near = np.mean(error[wrong] < 2 * bound[wrong])
    if maps[0].problem.scope.operator.erases:
        erased = np.concatenate([_erased(x) for x in maps])
        clear &= erased | (wrong & ~erased).any()
    exception = float(np.clip(-np.log2(max(near, 1e-9)), 0.5, EXCEPTION))
    quantities = [measure(x, only) if measure else {} for x in maps]
    shared = sorted(set(quantities[0]).intersection(*quantities))
    other = Columns({k: partial(_joined, quantities, k) for k in shared})
    call = np.repeat(np.arange(len(maps)), [len(x.exact) for x in maps])
    table = Table(_pooled([places(x) for x in maps]), other, wrong, exception, call)
    yield table.part(wrong | clear)
    if any(x.wrong.any() and not x.is_product for x in maps):
        product = np.concatenate([np.full(len(x.exact), x.is_product) for x in maps])
        yield table.part(wrong | (clear & ~product))


def _erased(one: InfluenceMap) -> Flags:
    """Return the entries that another token of their channel may erase, or none can.

    They are told in the output of whole sequences.
    """
    places, every = one.coordinates, np.ones(len(one.exact), np.bool_)
    part = {"sequence", "span"} & places.keys()
    if one.tensor != "output" or part or not one.is_product:
        return every
    sources: Any = one.problem.knobs["sources"]
    channels: Index = sources.channels
    batch, head = (places.get(x, every * 0) for x in ("batch", "head"))
    shape = one.problem.shape
    head = head * channels.shape[1] // (shape.heads * shape.groups)
    each = channels.shape[2] // one.problem.length
    same = channels[..., None] == np.arange(channels.max() + 1)
    counts = np.pad(same.cumsum(axis=2), ((0, 0), (0, 0), (1, 0), (0, 0)))
    until, since = (
        counts[batch, head, (places[x] + 1).clip(0) * each, places[sources.axis]]
        for x in ("row", "source")
    )
    return np.asarray((until != since) | (places["row"] == places["source"]))


def _clear(one: InfluenceMap) -> Flags:
    return np.asarray(~(one.doubtful | one.silent) & np.isfinite(one.bound))


def _pooled(tables: Sequence[Places]) -> Columns:
    """Return the places of all maps, unknown where a map has none."""
    names = dict.fromkeys(name for x in tables for name in x)
    return Columns({name: partial(_joined, tables, name) for name in names})


def _joined(tables: Sequence[Mapping[str, NDArray[Any]]], name: str) -> NDArray[Any]:
    """Return a column of several tables."""
    columns = [
        x[name] if name in x else np.full(len(x["length"]), UNKNOWN) for x in tables
    ]
    return np.concatenate(columns)
