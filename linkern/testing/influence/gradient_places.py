"""Places of the entries of gradients: the pair of tokens that each comes from.

A sequence that is cut, or packed, has several parts. Tokens are counted from the first
one of their part; what comes from an earlier part comes from the initial state.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from linkern.testing.influence.gradient_scenes import NOWHERE, Impulses
from linkern.testing.influence.maps import INITIAL_STATE, Flags, Index
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import Input

__all__ = ["ACROSS", "INSIDE", "THROUGH", "Coordinates", "Part", "coordinates", "parts"]

Coordinates = dict[str, Index]
# Coordinates by the letters of axes.
CHANNELS = {"k": "key channel", "v": "value channel", "m": "slot", "l": "level"}
# Of the row of a gradient: in the part of its token, in a later part of its sequence,
# in another sequence.
INSIDE, THROUGH, ACROSS = range(3)


@dataclass(frozen=True)
class Part:
    """Tokens of one sequence in one call.

    Parameters
    ----------
    first, last : int
        The first token, and the first one behind.
    span : int
        The number of the call.
    sequence : int
        The number of the packed sequence; `NOWHERE` behind the last one.
    """

    first: int
    last: int
    span: int = 0
    sequence: int = 0


def parts(made: Impulses) -> list[Part]:
    """Return the parts of the sequences, those without tokens left out."""
    length = made.problem.length
    if made.packing is None:
        edges = pairwise((0, *made.cuts, length))
        return [Part(*ends, span) for span, ends in enumerate(edges)]
    starts = (0, *made.packing.cuts)
    pieces = [
        Part(start + a, start + b, span, sequence)
        for span, (start, edges) in enumerate(
            zip(starts, made.packing.segments, strict=True)
        )
        for sequence, (a, b) in enumerate(pairwise(edges))
    ]
    rest = Part(made.packing.ends[-1], length, len(starts) - 1, NOWHERE)
    return [part for part in (*pieces, rest) if part.first < part.last]


@dataclass(frozen=True, eq=False)
class _Tokens:
    """The part of each token."""

    parts: list[Part]

    @cached_property
    def number(self) -> Index:
        """The number of the part of each token."""
        return np.repeat(
            np.arange(len(self.parts)), [x.last - x.first for x in self.parts]
        )

    @cached_property
    def sequence(self) -> Index:
        """The sequence of each token."""
        return np.array([x.sequence for x in self.parts])[self.number]

    @cached_property
    def offset(self) -> Index:
        """The place of each token in its part."""
        first = np.array([x.first for x in self.parts])
        return np.asarray(np.arange(len(self.number)) - first[self.number])

    def seen_from(self, token: Index, other: Index) -> Index:
        """Return places of other tokens, counted in the part of a token.

        Those in earlier parts are `INITIAL_STATE`, those in later ones behind the end.
        """
        mine, its = self.number[token], self.number[other]
        lengths = np.array([x.last - x.first for x in self.parts])
        apart = np.where(its < mine, INITIAL_STATE, lengths[mine])
        return np.where(its == mine, self.offset[other], apart)

    def relation(self, token: Index, row: Index) -> Index:
        """Return `INSIDE`, `THROUGH` or `ACROSS`, of a token and the row."""
        same = self.sequence[token] == self.sequence[row]
        same &= self.sequence[token] != NOWHERE
        apart = np.where(same, THROUGH, ACROSS)
        inside = same & (self.number[token] == self.number[row])
        return np.where(inside, INSIDE, apart)


def coordinates(
    made: Impulses, one: Input, shape: tuple[int, ...]
) -> Iterator[tuple[Part, int, Flags, Coordinates]]:
    """Yield the entries of a gradient by part, and by where their row is.

    Yields
    ------
    part : Part
        The part of the tokens of the gradient.
    relation : int
        `INSIDE`, `THROUGH` or `ACROSS`.
    chosen : array of bool
        The entries.
    coordinates : dict of str to array
        The places of all entries, as they count in this part.
    """
    axes = dict(zip(one.axes, np.indices(shape).astype(np.int64), strict=True))
    known, token = _by_axis(made, axes)
    own = "row" if one.name == "query" else "source"
    if token is None or made.scene == "one row":
        if token is not None:
            known |= {"row": _of_head(made, made.rows, axes), own: token}
        whole = Part(0, made.problem.length)
        yield whole, INSIDE, np.ones(shape, np.bool_), known
        return
    pieces = parts(made)
    tokens = _Tokens(pieces)
    row, written = _pair(made, one.name, axes, token)
    known |= {"row": tokens.seen_from(token, row), own: tokens.offset[token]}
    if one.name == "query":
        known["source"] = tokens.seen_from(token, written)
    elif made.scene == "one pair":
        known["written"] = tokens.seen_from(token, written)
        there = np.where(made.rows == NOWHERE, 0, np.arange(made.rows.shape[-1]))
        known.setdefault("value channel", _of_head(made, there, axes))
    used = (row != NOWHERE) & (written != NOWHERE)
    relation = tokens.relation(token, row)
    for number, part in enumerate(pieces):
        places = dict(known)
        for name in ("span", "sequence"):
            if len({getattr(x, name) for x in pieces}) > 1:
                places[name] = np.full(shape, getattr(part, name))
        for kind in (INSIDE, THROUGH, ACROSS):
            chosen = used & (tokens.number[token] == number) & (relation == kind)
            if chosen.any():
                names = [x for x in places if x != "row" or kind == INSIDE]
                yield part, kind, chosen, {x: places[x] for x in names}


def _by_axis(
    made: Impulses, axes: dict[str, Index]
) -> tuple[Coordinates, Index | None]:
    """Return the coordinates along axes, and the token if there is one for each."""
    known = {CHANNELS[x]: at for x, at in axes.items() if x in CHANNELS}
    for letter, name in (("b", "batch"), ("g", "head"), ("h", "head")):
        if letter in axes:
            known[name] = axes[letter]
    token = axes.get("s", axes.get("t"))
    each = per_token(made.problem)
    if token is not None and each > 1 and "s" in axes:
        known["micro-step"], token = token % each, token // each
    return known, token


def _head(made: Impulses, axes: dict[str, Index]) -> Index:
    """Return the heads of queries."""
    return axes["h"] if "h" in axes else axes["g"] // made.problem.shape.groups


def _of_head(made: Impulses, tokens: Index, axes: dict[str, Index]) -> Index:
    """Return the one token, or channel, that each batch entry and head has."""
    shape = made.problem.shape
    table = tokens.reshape(shape.batch, shape.heads, -1).max(axis=-1)
    return np.asarray(table[axes["b"], _head(made, axes)])


def _pair(
    made: Impulses, name: str, axes: dict[str, Index], token: Index
) -> tuple[Index, Index]:
    """Return the row and the token of the value behind each entry of a gradient."""
    if name == "value":
        rows = made.rows[axes["b"], axes.get("g", axes.get("h")), axes["v"]]
        return rows, token
    shape, each = made.problem.shape, per_token(made.problem)
    head = _head(made, axes)
    # Heads of values that share a query count as one.
    sources = np.where(made.sources == NOWHERE, NOWHERE, made.sources // each)
    rows, sources = (
        x.reshape(shape.batch, shape.heads, -1) for x in (made.rows, sources)
    )
    if made.scene == "one pair":
        return _of_head(made, rows, axes), _of_head(made, sources, axes)
    own, partner = (rows, sources) if name == "query" else (sources, rows)
    table = np.full((shape.batch, shape.heads, made.problem.length), NOWHERE)
    b, h, channel = np.nonzero(own != NOWHERE)
    table[b, h, own[b, h, channel]] = partner[b, h, channel]
    other = table[axes["b"], head, token]
    if name == "query":
        return token, other
    return other, token


def per_token(problem: Problem) -> int:
    """Return the micro-steps of each token."""
    shape = problem.shape
    return shape.keys // shape.length if problem.scope.operator.micro_steps else 1
