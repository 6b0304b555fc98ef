"""Places of the entries of gradients: the pair of tokens that each comes from.

A sequence that is cut, or packed, has several parts. Tokens are counted from the first
one of their part; what comes from an earlier part comes from the initial state.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from linkern.testing.diagnosis.gradient_scenes import NOWHERE, Impulses
from linkern.testing.diagnosis.influence import INITIAL_STATE, Flags, Index
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
    found = [
        Part(start + a, start + b, span, sequence)
        for span, (start, edges) in enumerate(
            zip(starts, made.packing.segments, strict=True)
        )
        for sequence, (a, b) in enumerate(pairwise(edges))
    ]
    rest = Part(made.packing.ends[-1], length, len(starts) - 1, NOWHERE)
    return [part for part in (*found, rest) if part.first < part.last]


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
    known = {CHANNELS[x]: at for x, at in axes.items() if x in CHANNELS}
    if "b" in axes:
        known["batch"] = axes["b"]
    head = axes.get("h", axes.get("g"))
    if head is not None:
        known["head"] = head
    token = axes.get("s", axes.get("t"))
    pieces = parts(made)
    if token is None or head is None or "b" not in axes:
        whole = Part(0, made.problem.length)
        yield whole, INSIDE, np.ones(shape, np.bool_), known
        return
    each = per_token(made.problem)
    if each > 1 and "s" in axes:
        known["micro-step"], token = token % each, token // each
    tokens = _Tokens(pieces)
    row, written = _pair(made, one.name, axes, token)
    used = (row != NOWHERE) & (written != NOWHERE)
    # Of the gradient of a value the value does not matter.
    pair_of = {"query": "source", "value": ""} | ({} if made.single else {"key": ""})
    other = pair_of.get(one.name, "written")
    if other:
        known[other] = tokens.seen_from(token, written)
    own = tokens.offset[token]
    if one.name == "query":
        known["row"] = own
    else:
        known["source"] = own
        known["row"] = tokens.seen_from(token, row)
    relation = tokens.relation(token, row)
    several = len({x.sequence for x in pieces}) > 1
    for number, part in enumerate(pieces):
        for kind in (INSIDE, THROUGH, ACROSS):
            chosen = used & (tokens.number[token] == number) & (relation == kind)
            if not chosen.any():
                continue
            places = dict(known)
            if kind != INSIDE:
                del places["row"]
            if several:
                places["sequence"] = np.full(shape, part.sequence)
            yield part, kind, chosen, places


def _pair(
    made: Impulses, name: str, axes: dict[str, Index], token: Index
) -> tuple[Index, Index]:
    """Return the row and the token of the value behind each entry of a gradient."""
    if name == "value":
        rows = made.rows[axes["b"], axes.get("g", axes.get("h")), axes["v"]]
        return rows, token
    shape, each = made.problem.shape, per_token(made.problem)
    head = axes["h"] if "h" in axes else axes["g"] // shape.groups
    # Heads of values that share a query count as one.
    sources = np.where(made.sources == NOWHERE, NOWHERE, made.sources // each)
    rows, sources = (
        x.reshape(shape.batch, shape.heads, -1) for x in (made.rows, sources)
    )
    if made.single:
        place = axes["b"], head
        return rows.max(axis=-1)[place], sources.max(axis=-1)[place]
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
