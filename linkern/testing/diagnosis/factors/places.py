"""Places of the entries of a map: their tokens, heads and channels, and ranges of them.

A token near an entry is its row or source, a neighbour of these, or the first or last
one of their chunks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from linkern.testing.influence.maps import Index, InfluenceMap, Real

__all__ = ["LEAST", "Places"]

# The logarithm of a decay to zero, and of a factor that is zero.
LEAST = -1e4
# No token.
NOWHERE = -9


@dataclass(frozen=True, eq=False)
class Places:
    """The entries of a map, and numbers of its problem at their places."""

    entries: InfluenceMap
    chunk: int | None

    @cached_property
    def inputs(self) -> dict[str, Real]:
        """The inputs as the oracle takes them, those by default among them."""
        problem = self.entries.problem
        meant = problem._oracle_call.meant
        defaults = problem.scope.operator.defaults
        known = {name: make(meant) for name, make in defaults.items()}
        known |= {name: x for name, x in meant.items() if x is not None}
        if "log_decay" in known:
            known["log_decay"] = np.maximum(known["log_decay"], LEAST)
        return known

    def axes(self, name: str) -> str:
        """Return the letters of the axes of an input."""
        operator = self.entries.problem.scope.operator
        if name in operator.names:
            return operator.input(name).axes[-self.inputs[name].ndim :]
        return "g"

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by its letter."""
        return self.entries.problem.sizes

    @cached_property
    def groups(self) -> int:
        """The heads of values for each head of keys."""
        return self.sizes["g"] // max(self.sizes["h"], 1)

    @cached_property
    def micro(self) -> int:
        """The keys of each query."""
        each = self.sizes["s"] // max(self.sizes["t"], 1)
        return each if self.entries.problem.scope.operator.micro_steps else 1

    @cached_property
    def row(self) -> Index:
        """The rows; the last token where a result comes after all of them."""
        last = np.full(self.entries.exact.shape, self.sizes["t"] - 1)
        return self.entries.coordinates.get("row", last)

    @cached_property
    def source(self) -> Index:
        """The sources: `NOWHERE` where there are none."""
        none = np.full(self.entries.exact.shape, NOWHERE)
        source = self.entries.coordinates.get("source", none)
        return np.where(source < 0, NOWHERE, source)

    @cached_property
    def sourced(self) -> bool:
        """True if entries have sources."""
        return "source" in self.entries.coordinates

    @cached_property
    def key(self) -> Index:
        """The places of the sources among the keys."""
        step = self.entries.coordinates.get("micro-step", 0)
        return np.asarray(self.source * self.micro + step)

    @cached_property
    def known(self) -> dict[str, Index]:
        """The index of every entry along each axis but those of tokens."""
        places = self.entries.coordinates
        zero = np.zeros(self.row.shape, np.int64)
        head = places.get("head", zero)
        known = {"b": places.get("batch", zero), "g": head, "h": head // self.groups}
        names = {"k": "key channel", "v": "value channel", "m": "slot", "l": "level"}
        return known | {x: places[name] for x, name in names.items() if name in places}

    def at(
        self, x: Real, axes: str, token: Index | None = None, head: int | None = None
    ) -> Real:
        """Return numbers at the places of the entries; NaN where there is no place."""
        places = dict(self.known)
        if token is not None:
            places |= {"t": token, "s": token}
        if head is not None:
            both = np.full_like(self.row, head)
            places |= {"g": both, "h": both // self.groups}
        if not set(axes) <= places.keys():
            return np.full(self.row.shape, np.nan)
        inside = np.ones(self.row.shape, bool)
        for letter, size in zip(axes, x.shape, strict=True):
            inside &= (places[letter] >= 0) & (places[letter] < size)
        safe = tuple(np.where(inside, places[letter], 0) for letter in axes)
        return np.where(inside, x[safe], np.nan)

    @cached_property
    def heads(self) -> dict[str, int | None]:
        """The head of an entry and others, by what is appended to a name."""
        last = self.sizes["g"] - 1
        return {"": None, **({" of head 0": 0} if last else {})}

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
