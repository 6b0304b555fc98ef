"""Atoms about chunks: "pairs across edges of chunks of 16", "rows in the tail"."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.index_sets.atoms import BEST, Atom, Rated
from linkern.testing.diagnosis.index_sets.coordinates import UNKNOWN
from linkern.testing.diagnosis.index_sets.places import Places
from linkern.testing.influence.maps import Flags, Real

__all__ = ["chunk_atoms"]

# Small integers are fast.
Integers = NDArray[Any]
Along = tuple[Integers, Integers, Integers]
# Chunk sizes above it are multiples of 4.
SMALL_CHUNK = 256
CHUNKS_AT_ONCE = 64
# Coordinates that chunks are made of, the later token of pairs first.
AXES = (
    ("row", "source"),
    ("source", "written"),
    ("row",),
    ("source",),
    ("key channel",),
    ("value channel",),
    ("length",),
    ("start",),
)


def chunk_bits(size: int) -> float:
    """Return the bits of a chunk size: few of powers of two from 16 to 128."""
    exponent = (size & -size).bit_length() - 1
    odd = size >> exponent
    return min(2 * math.log2(odd) + abs(exponent - 5.5), math.log2(size) + 8)


@dataclass(frozen=True, eq=False)
class _Chunks:
    """Places in chunks of a size: tokens or channels, and the end of their axis."""

    at: Integers
    end: Integers
    source: Integers
    size: Integers | int

    @property
    def place(self) -> Integers:
        """The place of a token in its chunk; -1 of the initial state."""
        return np.where(self.at < 0, -1, self.at % self.size)

    @property
    def tail(self) -> Flags:
        """The tokens after the last whole chunk."""
        return np.asarray(self.at >= self.end // self.size * self.size)

    @property
    def apart(self) -> Integers:
        """The chunks from that of the source to that of the row."""
        return np.asarray(self.at // self.size - self.source // self.size)

    @property
    def last(self) -> Flags:
        """The tokens of the last chunk, whole or not."""
        return np.asarray(self.at // self.size == (self.end - 1) // self.size)

    @property
    def across_last(self) -> Flags:
        """Pairs with the last token of a chunk after the source, up to the row."""
        row, source = self.at + 1, self.source + 1
        return np.asarray(row // self.size != source // self.size)

    @property
    def past_power(self) -> Flags:
        """Pairs at least as far apart in the row's chunk as its largest power of two.

        A scan that doubles its distance misses them if it has no round for the rest of
        a chunk of another length. Earlier chunks come in with the first token.
        """
        first = self.at // self.size * self.size
        tokens = np.minimum(self.size, self.end - first).clip(1)
        power = np.left_shift(1, np.log2(tokens).astype(np.int32))
        return np.asarray(self.at - np.maximum(self.source, first) >= power)


# Words of statements, with the chunk size in place of {n}; their bits; tests.
Statement = tuple[str, float, Callable[[_Chunks], Flags]]
PAIRS: tuple[Statement, ...] = (
    ("{0}s across edges of chunks of {n}", 1, lambda c: c.apart != 0),
    ("{0}s inside chunks of {n}", 1, lambda c: c.apart == 0),
    ("{0}s of neighbouring chunks of {n}", 2, lambda c: c.apart == 1),
    ("{0}s two or more chunks of {n} apart", 3, lambda c: c.apart >= 2),
    ("{0}s three or more chunks of {n} apart", 4, lambda c: c.apart >= 3),
    ("{0}s across the last token of chunks of {n}", 3, lambda c: c.across_last),
    (
        "{0}s P or more apart in a chunk of {n}, P its largest power of two",
        5,
        lambda c: c.past_power,
    ),
)
TAILS: tuple[Statement, ...] = (
    ("{0}s in the tail of chunks of {n}", 3, lambda c: c.tail),
    ("{0}s in whole chunks of {n}", 3, lambda c: ~c.tail),
)
TOKENS: tuple[Statement, ...] = (
    *TAILS,
    ("the first {0} of every chunk of {n}", 2, lambda c: c.place == 0),
    ("the last {0} of every chunk of {n}", 2, lambda c: c.place == c.size - 1),
    ("{0}s after the first of every chunk of {n}", 3, lambda c: c.place > 0),
    ("{0}s before the last of every chunk of {n}", 3, lambda c: c.place != c.size - 1),
    ("{0}s in the last chunk of {n}", 3, lambda c: c.last),
    ("{0}s before the last chunk of {n}", 3, lambda c: ~c.last),
    ("{0}s in odd chunks of {n}", 5, lambda c: c.at // c.size % 2 == 1),
    ("{0}s in even chunks of {n}", 5, lambda c: c.at // c.size % 2 == 0),
)
LENGTHS: tuple[Statement, ...] = (
    ("{0}s that are multiples of {n}", 3, lambda c: c.place == 0),
    ("{0}s that are no multiple of {n}", 3, lambda c: c.place > 0),
)
STARTS: tuple[Statement, ...] = (
    ("sequences that begin inside of chunks of {n}", 3, lambda c: c.place > 0),
    (
        "later sequences that begin with a chunk of {n}",  # none is before the first
        3,
        lambda c: (c.place == 0) & (c.at > 0),
    ),
)
STATEMENTS = {"row": TOKENS, "source": TOKENS, "length": LENGTHS, "start": STARTS}


def chunk_atoms(known: Places, weights: Real) -> list[list[Rated]]:
    """Return the best chunk sizes of every statement about chunks, with their gains.

    Parameters
    ----------
    known : mapping of str to array (N,)
        Places of entries.
    weights : array (W, N)
        Gains of excluding each entry, negative of wrong ones, by several losses.

    Returns
    -------
    list of list of (float, Atom)
        Those of each loss.
    """
    rated: list[list[Rated]] = [[] for _ in weights]
    for axes in AXES:
        if all(name in known for name in axes):
            present = np.all([known[name] != UNKNOWN for name in axes], axis=0)
            columns = [x[present] for x in _columns(axes, known)]
            more = _of_axes(axes, columns, weights[:, present])
            rated = [[*x, *y] for x, y in zip(rated, more, strict=True)]
    return rated


def _of_axes(
    axes: tuple[str, ...], columns: Sequence[Integers], weights: Real
) -> list[list[Rated]]:
    """Return the best chunk sizes of every statement about some axes, by each loss."""
    about = PAIRS if len(axes) == 2 else STATEMENTS.get(axes[0], TAILS)
    columns, weights = _once(columns, weights)
    tokens = bool({"row", "source"} & set(axes))
    last = int(columns[0].max(initial=0))
    sizes = [n for n in range(2, last + 2) if n < SMALL_CHUNK or n % 4 == 0]
    # One edge is a number of tokens: what repeats shows at two.
    sizes = [n for n in sizes if n & (n - 1) == 0 or 2 * n <= last]
    if not tokens:  # of few sizes, any number would fit some
        sizes = [n for n in sizes if n >= 8 and n & (n - 1) == 0]
    totals = weights.sum(axis=1)
    gains = np.empty((len(weights), len(about), len(sizes)))
    for start in range(0, len(sizes), CHUNKS_AT_ONCE):
        block = slice(start, start + CHUNKS_AT_ONCE)
        chunks = _Chunks(*columns, np.array(sizes[block], np.int32)[:, None])
        for k, (_, _, test) in enumerate(about):
            gains[:, k, block] = (totals - test(chunks) @ weights.T).T
    alternate = ["odd" in text or "even" in text for text, _, _ in about]
    few = np.array([4 * n > last + 1 for n in sizes], np.bool_)
    gains[:, np.logical_and.outer(alternate, few)] = -np.inf
    costs = np.array([chunk_bits(n) for n in sizes])
    return [
        [
            (row[k], _atom(statement, axes, sizes[k]))
            for row, statement in zip(rows, about, strict=True)
            for k in np.argsort(costs - 2 * row, kind="stable")[:BEST]
            if row[k] > 0
        ]
        for rows in gains
    ]


def _columns(axes: tuple[str, ...], known: Places) -> Along:
    """Return the places along the first axis, its end, and places along the last."""
    at = known[axes[0]]
    return at, known.get(f"end of {axes[0]}", at), known[axes[-1]]


def _once(columns: Sequence[Integers], weights: Real) -> tuple[Along, Real]:
    """Return the places that differ, in small integers, with their weights added up."""
    mixed = np.zeros(weights.shape[1], np.int64)
    for x in columns:
        mixed = mixed * (int(x.max(initial=0)) + 3) + x + 1
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    at, end, source = (x[first].astype(np.int32) for x in columns)
    totals = [np.bincount(inverse, weight) for weight in weights]
    return (at, end, source), np.array(totals, np.float64)


def _atom(statement: Statement, axes: tuple[str, ...], size: int) -> Atom:
    """Return the atom of a statement about chunks of a size."""
    text, words, test = statement
    noun = axes[0] if len(axes) == 1 else ("pair" if axes[0] == "row" else "value")

    def holds(known: Places) -> Flags:
        return test(_Chunks(*_columns(axes, known), size))

    alone = text.replace("{0}s ", "").replace("{0} ", "").replace(" of {n}", "")
    return Atom(
        text.format(noun, n=size),
        words + chunk_bits(size),
        holds,
        axes,
        size if {"row", "source", "length"} & {*axes} else None,
        data={"of": noun, "statement": alone, "chunk": size},
    )
