"""Places of the entries of gradients: the pair of tokens that each comes from.

A sequence that is cut, or packed, has several parts. Tokens are counted from the first
one of their part; what comes from an earlier part comes from the initial state.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from linkern.testing.influence.gradient_scenes import Impulses
from linkern.testing.influence.maps import INITIAL_STATE, Flags, Index
from linkern.testing.influence.scenes import NOWHERE, kept_sources
from linkern.testing.problems.packing import Packing
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import Input

__all__ = ["NAMES", "Coordinates", "Part", "coordinates", "parts"]

Coordinates = dict[str, Index]
# Coordinates by the letters of axes.
CHANNELS = {"k": "key channel", "v": "value channel", "m": "slot", "l": "level"}
# Names of a gradient by where its row is: in the part of its token; there, but it comes
# from the sum of a normaliser alone; in a later part of the sequence; in another
# sequence. Tokens behind the last sequence are in none.
NAMES = (
    "gradient of {}",
    "gradient of {} through the denominator",
    "gradient through the final state",
    "gradient of {} across sequences",
    "gradient of {} after the last sequence",
)
INSIDE, DENOMINATOR, THROUGH, ACROSS, AFTER = range(5)


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
    calls = np.diff((0, *made.cuts, length)).tolist()
    packing = made.packing or Packing(tuple((n,) for n in calls))
    pieces = [
        Part(start + a, start + b, span, sequence)
        for span, start in enumerate((0, *packing.cuts))
        for sequence, (a, b) in enumerate(pairwise(packing.segments[span]))
    ]
    rest = Part(packing.ends[-1], length, len(packing.cuts), NOWHERE)
    return [part for part in (*pieces, rest) if part.first < part.last]


def coordinates(
    made: Impulses, one: Input, shape: tuple[int, ...]
) -> Iterator[tuple[Part, str, Flags, Coordinates]]:
    """Yield the entries of a gradient by part, and by where their row is.

    Yields
    ------
    part : Part
        The part of the tokens of the gradient.
    tensor : str
        The name of the gradient.
    chosen : array of bool
        The entries.
    coordinates : dict of str to array
        The places of all entries, as they count in this part.
    """
    axes = dict(zip(one.axes, np.indices(shape).astype(np.int64), strict=True))
    known, token = _by_axis(made.problem, axes)
    if token is None:
        whole = Part(0, made.problem.length)
        yield whole, NAMES[INSIDE].format(one.name), np.ones(shape, np.bool_), known
        return
    pieces = parts(made)
    row, written = _pair(made, one.name, axes, token)
    first, last, spans, sequences = np.array(
        [(x.first, x.last, x.span, x.sequence) for x in pieces]
    ).T
    number = np.searchsorted(first, np.arange(made.problem.length), side="right") - 1
    mine = number[token]

    def seen(other: Index) -> Index:
        """Return places as they count in the part of each entry."""
        ahead = np.where(number[other] < mine, INITIAL_STATE, (last - first)[mine])
        return np.where(number[other] == mine, other - first[mine], ahead)

    own = "row" if one.name == "query" else "source"
    known |= {"row": seen(row), own: seen(token)}
    used = row != NOWHERE
    if made.scene != "one row":
        used &= written != NOWHERE
        if one.name == "query":
            known["source"] = seen(written)
        elif made.scene == "one pair":
            known["written"] = seen(written)
            there = np.where(made.rows == NOWHERE, 0, np.arange(made.rows.shape[-1]))
            known.setdefault("value channel", _of_head(made, there, axes))
    same = sequences[mine] == sequences[number[row]]
    relation = np.where(number[row] == mine, INSIDE, np.where(same, THROUGH, ACROSS))
    relation[sequences[mine] == NOWHERE] = AFTER
    beside = _beside(made, one.name, axes, token, written)
    relation[beside & (relation == INSIDE)] = DENOMINATOR
    for k, part in enumerate(pieces):
        places = dict(known)
        for name, numbers in (("span", spans), ("sequence", sequences)):
            if len({*numbers}) > 1:
                places[name] = np.full(shape, numbers[k])
        for kind, tensor in enumerate(NAMES):
            chosen = used & (mine == k) & (relation == kind)
            if chosen.any():
                inside = kind in (INSIDE, DENOMINATOR)
                names = [x for x in places if x != "row" or inside]
                at = {x: places[x] for x in names}
                yield part, tensor.format(one.name), chosen, at


def _by_axis(
    problem: Problem, axes: dict[str, Index]
) -> tuple[Coordinates, Index | None]:
    """Return the coordinates along axes, and the token if there is one for each."""
    known = {CHANNELS[x]: at for x, at in axes.items() if x in CHANNELS}
    for letter, name in (("b", "batch"), ("g", "head"), ("h", "head")):
        if letter in axes:
            known[name] = axes[letter]
    token = axes.get("s", axes.get("t"))
    each = per_token(problem)
    if token is not None and each > 1 and "s" in axes:
        known["micro-step"], token = token % each, token // each
    return known, token


def _of_head(made: Impulses, tokens: Index, axes: dict[str, Index]) -> Index:
    """Return the one token, or channel, that each batch entry and head has.

    Heads of values that share a query count as one.
    """
    shape = made.problem.shape
    table = tokens.reshape(shape.batch, shape.heads, -1).max(axis=-1)
    head = axes["h"] if "h" in axes else axes["g"] // shape.groups
    return np.asarray(table[axes["b"], head])


def _pair(
    made: Impulses, name: str, axes: dict[str, Index], token: Index
) -> tuple[Index, Index]:
    """Return the row and the token of the value behind each entry of a gradient."""
    shape, each = made.problem.shape, per_token(made.problem)
    sources = np.where(made.sources == NOWHERE, NOWHERE, made.sources // each)
    if made.scene != "every row":
        return _of_head(made, made.rows, axes), _of_head(made, sources, axes)
    if name == "value":
        return made.rows[axes["b"], axes.get("g", axes.get("h")), axes["v"]], token
    ends = (x.reshape(shape.batch, shape.heads, -1) for x in (made.rows, sources))
    mine, other = ends if name == "query" else [*ends][::-1]
    partner = np.full((shape.batch, shape.heads, shape.length), NOWHERE)
    b, h, channel = np.nonzero(mine != NOWHERE)
    partner[b, h, mine[b, h, channel]] = other[b, h, channel]
    head = axes["h"] if "h" in axes else axes["g"] // shape.groups
    at = partner[axes["b"], head, token]
    return (token, at) if name == "query" else (at, token)


def _beside(
    made: Impulses, name: str, axes: dict[str, Index], token: Index, written: Index
) -> Flags:
    """Return the entries to which the numerator of a pair contributes nothing."""
    problem = made.problem
    nothing = np.zeros(token.shape, np.bool_)
    if not problem.scope.normalised or made.scene == "one row":
        return nothing
    if name == "key":
        return np.asarray(token != written)
    channels = kept_sources(problem).channels
    if name == "query" and channels is not None:
        at = np.maximum(written, 0)
        return np.asarray(axes["k"] != channels[axes["b"], axes["h"], at])
    return nothing


def per_token(problem: Problem) -> int:
    """Return the micro-steps of each token."""
    shape = problem.shape
    return shape.keys // shape.length if problem.scope.operator.micro_steps else 1
