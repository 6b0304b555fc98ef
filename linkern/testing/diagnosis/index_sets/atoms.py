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

from linkern.testing.diagnosis.index_sets.columns import beside
from linkern.testing.diagnosis.index_sets.coordinates import (
    BOUNDED,
    COORDINATES,
    IN_GROUP,
    TOKENS,
    UNKNOWN,
    noun_of,
)
from linkern.testing.diagnosis.index_sets.places import Places, places
from linkern.testing.influence.maps import (
    AFTER_AN_EMPTY_ONE,
    LAST_CALL,
    SPANS_BETWEEN,
    Flags,
    Index,
    InfluenceMap,
    Real,
)

__all__ = [
    "BEST",
    "Atom",
    "Measure",
    "Rated",
    "interval",
    "interval_atoms",
]

# Returns the quantities of a map by their names: those that are asked for, or all.
Measure = Callable[[InfluenceMap, frozenset[str] | None], Mapping[str, Real]]
Rated = tuple[float, "Atom"]

# Atoms of a kind that are kept.
BEST = 4

# Words of the places from a number on, before it and at it, and their bits. {0} is a
# place of a coordinate, {1} several; "left" counts from the end, "ahead" is negative
# "back".
PHRASES = {
    "": (("{1} from {n} on", 2.0), ("{1} before {n}", 2.0), ("{0} {n}", 2.0)),
    "back": (
        ("sources {n} back or more", 2.5),
        ("sources less than {n} back", 2.5),
        ("sources {n} back", 1.0),
    ),
    "ahead": (
        ("sources at most {n} ahead of the row", 2.5),
        ("sources ahead of the row by more than {n}", 1.0),
        ("sources {n} ahead of the row", 1.0),
    ),
    "after": (
        ("tokens {n} or more after that of the value", 2.5),
        ("tokens less than {n} after that of the value", 2.5),
        ("tokens {n} after that of the value", 2.5),
    ),
    SPANS_BETWEEN: (
        ("what comes through {n} whole spans or more", 3.0),
        ("what comes through fewer than {n} whole spans", 3.0),
        ("what comes through {n} whole spans", 3.0),
    ),
    "left": (
        ("{1} other than the last {n} {1}", 4.0),
        ("the last {n} {1}", 3.0),
        ("the {0} {n} before the end", 3.0),
    ),
}
# Shorter words of some numbers.
SPECIAL = {
    ("back", "==", 0): ("the diagonal", 1.0),
    ("back", ">=", 0): ("sources up to the row", 2.5),
    ("back", "<", 0): ("sources ahead of the row", 1.0),
    ("after", "==", 0): ("the token of the value", 2.5),
    ("after", ">=", 1): ("tokens after that of the value", 2.5),
    ("source", ">=", 0): ("sources after the initial state", 2.0),
    ("source", "<", 0): ("the initial state", 1.0),
    ("source", "==", -1): ("the initial state", 1.0),
    (IN_GROUP, "==", 0): ("the first head of every group", 2.0),
    (IN_GROUP, "<", 1): ("the first head of every group", 2.0),
    (IN_GROUP, "==", 1): ("the second head of every group", 2.5),
    (IN_GROUP, ">=", 1): ("heads other than the first of every group", 2.0),
    ("sequence", "==", 0): ("the first sequence", 2.0),
    (LAST_CALL, "<", 1): ("sequences that are empty in the last call", 1.5),
    ("beyond", ">=", 1): ("sources beyond the rows", 2.0),
    ("behind", ">=", 1): ("rows beyond the sources", 2.0),
    ("not square", ">=", 1): ("calls in which K is not V", 2.0),
    ("not square", "<", 1): ("calls in which K is V", 2.0),
    (AFTER_AN_EMPTY_ONE, ">=", 1): ("sequences after an empty one", 1.5),
    ("length", "<", 2): ("sequences of one token", 1.5),
    (SPANS_BETWEEN, ">=", 1): ("what a final state has of the initial state", 2.0),
    (SPANS_BETWEEN, "<", 1): ("what comes through no whole span", 3.0),
    (SPANS_BETWEEN, "==", 1): ("what comes through one whole span", 3.0),
    ("left", ">=", 2): ("{1} other than the last {0}", 4.0),
    ("left", "<", 2): ("the last {0}", 3.0),
    ("left", "==", 0): ("rows behind the last {0}", 2.0),
    ("left", "==", 1): ("the last {0}", 2.0),
}
SIGNS: dict[str, Callable[[Index, int], Flags]] = {
    ">=": np.greater_equal,
    "<": np.less,
    "==": np.equal,
}
# Keys of the data of an atom by its sign.
WORDS = {">=": "at_least", "<": "below", "==": "equal"}


