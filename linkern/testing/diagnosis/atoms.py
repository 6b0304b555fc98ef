"""Atoms of index sets: the statements about places that wrong entries are described by.

An atom holds of the entries of a map or does not: "rows from 48 on", "pairs across
edges of chunks of 16". Its numbers are measured: of all numbers, those are kept that
tell wrong entries from right ones best. An atom costs as many bits as its words and
numbers take; powers of two and small numbers are cheap.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.influence import (
    INITIAL_STATE,
    Flags,
    Index,
    InfluenceMap,
    Real,
)

__all__ = ["Atom", "Measure", "Places", "atoms_of", "places", "thresholds_of"]

Places = Mapping[str, NDArray[Any]]
Measure = Callable[[InfluenceMap], Mapping[str, Real]]
Rated = tuple[float, "Atom"]

# Coordinates of which a map without them has one only.
SINGLE = ("batch", "head", "sequence", "span", "micro-step")
# Coordinates that count tokens; the initial state comes before the first.
TOKENS = ("row", "source", "written", "back")
UNKNOWN = -(2**40)
NOUNS = {"batch": "batch entrie", "written": "written token"}
# Atoms of a kind that are kept.
BEST = 4
# Entries by which numbers of atoms are chosen.
SAMPLE = 12_000
# Chunk sizes above it are multiples of 4.
SMALL_CHUNK = 256
CHUNKS_AT_ONCE = 64


@dataclass(frozen=True)
class Atom:
    """A statement about the place of an entry.

    Parameters
    ----------
    text : str
        The statement in words.
    cost : float
        Bits of its words and numbers.
    test : callable
        Tells of places whether it holds there.
    axes : tuple of str
        Coordinates that it is about; it holds of entries that have none.
    chunk : int, optional
        The chunk size that it names.
    measure : callable, optional
        Returns the quantities of a map, where the statement is about one of them.
    """

    text: str
    cost: float
    test: Callable[[Places], Flags] = field(repr=False, compare=False)
    axes: tuple[str, ...] = field(default=(), compare=False)
    chunk: int | None = None
    measure: Measure | None = field(default=None, repr=False, compare=False)

    def contains(self, influence: InfluenceMap) -> Flags:
        """Return the entries of a map that it holds of."""
        known: dict[str, NDArray[Any]] = {**places(influence)}
        if self.measure is not None:
            known |= self.measure(influence)
        return self.holds(known, len(influence.exact))

    def holds(self, known: Places, count: int) -> Flags:
        """Return which of some entries it holds of, by their places."""
        if any(axis not in known for axis in self.axes):
            return np.ones(count, np.bool_)
        inside = self.test(known)
        for axis in self.axes:
            inside = inside | (known[axis] == UNKNOWN)
        return np.asarray(inside)


def places(influence: InfluenceMap) -> dict[str, Index]:
    """Return the coordinates of the entries of a map, and the sizes of its axes."""
    count = len(influence.exact)
    known: dict[str, Index] = {}
    for name, x in influence.coordinates.items():
        known[name] = np.where(x < -int(name in TOKENS), UNKNOWN, x)
    zero = np.zeros(count, np.int64)
    known |= {name: zero for name in SINGLE if name not in known}
    shape, knobs = influence.problem.shape, influence.problem.knobs
    known["length"] = zero + shape.length
    known["end of row"], known["end of source"] = zero + shape.length, zero + shape.keys
    for name in ("sequence", "span"):
        if f"{name}s" in knobs:
            known[f"end of {name}"] = zero + knobs[f"{name}s"]
    if "row" in known and "source" in known:
        known["back"] = known["row"] - known["source"]
    return known


def bits(number: int) -> float:
    """Return the bits of a number: few of powers of two and small numbers."""
    number = abs(number)
    if number == 0:
        return 0.0
    exponent = (number & -number).bit_length() - 1
    odd = 2 * math.log2(number >> exponent) + math.log2(1 + exponent)
    return min(odd, math.log2(number) + 4)


def chunk_bits(size: int) -> float:
    """Return the bits of a chunk size: few of powers of two from 16 to 128."""
    exponent = (size & -size).bit_length() - 1
    odd = size >> exponent
    return min(2 * math.log2(odd) + abs(exponent - 5.5), math.log2(size) + 4)


def _simplest(low: int, high: int) -> int:
    """Return the number above `low`, up to `high`, of the fewest bits."""
    numbers = range(max(low + 1, high - 4096), high + 1)
    return min(numbers, key=lambda n: (bits(n), n)) if numbers else high


def atoms_of(known: Places, wrong: Flags, loss: float) -> list[Atom]:
    """Return the atoms that tell wrong entries from right ones best.

    Parameters
    ----------
    known : mapping of str to array (N,)
        Places of the entries that say something.
    wrong : array (N,) of bool
        The wrong ones of them; the others are right.
    loss : float
        Right entries that an atom has to exclude for each wrong one that it excludes.
    """
    weight = np.where(wrong, -loss, 1.0)
    chosen = _sampled(wrong)
    sample = {name: x[chosen] for name, x in known.items()}
    rated = [
        *_interval_atoms(known, weight),
        *_chunk_atoms(sample, weight[chosen]),
    ]
    return [atom for gain, atom in rated if gain > 0]


def _sampled(wrong: Flags) -> Index:
    """Return places of at most so many wrong and so many right entries."""
    rng = np.random.default_rng(0)
    parts = [np.flatnonzero(wrong), np.flatnonzero(~wrong)]
    return np.concatenate(
        [x if len(x) <= SAMPLE else rng.choice(x, SAMPLE, replace=False) for x in parts]
    )


# Statements about one coordinate.


def _interval_atoms(known: Places, weight: Real) -> Iterator[Rated]:
    """Yield statements about coordinates: equal to, from on, before a number."""
    for name, x in known.items():
        if name.startswith("end of "):
            continue
        yield from _of_axis(name, x, weight)
        if f"end of {name}" in known:
            left = np.where(x == UNKNOWN, x, known[f"end of {name}"] - x)
            yield from _of_axis(f"left {name}", left, weight)


def _of_axis(name: str, x: Index, weight: Real) -> Iterator[Rated]:
    """Yield the best statements of one axis: value, lower end, upper end, values."""
    present = x != UNKNOWN
    x, weight = x[present], weight[present]
    low = x.min(initial=0)
    values = np.flatnonzero(np.bincount(x - low)) + low
    if len(values) < 2:
        return
    gains = np.bincount(x - low, weight)[values - low]
    before = np.concatenate([[0.0], np.cumsum(gains)])
    k = int(np.argmax(before[:-1]))
    low, high = int(values[k - 1]), int(values[k])
    shift = int(name == "length")  # "lengths above" names the last one below
    yield before[k], _from(name, _simplest(low - shift, high - shift) + shift)
    after = before[-1] - before
    k = int(np.argmax(after[1:])) + 1
    if k < len(values):
        end = _simplest(int(values[k - 1]), int(values[k]))
        yield after[k], _before(name, end)
    k = int(np.argmin(gains))
    yield before[-1] - gains[k], _equal(name, int(values[k]))
    listed = values[gains < 0]
    if 1 < len(listed) <= BEST and name in ("head", "batch", "sequence"):
        yield gains[gains > 0].sum(), _listed(name, listed)


def _plural(name: str) -> str:
    """Return the words for places of an axis."""
    return f"{NOUNS.get(name, name)}s"


def _on(name: str, text: str, cost: float, test: Callable[[Index], Flags]) -> Atom:
    """Return the atom that tests one coordinate, or its distance from the end."""
    axis = name.removeprefix("left ")
    if axis == name:
        return Atom(text, cost, lambda p: test(p[name]), (name,))
    return Atom(text, cost, lambda p: test(p[f"end of {axis}"] - p[axis]), (axis,))


def _last(name: str, n: int) -> str:
    """Return the words for the last `n` places of an axis."""
    axis = name.removeprefix("left ")
    return f"the last {n} {_plural(axis)}" if n > 1 else f"the last {axis}"


def _from(name: str, n: int) -> Atom:
    """Return the atom of places from a number on."""
    text, cost = f"{_plural(name)} from {n} on", 2 + bits(n)
    if name == "back":
        text = f"sources {n} back or more"
        text = text if n >= 0 else f"sources at most {-n} ahead of the row"
        cost += 0.5
    elif name == "length":
        text, cost = f"lengths above {n - 1}", 3 + bits(n - 1)
    elif name.startswith("left "):
        axis = _plural(name.removeprefix("left "))
        text, cost = f"{axis} other than {_last(name, n - 1)}", 4 + bits(n - 1)
    elif (name, n) == ("source", 0):
        text = "sources after the initial state"
    return _on(name, text, cost, lambda x: x >= n)


def _before(name: str, n: int) -> Atom:
    """Return the atom of places before a number."""
    text, cost = f"{_plural(name)} before {n}", 2 + bits(n)
    if name == "back" and n > 0:
        text = f"sources less than {n} back"
        return _on(name, text, cost + 0.5, lambda x: (x >= 0) & (x < n))
    if name == "back":
        more = f" by more than {-n}" if n else ""
        text, cost = f"sources ahead of the row{more}", 1 + bits(n)
    elif name.startswith("left "):
        text, cost = _last(name, n - 1), 3 + bits(n - 1)
    elif (name, n) == ("source", 0):
        text, cost = "the initial state", 1
    return _on(name, text, cost, lambda x: x < n)


def _equal(name: str, n: int) -> Atom:
    """Return the atom of one place."""
    text, cost = f"{NOUNS.get(name, name)} {n}", 2 + bits(n)
    if name == "back":
        text = f"sources {n} back" if n else "the diagonal"
        text = text if n >= 0 else f"sources {-n} ahead of the row"
        cost = 1 + bits(n)
    elif name.startswith("left "):
        axis = name.removeprefix("left ")
        text = f"the {axis} {n} before the end" if n > 1 else f"the last {axis}"
        cost += bits(n)
    elif (name, n) == ("source", INITIAL_STATE):
        text, cost = "the initial state", 1
    elif name == "batch":
        text = f"batch entry {n}"
    elif (name, n) == ("sequence", 0):
        text = "the first sequence"
    return _on(name, text, cost, lambda x: x == n)


def _listed(name: str, values: Index) -> Atom:
    """Return the atom of some places."""
    text = f"{_plural(name)} {', '.join(map(str, values))}"
    cost = 4 + sum(1 + bits(int(n)) for n in values)
    return _on(name, text, cost, lambda x: np.isin(x, values))


# Statements about chunks.


@dataclass(frozen=True, eq=False)
class _Chunks:
    """Places in chunks of a size: of rows, or of sources."""

    known: Places
    size: Index | int

    def number(self, axis: str) -> Index:
        """Return the number of the chunk of a token; -1 of the initial state."""
        return np.asarray(self.known[axis] // self.size)

    def place(self, axis: str) -> Index:
        """Return the place of a token in its chunk; -1 of the initial state."""
        x = self.known[axis]
        return np.where(x < 0, -1, x % self.size)

    def tail(self, axis: str) -> Flags:
        """Return the tokens after the last whole chunk."""
        whole = self.known[f"end of {axis}"] // self.size * self.size
        return np.asarray(self.known[axis] >= whole)

    @cached_property
    def apart(self) -> Index:
        """The chunks from that of the source to that of the row."""
        return self.number("row") - self.number("source")

    @property
    def across_last(self) -> Flags:
        """Pairs with the last token of a chunk after the source, up to the row."""
        row, source = self.known["row"] + 1, self.known["source"] + 1
        return np.asarray(row // self.size != source // self.size)


ChunkTest = Callable[[_Chunks], Flags]
PAIRS: tuple[tuple[str, float, ChunkTest], ...] = (
    ("pairs across edges of chunks of {}", 1, lambda c: c.apart != 0),
    ("pairs inside chunks of {}", 1, lambda c: c.apart == 0),
    ("pairs of neighbouring chunks of {}", 2, lambda c: c.apart == 1),
    ("pairs two or more chunks of {} apart", 3, lambda c: c.apart >= 2),
    ("pairs across the last token of chunks of {}", 3, lambda c: c.across_last),
)


def _chunk_statements(axis: str) -> tuple[tuple[str, float, ChunkTest], ...]:
    """Return statements about places in chunks, of rows or of sources."""

    def last(c: _Chunks) -> Flags:
        return np.asarray(c.place(axis) == c.size - 1)

    return (
        (f"the first {axis} of every chunk of {{}}", 2, lambda c: c.place(axis) == 0),
        (f"the last {axis} of every chunk of {{}}", 2, last),
        (f"{axis}s in the tail of chunks of {{}}", 3, lambda c: c.tail(axis)),
        (f"{axis}s in whole chunks of {{}}", 3, lambda c: ~c.tail(axis)),
        (f"{axis}s in odd chunks of {{}}", 3, lambda c: c.number(axis) % 2 == 1),
        (f"{axis}s in even chunks of {{}}", 3, lambda c: c.number(axis) % 2 == 0),
        (
            f"{axis}s after the first of every chunk of {{}}",
            3,
            lambda c: c.place(axis) > 0,
        ),
        (f"{axis}s before the last of every chunk of {{}}", 3, lambda c: ~last(c)),
    )


def _chunk_atoms(known: Places, weight: Real) -> Iterator[Rated]:
    """Yield the best chunk sizes of every statement about chunks."""
    axes = [
        axis
        for axis in ("row", "source")
        if axis in known and (known[axis] != UNKNOWN).any()
    ]
    statements = [(x, [axis]) for axis in axes for x in _chunk_statements(axis)]
    statements += [(x, axes) for x in PAIRS if len(axes) == 2]
    names = [x for axis in axes for x in (axis, f"end of {axis}")]
    if not axes:
        return
    present = np.all([known[axis] != UNKNOWN for axis in axes], axis=0)
    known, weight = {name: known[name][present] for name in names}, weight[present]
    places_once, weight = _once([known[name] for name in names], weight)
    known = dict(zip(names, places_once, strict=True))
    longest = int(max(known[axis].max(initial=0) for axis in axes)) + 1
    sizes = np.array(
        [n for n in range(2, longest + 1) if n < SMALL_CHUNK or n % 4 == 0]
    )
    gains = np.empty((len(statements), len(sizes)))
    for start in range(0, len(sizes), CHUNKS_AT_ONCE):
        block = slice(start, start + CHUNKS_AT_ONCE)
        inside = _Chunks(known, sizes[block, None].astype(np.int32))
        for k, ((_, _, test), _) in enumerate(statements):
            gains[k, block] = weight.sum() - test(inside) @ weight
    costs = np.array([chunk_bits(int(n)) for n in sizes])
    for row, ((text, words, test), about) in zip(gains, statements, strict=True):
        for k in np.argsort(costs - 2 * row, kind="stable")[:BEST]:
            size, cost = int(sizes[k]), words + float(costs[k])
            yield row[k], _chunk_atom(text.format(size), cost, test, tuple(about), size)


def _once(columns: list[Index], weight: Real) -> tuple[list[Index], Real]:
    """Return the places that differ, in small integers, with their weights added up."""
    mixed = np.zeros(len(weight), np.int64)
    for x in columns:
        mixed = mixed * (int(x.max(initial=0)) + 3) + x + 1
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    columns = [x[first].astype(np.int32) for x in columns]
    return columns, np.bincount(inverse, weight).astype(np.float64)


def _chunk_atom(
    text: str, cost: float, test: ChunkTest, axes: tuple[str, ...], size: int
) -> Atom:
    return Atom(text, cost, lambda p: test(_Chunks(p, size)), axes, size)


# Statements about quantities.


def thresholds_of(
    measure: Measure, quantities: Mapping[str, Real], wrong: Flags, loss: float
) -> list[Atom]:
    """Return the best statements of the kind "where a quantity is below c".

    Parameters
    ----------
    measure : callable
        Returns the quantities of a map, as logarithms of magnitudes.
    quantities : mapping of str to array (N,)
        The same of the entries that say something.
    wrong : array (N,) of bool
        The wrong ones of them.
    loss : float
        Right entries to exclude for each wrong one that is excluded.
    """
    weight = np.where(wrong, -loss, 1.0)
    words = 4 + math.log2(max(len(quantities), 1))
    chosen = _sampled(wrong)
    rated: list[Rated] = []
    for name, x in quantities.items():
        known = chosen[~np.isnan(x[chosen])]
        values, inverse = np.unique(x[known], return_inverse=True)
        if len(known) < len(chosen) or len(values) < 2:
            continue
        before = np.cumsum(np.bincount(inverse, weight[known]))
        for side, gains in (("above", before), ("below", before[-1] - before)):
            k = int(np.argmax(gains[:-1]))
            limit, text = _between(values[k], values[k + 1])
            atom = _threshold(measure, name, side, limit, text, words)
            rated.append((gains[k], atom))
    rated.sort(key=lambda pair: (-pair[0], pair[1].text))
    return [atom for gain, atom in rated[: 2 * BEST] if gain > 0]


def _between(low: float, high: float) -> tuple[float, str]:
    """Return the number of fewest digits between two logarithms, and its text."""
    with np.errstate(over="ignore", under="ignore"):
        small, large = float(np.exp(low)), float(np.exp(high))
    middle = math.sqrt(small) * math.sqrt(large)
    for digits in range(1, 17):
        text = f"{middle:.{digits}g}"
        if small < float(text) <= large and math.isfinite(float(text)):
            return math.log(float(text)), text
    return high, f"{large:.3g}"


def _threshold(
    measure: Measure, name: str, side: str, limit: float, number: str, words: float
) -> Atom:
    text, cost = f"where {name} is {side} {number}", words + 3.3 * len(number)
    if side == "below":
        return Atom(text, cost, lambda p: p[name] < limit, measure=measure)
    return Atom(text, cost, lambda p: p[name] >= limit, measure=measure)
