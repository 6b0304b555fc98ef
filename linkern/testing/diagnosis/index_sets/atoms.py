"""Atoms of index sets: the statements about places that wrong entries are described by.

An atom holds of the entries of a map or does not: "rows from 48 on", "pairs across
edges of chunks of 16". Its numbers are measured: of all numbers, those are kept that
tell wrong entries from right ones best. An atom costs as many bits as its words and
numbers take; powers of two and small numbers are cheap.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.influence.maps import (
    INITIAL_STATE,
    Flags,
    Index,
    InfluenceMap,
    Real,
)

__all__ = [
    "BEST",
    "UNKNOWN",
    "Atom",
    "Measure",
    "Places",
    "Rated",
    "bits",
    "from_on",
    "interval_atoms",
    "places",
    "plural",
]

Places = Mapping[str, NDArray[Any]]
Measure = Callable[[InfluenceMap], Mapping[str, Real]]
Rated = tuple[float, "Atom"]

# Coordinates of which a map without them has one only.
SINGLE = ("batch", "head", "sequence", "span", "micro-step")
# Coordinates that count tokens; the initial state comes before the first.
TOKENS = ("row", "source", "written", "back")
UNKNOWN = -(2**40)
# Sizes of calls, and their names.
BOUNDED = {"length": "lengths", "key dimension": "K", "value dimension": "V"}
# Sizes of coordinates.
SIZES = {
    "row": "length",
    "source": "keys",
    "key channel": "key_dim",
    "value channel": "value_dim",
}
# Coordinates that are also counted from their end.
ENDED = ("row", "source", "sequence", "span")
NOUNS = {"batch": "batch entrie", "written": "written token"}
# Atoms of a kind that are kept.
BEST = 4


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
    first : tuple of str and int
        The coordinate and the number from which on it holds.
    measure : callable, optional
        Returns the quantities of a map, where the statement is about one of them.
    """

    text: str
    cost: float
    test: Callable[[Places], Flags] = field(repr=False, compare=False)
    axes: tuple[str, ...] = field(default=(), compare=False)
    chunk: int | None = None
    first: tuple[str, int] = field(default=("", 0), compare=False)
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
    for name, size in zip(BOUNDED, ("length", "key_dim", "value_dim"), strict=True):
        known[name] = zero + getattr(shape, size, 0)
    for axis, size in SIZES.items():
        if axis in known:
            known[f"end of {axis}"] = zero + getattr(shape, size)
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


def _simplest(low: int, high: int, shift: int = 0) -> int:
    """Return the number above `low`, up to `high`, of the fewest bits.

    The bits are those of the number or, with a shift of 1, of the one before.
    """
    numbers = range(max(low + 1, high - 4096), high + 1)
    cost = {n: min(bits(n), bits(n - shift)) for n in numbers}
    return min(numbers, key=lambda n: (cost[n], n)) if numbers else high


# Statements about one coordinate.


def interval_atoms(known: Places, weight: Real) -> Iterator[Rated]:
    """Yield the best statements about each coordinate, with their gains.

    Parameters
    ----------
    known : mapping of str to array (N,)
        Places of entries.
    weight : array (N,)
        The gain of excluding each entry: negative of wrong ones.
    """
    for name, x in known.items():
        if name.startswith("end of "):
            continue
        yield from _of_axis(name, x, weight)
        if name in ENDED and f"end of {name}" in known:
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
    shift = int(name in BOUNDED)  # "lengths above 127" are those from 128 on
    yield before[k], from_on(name, _simplest(low, high, shift))
    after = before[-1] - before
    k = int(np.argmax(after[1:])) + 1
    if name in BOUNDED:
        return
    if 1 < k < len(values):
        end = _simplest(int(values[k - 1]), int(values[k]))
        yield after[k], _before(name, end)
    k = int(np.argmin(gains))
    yield before[-1] - gains[k], _equal(name, int(values[k]))
    listed = values[gains < 0]
    if 1 < len(listed) <= BEST and name in ("head", "batch", "sequence"):
        yield gains[gains > 0].sum(), _listed(name, listed)


def plural(name: str) -> str:
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
    return f"the last {n} {plural(axis)}" if n > 1 else f"the last {axis}"


def from_on(name: str, n: int) -> Atom:
    """Return the atom of places from a number on."""
    text, cost = f"{plural(name)} from {n} on", 2 + bits(n)
    if name == "back":
        text = f"sources {n} back or more"
        text = text if n >= 0 else f"sources at most {-n} ahead of the row"
        cost += 0.5
    elif name in BOUNDED:
        text, cost = f"{BOUNDED[name]} above {n - 1}", 3 + min(bits(n), bits(n - 1))
    elif name.startswith("left "):
        axis = plural(name.removeprefix("left "))
        text, cost = f"{axis} other than {_last(name, n - 1)}", 4 + bits(n - 1)
    elif (name, n) == ("source", 0):
        text = "sources after the initial state"
    return replace(_on(name, text, cost, lambda x: x >= n), first=(name, n))


def _before(name: str, n: int) -> Atom:
    """Return the atom of places before a number."""
    text, cost = f"{plural(name)} before {n}", 2 + bits(n)
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
    text = f"{plural(name)} {', '.join(map(str, values))}"
    cost = 4 + sum(1 + bits(int(n)) for n in values)
    return _on(name, text, cost, lambda x: np.isin(x, values))