# Coordinates that are 1 or 0.
FLAGS = ("beyond", "behind", "not square", AFTER_AN_EMPTY_ONE)


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
        Coordinates that it is about.
    chunk : int, optional
        The chunk size that it names.
    measure : callable, optional
        Returns the quantities of a map, where the statement is about one of them.
    data : mapping
        The same for programs: ``of`` a coordinate, a sort of pairs or a quantity, and
        its numbers, as ``at_least``, ``below``, ``equal``, ``values``, or as a
        ``statement`` about chunks of ``chunk`` tokens or channels.
    """

    text: str
    cost: float
    test: Callable[[Places], Flags] = field(repr=False, compare=False)
    axes: tuple[str, ...] = field(default=(), compare=False)
    chunk: int | None = None
    measure: Measure | None = field(default=None, repr=False, compare=False)
    data: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def contains(self, influence: InfluenceMap) -> Flags:
        """Return the entries of a map that it holds of."""
        known: Places = places(influence)
        if self.measure is not None:
            measured = self.measure(influence, frozenset({self.data["of"]}))
            known = beside(known, measured)
        return self.holds(known, len(influence.exact))

    def holds(self, known: Places, count: int) -> Flags:
        """Return which of some entries it holds of, by their places.

        An entry without the coordinate is a sum over it: the statement holds of it if
        it does of one of the summed places.
        """
        lacking = np.full(count, UNKNOWN)
        known = beside(known, dict.fromkeys(self.axes, lacking))
        inside = np.broadcast_to(self.test(known), count)
        for axis in self.axes:
            summed, ends = known[axis] == UNKNOWN, known.get(f"end of {axis}", lacking)
            inside = inside | summed
            for end in np.unique(ends[summed]) if len(self.axes) == 1 else ():
                every = {
                    axis: np.arange(end),
                    f"end of {axis}": np.full(max(end, 0), end),
                }
                if end > 0 and not np.any(self.test(every)):
                    inside &= ~(summed & (ends == end))
        return inside


def bits(number: int) -> float:
    """Return the bits of a number: few of powers of two and small numbers."""
    number = abs(number)
    if number == 0:
        return 0.0
    exponent = (number & -number).bit_length() - 1
    odd = 2 * math.log2(number >> exponent) + math.log2(1 + exponent)
    return min(odd, math.log2(number) + 4)


def _simplest(low: int, high: int, shift: int) -> int:
    """Return the number above `low`, up to `high`, of the fewest bits.

    The bits are those of the number or, with a shift of 1, of the one before.
    """
    numbers = range(max(low + 1, high - 4096), high + 1)
    return min(numbers, key=lambda n: (min(bits(n), bits(n - shift)), n), default=high)


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
        if name.startswith("end of ") or name == "start":
            continue
        yield from _of_axis(name, x, weight)
        ended = name in COORDINATES and COORDINATES[name].ended
        if ended and f"end of {name}" in known:
            left = np.where(x < 0, UNKNOWN, known[f"end of {name}"] - x)
            rated = _of_axis(f"left {name}", left, weight)
            # Of heads, the last one alone is a place in calls of any number of them.
            few = name == "head"
            each = name in TOKENS and "end of sequence" in known
            for gain, atom in rated:
                if not few or atom.text.endswith("last head"):
                    yield gain, _of_each(atom) if each else atom


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
    after = before[-1] - before

    def between(k: int) -> int:
        # "lengths above 127" are those from 128 on
        return _simplest(int(values[k - 1]), int(values[k]), int(name in BOUNDED))

    if name == LAST_CALL:
        if values[0] == 0:
            yield after[1], interval(name, "<", 1)
        return
    k = int(np.argmax(before[1:-1])) + 1
    yield before[k], interval(name, ">=", between(k))
    if name == "length" and values[0] == 1:
        yield after[1], interval(name, "<", 2)
    if name == "not square":
        yield after[1], interval(name, "<", 1)
    if name in (*BOUNDED, *FLAGS):
        return
    if len(values) > 2:  # of the first alone, its number is shorter
        k = int(np.argmax(after[2:-1])) + 2
        yield after[k], interval(name, "<", between(k))
    k = int(np.argmin(gains))
    yield before[-1] - gains[k], interval(name, "==", int(values[k]))
    listed = values[gains < 0]
    if 1 < len(listed) <= BEST and name in ("head", "batch", "sequence"):
        noun = noun_of(name, several=True)
        text = f"{noun} {', '.join(map(str, listed))}"
        cost = 4 + sum(1 + bits(int(n)) for n in listed)
        data = {"of": name, "values": listed.tolist()}
        test = lambda p: np.isin(p[name], listed)  # noqa: E731
        atom = Atom(text, cost, test, (name,), data=data)
        yield gains[gains > 0].sum(), atom


def _of_each(atom: Atom) -> Atom:
    """Return an atom counted from the end of a sequence, in words of packed ones."""
    return replace(atom, text=f"{atom.text} of every sequence")


def interval(name: str, sign: str, n: int) -> Atom:
    """Return the atom of places from a number on, before it, or at it.

    Parameters
    ----------
    name : str
        The coordinate; ``left row`` is the distance from the end.
    sign : str
        ``>=``, ``<`` or ``==``.
    n : int
        The number.
    """
    axis = name.removeprefix("left ")
    kind = "left" if axis != name else name
    number = n - 1 if kind == "left" and sign != "==" else abs(n)
    phrases = PHRASES.get("ahead" if name == "back" and n < 0 else kind)
    text, cost = (phrases or PHRASES[""])[list(SIGNS).index(sign)]
    cost += bits(number)
    if name in BOUNDED:
        text, cost = f"{BOUNDED[name]} above {n - 1}", 3 + min(bits(n), bits(n - 1))
    text, cost = SPECIAL.get((kind, sign, n), (text, cost))
    nouns = (noun_of(axis, several=several) for several in (False, True))
    text = text.format(*nouns, n=number)

    def test(known: Places) -> Flags:
        x = known[axis]
        x = x if axis == name else known[f"end of {axis}"] - x
        inside = SIGNS[sign](x, n)
        if kind == "back" and sign == "<" and n > 0:
            inside = inside & (x >= 0)
        return inside

    data = {"of": axis, WORDS[sign]: n}
    data |= {"counted": "from the end"} if axis != name else {}
    return Atom(text, cost, test, (axis,), data=data)
