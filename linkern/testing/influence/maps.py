"""Influence maps: the weight of one number of a call in another, measured and exact.

An output is linear in the values, so a column of values that is 1 at one token and 0
elsewhere returns the weights of that token in all rows. The entries of a map are kept
as a flat table: what was measured, what is exact, how far rounding can take one from
the other, and where the entry lies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from linkern.testing.problems.problem import Problem

__all__ = [
    "AFTER_AN_EMPTY_ONE",
    "AXES",
    "BLURRED",
    "FROM_THE_END",
    "INITIAL_STATE",
    "LAST_CALL",
    "LAST_ROW",
    "OF_OTHERS",
    "ORIGIN",
    "PARTS_BACK",
    "SPANS_BETWEEN",
    "Flags",
    "Index",
    "InfluenceMap",
    "Real",
]

Real = NDArray[np.float64]
Index = NDArray[np.int64]
Flags = NDArray[np.bool_]

# The source of an entry that comes from the state before the first token.
INITIAL_STATE = -1
# The coordinate of the tokens that a packed sequence has in the last of several calls.
LAST_CALL = "tokens in the last call"
# The coordinate of the whole spans that an entry comes through, as a state.
SPANS_BETWEEN = "spans between"
# The coordinate that is 1 in packed sequences right after one of no token.
AFTER_AN_EMPTY_ONE = "after an empty one"
# Coordinates of what comes from another packed sequence: which one it is, and how many
# sequences before in the same call, without empty ones; the last row that is reached,
# and how many tokens of the other sequence are behind the first that reaches it.
ORIGIN, PARTS_BACK = "sequence of the source", "sequences back"
LAST_ROW, FROM_THE_END = "last row that is reached", "tokens from the end"
OF_OTHERS = (ORIGIN, PARTS_BACK, LAST_ROW, FROM_THE_END)
REACHES = (LAST_ROW, FROM_THE_END)
# Coordinates by the letters of axes.
AXES = {
    "k": "key channel",
    "v": "value channel",
    "m": "slot",
    "l": "level",
    "p": "pair of channels",
    "r": "rank",
}
# The part of an entry that rounding may be, where factors still show.
BLURRED = 2.0**-6


@dataclass(frozen=True, eq=False)
class InfluenceMap:
    """Entries of one result of a target, of one problem.

    Parameters
    ----------
    tensor : str
        The result: ``output``, ``final state``, ``gradient of key``, ...
    problem : Problem
        The inputs of the call.
    measured, exact, bound : array (N,)
        The entries that came back; those of the operator; the largest error that
        rounding can explain, infinite where nothing is proved.
    likely : array (N,)
        The largest error that independent roundings are likely to make.
    coordinates : mapping of str to array (N,)
        Places of the entries: ``row`` the token of the result, ``source`` the token
        that it comes from (`INITIAL_STATE` for the state), ``batch``, ``head``,
        ``key channel``, ``value channel``, ``sequence`` of packed ones, ``span``
        between cuts. A map has those that mean something for it.
    unaffected : array (N,), optional
        Entries that a deviation leaves as they are, wherever it is.
    others : mapping of str to array (N,)
        Exact entries that a target may have in place of these, by their words.
    """

    tensor: str
    problem: Problem
    measured: Real
    exact: Real
    bound: Real
    likely: Real
    coordinates: Mapping[str, Index]
    unaffected: Flags | None = None
    others: Mapping[str, Real] = field(default_factory=dict)

    @property
    def is_product(self) -> bool:
        """True if weights are products of numbers of the inputs."""
        sources = self.problem.knobs.get("sources")
        return sources is not None and sources.channels is not None

    def part(self, chosen: Flags | Index) -> "InfluenceMap":
        """Return the map of some entries."""
        unaffected = self.unaffected
        return replace(
            self,
            measured=self.measured[chosen],
            exact=self.exact[chosen],
            bound=self.bound[chosen],
            likely=self.likely[chosen],
            coordinates={name: x[chosen] for name, x in self.coordinates.items()},
            unaffected=None if unaffected is None else unaffected[chosen],
            others={words: x[chosen] for words, x in self.others.items()},
        )

    def worst_of_each(self, *names: str) -> "InfluenceMap":
        """Return the map of the most wrong entry of each place, by some coordinates.

        What is wrong is kept for each sequence that it comes from, and how far that
        reaches is that of the wrong entry that reaches farthest.
        """
        known = {n: x for n, x in self.coordinates.items() if n in names}
        order = np.lexsort((-self.error, ~self.wrong))
        places = np.stack([x[order] for n, x in known.items() if n not in REACHES])
        _, first, place = np.unique(
            places, axis=1, return_index=True, return_inverse=True
        )
        worst = replace(self, coordinates=known).part(order[first])
        farthest = {n: np.zeros(len(first), np.int64) for n in REACHES if n in known}
        for name, reach in farthest.items():
            np.maximum.at(reach, place.ravel(), (known[name] * self.wrong)[order])
        worst = replace(worst, coordinates={**worst.coordinates, **farthest})
        known = {n: x for n, x in worst.coordinates.items() if n not in OF_OTHERS}
        _, first, place = np.unique(
            np.stack([*known.values()]), axis=1, return_index=True, return_inverse=True
        )
        right = np.bincount(place.ravel(), worst.wrong) == 0
        return worst.part(np.append(np.flatnonzero(worst.wrong), first[right]))

    def beyond(self, times: float) -> Flags:
        """Return the entries whose errors are larger than so many times the bound."""
        with np.errstate(over="ignore"):
            return np.asarray(self.error > times * self.bound)

    @cached_property
    def error(self) -> Real:
        """Distances from the exact entries; infinite where one of both is not finite.

        Two equal infinities, and two NaN, are at no distance.
        """
        with np.errstate(all="ignore"):
            distance = abs(self.measured - self.exact)
        same = self.measured == self.exact
        same |= np.isnan(self.measured) & np.isnan(self.exact)
        distance = np.where(np.isnan(distance), np.inf, distance)
        return np.where(same, 0.0, distance)

    @cached_property
    def wrong(self) -> Flags:
        """Entries that rounding cannot explain."""
        return self.error > self.bound

    @cached_property
    def doubtful(self) -> Flags:
        """Entries that rounding may explain, but is not likely to."""
        return ~self.wrong & (self.error > self.likely)

    @cached_property
    def silent(self) -> Flags:
        """Entries of which no factor shows: zeros, and those that rounding may hide.

        Weights of zero in front of their source say something if one of them leaks, and
        so do zeros of a map that has nothing else.
        """
        zero = (self.exact == 0) & (self.measured == 0) & bool(self.exact.any())
        rows, sources = (self.coordinates.get(name) for name in ("row", "source"))
        if rows is not None and sources is not None:
            ahead = rows < sources
            zero &= ~(ahead & (self.wrong & ahead).any())
        hidden = (self.bound > BLURRED * abs(self.exact)) & (self.exact != 0)
        if self.unaffected is not None:
            hidden |= self.unaffected
        return np.asarray(zero | (hidden & ~self.wrong))
