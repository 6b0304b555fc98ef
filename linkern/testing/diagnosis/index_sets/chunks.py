"""Atoms about chunks: "pairs across edges of chunks of 16", "rows in the tail"."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.index_sets.atoms import BEST, Atom, Places, Rated
from linkern.testing.diagnosis.index_sets.coordinates import UNKNOWN
from linkern.testing.influence.maps import Flags, Real

__all__ = ["chunk_atoms"]

# Small integers are fast.
Integers = NDArray[Any]
Columns = tuple[Integers, Integers, Integers]
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


# Words of statements, with the chunk size in place of {n}; their bits; tests.
Statement = tuple[str, float, Callable[[_Chunks], Flags]]
PAIRS: tuple[Statement, ...] = (
    ("{0}s across edges of chunks of {n}", 1, lambda c: c.apart != 0),
    ("{0}s inside chunks of {n}", 1, lambda c: c.apart == 0),
    ("{0}s of neighbouring chunks of {n}", 2, lambda c: c.apart == 1),
    ("{0}s two or more chunks of {n} apart", 3, lambda c: c.apart >= 2),
    ("{0}s three or more chunks of {n} apart", 4, lambda c: c.apart >= 3),
    ("{0}s across the last token of chunks of {n}", 3, lambda c: c.across_last),
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
    ("sequences that begin with a chunk of {n}", 3, lambda c: c.place == 0),
)
STATEMENTS = {"row": TOKENS, "source": TOKENS, "length": LENGTHS, "start": STARTS}


def chunk_atoms(known: Places, weight: Real) -> Iterator[Rated]:
    """Yield the best chunk sizes of every statement about chunks, with their gains.

    Parameters
    ----------
    known : mapping of str to array (N,)
        Places of entries.
    weight : array (N,)
        The gain of excluding each entry: negative of wrong ones.
    """
    for axes in AXES:
        present = np.all(
            [known.get(x, weight * 0 + UNKNOWN) != UNKNOWN for x in axes], 0
        )
        if present.any():
            inside = {name: x[present] for name, x in known.items()}
            yield from _of_axes(axes, inside, weight[present])


def _of_axes(axes: tuple[str, ...], known: Places, weight: Real) -> Iterator[Rated]:
    """Yield the best chunk sizes of every statement about some axes."""
    about = PAIRS if len(axes) == 2 else STATEMENTS.get(axes[0], TAILS)
    noun = axes[0] if len(axes) == 1 else ("pair" if axes[0] == "row" else "value")
    columns, weight = _once(_columns(axes, known), weight)
    tokens = bool({"row", "source"} & set(axes))
    last = int(columns[0].max(initial=0))
    sizes = [n for n in range(2, last + 2) if n < SMALL_CHUNK or n % 4 == 0]
    # One edge is a number of tokens: what repeats shows at two.
    sizes = [n for n in sizes if n & (n - 1) == 0 or 2 * n <= last]
    if not sizes:
        return
    if not tokens:  # of few sizes, any number would fit some
        sizes = [n for n in sizes if n >= 8 and n & (n - 1) == 0]
    gains = np.empty((len(about), len(sizes)))
    for start in range(0, len(sizes), CHUNKS_AT_ONCE):
        block = slice(start, start + CHUNKS_AT_ONCE)
        chunks = _Chunks(*columns, np.array(sizes[block], np.int32)[:, None])
        for k, (_, _, test) in enumerate(about):
            gains[k, block] = weight.sum() - test(chunks) @ weight
    alternate = ["odd" in text or "even" in text for text, _, _ in about]
    gains[np.ix_(alternate, [4 * n > last + 1 for n in sizes])] = -np.inf
    costs = np.array([chunk_bits(n) for n in sizes])
    for row, (text, words, test) in zip(gains, about, strict=True):
        for k in np.argsort(costs - 2 * row, kind="stable")[:BEST]:
            said = text.format(noun, n=sizes[k])
            cost = words + float(costs[k])
            atom = _atom(said, cost, test, axes, sizes[k])
            words_alone = text.replace("{0}s ", "").replace("{0} ", "")
            statement = words_alone.replace(" of {n}", "")
            data = {"of": noun, "statement": statement, "chunk": sizes[k]}
            yield row[k], replace(atom, data=data)


def _columns(axes: tuple[str, ...], known: Places) -> Columns:
    """Return the places along the first axis, its end, and places along the last."""
    at = known[axes[0]]
    return at, known.get(f"end of {axes[0]}", at), known[axes[-1]]


def _once(columns: Columns, weight: Real) -> tuple[Columns, Real]:
    """Return the places that differ, in small integers, with their weights added up."""
    mixed = np.zeros(len(weight), np.int64)
    for x in columns:
        mixed = mixed * (int(x.max(initial=0)) + 3) + x + 1
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    at, end, source = (x[first].astype(np.int32) for x in columns)
    return (at, end, source), np.bincount(inverse, weight).astype(np.float64)


def _atom(
    text: str,
    cost: float,
    test: Callable[[_Chunks], Flags],
    axes: tuple[str, ...],
    size: int,
) -> Atom:
    """Return the atom of a statement about chunks of a size."""

    def holds(known: Places) -> Flags:
        return test(_Chunks(*_columns(axes, known), size))

    named = size if {"row", "source", "length"} & set(axes) else None
    return Atom(text, cost, holds, axes, named)
