"""Places of the entries of gradients: the pair of tokens that each comes from.

A sequence that is cut, or packed, has several parts. Tokens are counted from the first
one of their part; what comes from an earlier part comes from the initial state.
"""

from collections.abc import Iterator

import numpy as np

from linkern.testing.influence.gradient_scenes import Pairs
from linkern.testing.influence.maps import AXES, Flags, Index
from linkern.testing.influence.parts import Parts
from linkern.testing.influence.scenes import NOWHERE, kept_sources, per_token
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import Input

__all__ = ["DENOMINATOR", "INSIDE", "NAMES", "THROUGH", "coordinates", "kept_pairs"]

Coordinates = dict[str, Index]
# Names of a gradient by where its row is: in the part of its token; there, but it comes
# from the sum of a normaliser alone; in a later part of the sequence; in another
# sequence, or in one of a later call. Tokens behind the last sequence are in none.
NAMES = (
    "gradient of {}",
    "gradient of {} through the denominator",
    "gradient of {} across cuts",
    "gradient of {} across sequences",
    "gradient of {} across sequences through the final state",
    "gradient of {} after the last sequence",
)
INSIDE, DENOMINATOR, THROUGH, ACROSS, ACROSS_THROUGH, AFTER = range(6)


def coordinates(
    problem: Problem, one: Input, shape: tuple[int, ...]
) -> Iterator[tuple[int, Index, str, Flags, Coordinates]]:
    """Yield the entries of a gradient by part, and by where their row is.

    Yields
    ------
    part : int
        The part of the tokens of the gradient.
    other : array
        The part of the row of each entry.
    tensor : str
        The name of the gradient.
    chosen : array of bool
        The entries.
    coordinates : dict of str to array
        The places of all entries, as they count in this part.
    """
    axes = dict(zip(one.axes, np.indices(shape).astype(np.int64), strict=True))
    known, token = _by_axis(problem, axes)
    if token is None:
        name = NAMES[INSIDE].format(one.name)
        yield 0, np.zeros(shape, np.int64), name, np.ones(shape, np.bool_), known
        return
    parts, pairs = Parts(problem), kept_pairs(problem)
    row, written = _pair(problem, one.name, axes, token)
    mine, other = parts.of(token), parts.of(row)
    own = "row" if one.name == "query" else "source"
    known |= {"row": parts.seen(row, mine), own: parts.seen(token, mine)}
    used = row != NOWHERE
    if pairs.scene != "one row":
        used &= written != NOWHERE
        if one.name == "query":
            known["source"] = parts.seen(written, mine)
        elif pairs.scene == "one pair":
            known["written"] = parts.seen(written, mine)
            there = np.where(pairs.rows == NOWHERE, 0, np.arange(pairs.rows.shape[-1]))
            known.setdefault("value channel", _of_head(problem, there, axes))
    span, sequence = parts.table[2:4]
    same = sequence[mine] == sequence[other]
    # Nothing comes back from rows of an earlier part.
    used &= ~same | (other >= mine)
    relation = np.where(other == mine, INSIDE, np.where(same, THROUGH, ACROSS))
    relation += ~same & (span[other] > span[mine])
    relation[sequence[mine] == parts.sequences] = AFTER
    beside = _beside(problem, one.name, axes, token, written)
    relation[beside & (relation == INSIDE)] = DENOMINATOR
    known |= parts.places(mine)
    across = {**known, **parts.origin(mine, other)}
    for k in range(len(sequence)):
        for kind, tensor in enumerate(NAMES):
            chosen = used & (mine == k) & (relation == kind)
            if chosen.any():
                inside = kind in (INSIDE, DENOMINATOR)
                at = across if kind in (ACROSS, ACROSS_THROUGH) else known
                at = {x: at[x] for x in at if x != "row" or inside}
                yield k, other, tensor.format(one.name), chosen, at


def _by_axis(
    problem: Problem, axes: dict[str, Index]
) -> tuple[Coordinates, Index | None]:
    """Return the coordinates along axes, and the token if there is one for each."""
    known = {AXES[x]: at for x, at in axes.items() if x in AXES}
    for letter, name in (("b", "batch"), ("g", "head"), ("h", "head")):
        if letter in axes:
            known[name] = axes[letter]
    token = axes.get("s", axes.get("t"))
    each = per_token(problem)
    if token is not None and each > 1 and "s" in axes:
        known["micro-step"], token = token % each, token // each
    return known, token


def kept_pairs(problem: Problem) -> Pairs:
    """Return the pairs of tokens of a scene."""
    pairs: Pairs = problem.knobs["pairs"]
    return pairs


def _of_head(problem: Problem, tokens: Index, axes: dict[str, Index]) -> Index:
    """Return the one token, or channel, that each batch entry and head has.

    Heads of values that share a query count as one.
    """
    shape = problem.shape
    table = tokens.reshape(shape.batch, shape.heads, -1).max(axis=-1)
    head = axes["h"] if "h" in axes else axes["g"] // shape.groups
    return np.asarray(table[axes["b"], head])


def _pair(
    problem: Problem, name: str, axes: dict[str, Index], token: Index
) -> tuple[Index, Index]:
    """Return the row and the token of the value behind each entry of a gradient."""
    shape, pairs = problem.shape, kept_pairs(problem)
    rows, sources = pairs.rows, pairs.sources
    sources = np.where(sources == NOWHERE, NOWHERE, sources // per_token(problem))
    if pairs.scene != "every row":
        return _of_head(problem, rows, axes), _of_head(problem, sources, axes)
    if name == "value":
        return rows[axes["b"], axes.get("g", axes.get("h")), axes["v"]], token
    ends = (x.reshape(shape.batch, shape.heads, -1) for x in (rows, sources))
    mine, other = ends if name == "query" else [*ends][::-1]
    partner = np.full((shape.batch, shape.heads, shape.length), NOWHERE)
    b, h, channel = np.nonzero(mine != NOWHERE)
    partner[b, h, mine[b, h, channel]] = other[b, h, channel]
    head = axes["h"] if "h" in axes else axes["g"] // shape.groups
    at = partner[axes["b"], head, token]
    return (token, at) if name == "query" else (at, token)


def _beside(
    problem: Problem, name: str, axes: dict[str, Index], token: Index, written: Index
) -> Flags:
    """Return the entries to which the numerator of a pair contributes nothing."""
    nothing = np.zeros(token.shape, np.bool_)
    if not problem.scope.normalised or kept_pairs(problem).scene == "one row":
        return nothing
    if name == "key":
        return np.asarray(token != written)
    channels = kept_sources(problem).channels
    if name == "query" and channels is not None:
        at = np.maximum(written, 0)
        return np.asarray(axes["k"] != channels[axes["b"], axes["h"], at])
    return nothing
