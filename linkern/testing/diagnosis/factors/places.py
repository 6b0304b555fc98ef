"""Places of the entries of a map: their tokens, heads and channels, and ranges of them.

A token near an entry is its row or source, a neighbour of these, or the first or last
one of their chunks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.influence.maps import AXES, Index, InfluenceMap, Real

__all__ = ["LEAST_LOG", "Places", "level_of", "places_of"]

# The logarithm of a decay to zero, and of a factor that is zero.
LEAST_LOG = -1e4
# No token.
NOWHERE = -9


@dataclass(frozen=True, eq=False)
class Places:
    """The entries of a map, and numbers of its problem at their places.

    Parameters
    ----------
    entries : InfluenceMap
        The entries.
    chunk : int or None
        The size of chunks, if one is known.
    inputs, axes : mapping of str to array or str
        The inputs as the oracle takes them, those by default among them, and the
        letters of their axes. A log-decay that steps and rates make is one of them.
    sizes : mapping of str to int
        The size of each axis by its letter.
    groups, micro : int
        The heads of values for each head of keys; the keys of each query.
    row, source, key : array (N,)
        The rows, or the last token where a result comes after all of them; the sources,
        or `NOWHERE`; the sources among the keys.
    index : mapping of str to array (N,)
        The index of every entry along each axis but those of tokens, by its letter.
    """

    entries: InfluenceMap
    chunk: int | None
    inputs: Mapping[str, Real]
    axes: Mapping[str, str]
    sizes: Mapping[str, int]
    groups: int
    micro: int
    row: Index
    source: Index
    key: Index
    index: Mapping[str, Index]

    @property
    def sourced(self) -> bool:
        """True if entries have sources."""
        return "source" in self.entries.coordinates

    def at(
        self,
        x: NDArray[Any],
        axes: str,
        token: Index | None = None,
        other: Mapping[str, Index] = MappingProxyType({}),
    ) -> NDArray[Any]:
        """Return numbers at the places of the entries; NaN where there is no place.

        Tokens are to be named, and other places along some axes may be.
        """
        places = {**self.index}
        if token is not None:
            places |= {"t": token, "s": token}
        places |= other
        if not set(axes) <= places.keys():
            return np.full(self.row.shape, np.nan)
        index = np.stack([places[letter] for letter in axes])
        inside = ((index >= 0) & (index < np.reshape(x.shape, (-1, 1)))).all(axis=0)
        return np.where(inside, x[tuple(index * inside)], np.nan)

    def tokens(self) -> Iterator[tuple[str, Index, float]]:
        """Yield the tokens near an entry: their names, places and cost."""
        row, source, last = self.row, self.source, self.sizes["t"] - 1
        yield "row", row, 2.0
        yield "row - 1", row - 1, 3.0
        yield "row + 1", row + 1, 3.5
        if self.sourced:
            yield "source", source, 2.0
            yield "source + 1", source + 1, 3.0
            yield "source - 1", source - 1, 3.5
        if self.micro > 1:
            yield "first of the source's micro-steps", source, 4.0
        if "written" in self.entries.coordinates:
            yield "written", self.entries.coordinates["written"], 2.0
        yield "0", 0 * row, 4.0
        yield "the last token", 0 * row + last, 4.0
        if self.chunk is not None:
            first = row // self.chunk * self.chunk
            yield "first of the chunk", first, 3.0
            yield "last of the chunk before", first - 1, 3.5
            yield "last of the chunk", np.minimum(first + self.chunk - 1, last), 3.5
        if self.chunk is not None and self.sourced:
            first = source // self.chunk * self.chunk
            end = np.minimum(first + self.chunk - 1, last)
            yield "first of the source's chunk", first, 4.0
            yield "last of the source's chunk", np.where(source < 0, source, end), 4.0

    def ranges(self) -> Iterator[tuple[str, Index, Index, float]]:
        """Yield ranges of tokens: their names, first tokens, ends and cost."""
        row, source, known = self.row, self.source, self.entries.coordinates
        before, source = 0 * row, np.maximum(source, -1)
        if self.sourced:
            yield "(source, row]", source + 1, row + 1, 3.0
            yield "the tokens up to the source", before, source + 1, 4.5
        if "written" in known:
            written = np.maximum(known["written"], -1)
            yield "(written, row]", written + 1, row + 1, 3.0
            yield "(written, source]", written + 1, source + 1, 3.0
        yield "the tokens up to the row", before, row + 1, 4.0
        end = before + self.sizes["t"]
        yield "the tokens after the row", row + 1, end, 4.5
        if self.chunk is None:
            return
        yield "the padding of the last chunk", end, end + -end % self.chunk, 4.0
        first, end = self._chunk(row)
        yield "the chunk up to the row", first, row + 1, 3.5
        yield "the chunk", first, end, 4.0
        yield "the chunk before", first - self.chunk, first, 4.0
        yield "the chunk before the row", first, row, 4.0
        two = np.maximum(first - self.chunk, 0)
        yield "the last two chunks up to the row", two, row + 1, 4.0
        yield "the rest of the chunk", row + 1, end, 4.0
        if self.sourced:
            begin, after = self._chunk(source)
            yield "the source's chunk", np.maximum(begin, 0), after, 4.0
            yield "the rest of the source's chunk", source + 1, after, 4.0
            yield "the chunks between", after, first, 4.0
            yield "the tokens from the source to the chunk", source + 1, first, 4.0

    def _chunk(self, token: Index) -> tuple[Index, Index]:
        """Return the first tokens and the ends of chunks; no tokens before them all."""
        assert self.chunk is not None
        first = token // self.chunk * self.chunk
        end = np.minimum(first + self.chunk, self.sizes["t"])
        return first, np.where(token < 0, 0, end)


def places_of(entries: InfluenceMap, chunk: int | None) -> Places:
    """Return the places of the entries of a map, of chunks of a size if it is known."""
    problem, known = entries.problem, entries.coordinates
    operator, meant = problem.scope.operator, problem.oracle_call.meant
    inputs = {name: make(meant) for name, make in operator.defaults.items()}
    inputs |= {name: x for name, x in meant.items() if x is not None}
    letters = dict.fromkeys(inputs, "g") | {x.name: x.axes for x in operator.inputs}
    if {"dt", "log_decay_rate"} <= inputs.keys():
        rate = inputs["log_decay_rate"].swapaxes(-1, -2)
        inputs["log_decay"] = inputs["dt"][..., None, :] * rate[:, None]
        letters["log_decay"] = "bgtkv"
    if "log_decay" in inputs:
        inputs["log_decay"] = np.maximum(inputs["log_decay"], LEAST_LOG)
    axes = {name: letters[name][-x.ndim :] for name, x in inputs.items()}
    sizes = problem.sizes
    groups = sizes["g"] // max(sizes["h"], 1)
    micro = sizes["s"] // max(sizes["t"], 1) if operator.micro_steps else 1
    none = np.zeros(entries.exact.shape, np.int64)
    row = known.get("row", none + sizes["t"] - 1)
    source = known.get("source", none + NOWHERE)
    source = np.where(source < 0, NOWHERE, source)
    key = source * micro + known.get("micro-step", 0)
    head = known.get("head", none)
    index = {"b": known.get("batch", none), "g": head, "h": head // groups}
    index |= {x: known[name] for x, name in AXES.items() if name in known}
    levels = any("l" in letters for letters in axes.values())
    if levels and "source" in known and "span" not in known:
        index.setdefault("l", level_of(np.where(source < 0, 0, row ^ source)))
    return Places(
        entries, chunk, inputs, axes, sizes, groups, micro, row, source, key, index
    )


def level_of(bits: Index) -> Index:
    """Return the number of the highest bit of each number, from 1; 0 if it is zero.

    Of the bits in which two tokens differ, it is the level of their pair.
    """
    return np.frexp(bits.astype(np.float64))[1].astype(np.int64)
