"""Atoms about chunks: "pairs across edges of chunks of 16", "rows in the tail"."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from linkern.testing.diagnosis.index_sets.atoms import (
    BEST,
    UNKNOWN,
    Atom,
    Places,
    Rated,
    plural,
)
from linkern.testing.influence.maps import Flags, Index, Real

__all__ = ["chunk_atoms"]

# Chunk sizes above it are multiples of 4.
SMALL_CHUNK = 256
CHUNKS_AT_ONCE = 64
# Coordinates that chunks are made of; two of them for pairs.
AXES = (
    {"row", "source"},
    {"row"},
    {"source"},
    {"key channel"},
    {"value channel"},
    {"length"},
)


def chunk_bits(size: int) -> float:
    """Return the bits of a chunk size: few of powers of two from 16 to 128."""
    exponent = (size & -size).bit_length() - 1
    odd = size >> exponent
    return min(2 * math.log2(odd) + abs(exponent - 5.5), math.log2(size) + 4)


@dataclass(frozen=True, eq=False)
class _Chunks:
    """Places in chunks of a size: of rows, of sources, of channels."""

    known: Places
    size: Index | int

    def number(self, axis: str) -> Index:
        """Return the number of the chunk of a token; -1 of the initial state."""
        return np.asarray(self.known[axis] // self.size)

    def place(self, axis: str) -> Index:
        """Return the place of a token in its chunk; -1 of the initial state."""
        x = self.known[axis]
        return np.where(x < 0, -1, x % self.size)

    def tail(self, axis: str) -> Flags:
        """Return the tokens after the last whole chunk."""
        whole = self.known[f"end of {axis}"] // self.size * self.size
        return np.asarray(self.known[axis] >= whole)

    @cached_property
    def apart(self) -> Index:
        """The chunks from that of the source to that of the row."""
        return self.number("row") - self.number("source")

    @property
    def across_last(self) -> Flags:
        """Pairs with the last token of a chunk after the source, up to the row."""
        row, source = self.known["row"] + 1, self.known["source"] + 1
        return np.asarray(row // self.size != source // self.size)


ChunkTest = Callable[[_Chunks], Flags]
PAIRS: tuple[tuple[str, float, ChunkTest], ...] = (
    ("pairs across edges of chunks of {}", 1, lambda c: c.apart != 0),
    ("pairs inside chunks of {}", 1, lambda c: c.apart == 0),
    ("pairs of neighbouring chunks of {}", 2, lambda c: c.apart == 1),
    ("pairs two or more chunks of {} apart", 3, lambda c: c.apart >= 2),
    ("pairs across the last token of chunks of {}", 3, lambda c: c.across_last),
)


def _statements(axis: str) -> tuple[tuple[str, float, ChunkTest], ...]:
    """Return statements about places in chunks of an axis, or about lengths."""
    many = plural(axis)
    if axis == "length":
        return (
            (f"{many} that are multiples of {{}}", 3, lambda c: c.place(axis) == 0),
            (f"{many} that are no multiple of {{}}", 3, lambda c: c.place(axis) > 0),
        )

    def last(c: _Chunks) -> Flags:
        return np.asarray(c.place(axis) == c.size - 1)

    tails: tuple[tuple[str, float, ChunkTest], ...] = (
        (f"{many} in the tail of chunks of {{}}", 3, lambda c: c.tail(axis)),
        (f"{many} in whole chunks of {{}}", 3, lambda c: ~c.tail(axis)),
    )
    if axis not in ("row", "source"):
        return tails
    return (
        *tails,
        (f"the first {axis} of every chunk of {{}}", 2, lambda c: c.place(axis) == 0),
        (f"the last {axis} of every chunk of {{}}", 2, last),
        (f"{many} in odd chunks of {{}}", 5, lambda c: c.number(axis) % 2 == 1),
        (f"{many} in even chunks of {{}}", 5, lambda c: c.number(axis) % 2 == 0),
        (
            f"{many} after the first of every chunk of {{}}",
            3,
            lambda c: c.place(axis) > 0,
        ),
        (f"{many} before the last of every chunk of {{}}", 3, lambda c: ~last(c)),
    )


def chunk_atoms(known: Places, weight: Real) -> Iterator[Rated]:
    """Yield the best chunk sizes of every statement about chunks, with their gains.

    Parameters
    ----------
    known : mapping of str to array (N,)
        Places of entries.
    weight : array (N,)
        The gain of excluding each entry: negative of wrong ones.
    """
    present = {axis for axis, x in known.items() if (x != UNKNOWN).any()}
    for axes in AXES:
        if axes <= present:
            yield from _of_axes(sorted(axes), known, weight)


def _of_axes(axes: list[str], known: Places, weight: Real) -> Iterator[Rated]:
    """Yield the best chunk sizes of every statement about some axes."""
    about = PAIRS if len(axes) == 2 else _statements(axes[0])
    names = [x for axis in axes for x in (axis, f"end of {axis}") if x in known]
    present = np.all([known[axis] != UNKNOWN for axis in axes], axis=0)
    once, weight = _once([known[name][present] for name in names], weight[present])
    inside = dict(zip(names, once, strict=True))
    longest = int(max(inside[axis].max(initial=0) for axis in axes)) + 1
    every: Sequence[int] = range(2, longest + 1)
    if not {"row", "source"} & set(axes):  # of few sizes, any number would fit some
        every = [n for n in every if n >= 8 and n & (n - 1) == 0]
    sizes = np.array([n for n in every if n < SMALL_CHUNK or n % 4 == 0], np.int64)
    gains = np.empty((len(about), len(sizes)))
    for start in range(0, len(sizes), CHUNKS_AT_ONCE):
        block = slice(start, start + CHUNKS_AT_ONCE)
        chunks = _Chunks(inside, sizes[block, None].astype(np.int32))
        for k, (_, _, test) in enumerate(about):
            gains[k, block] = weight.sum() - test(chunks) @ weight
    costs = np.array([chunk_bits(int(n)) for n in sizes])
    for row, (text, words, test) in zip(gains, about, strict=True):
        for k in np.argsort(costs - 2 * row, kind="stable")[:BEST]:
            size, cost = int(sizes[k]), words + float(costs[k])
            yield row[k], _atom(text.format(size), cost, test, tuple(axes), size)


def _once(columns: list[Index], weight: Real) -> tuple[list[Index], Real]:
    """Return the places that differ, in small integers, with their weights added up."""
    mixed = np.zeros(len(weight), np.int64)
    for x in columns:
        mixed = mixed * (int(x.max(initial=0)) + 3) + x + 1
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    columns = [x[first].astype(np.int32) for x in columns]
    return columns, np.bincount(inverse, weight).astype(np.float64)


def _atom(
    text: str, cost: float, test: ChunkTest, axes: tuple[str, ...], size: int
) -> Atom:
    """Return the atom of a statement about chunks of a size."""
    named = size if axes[0] in ("row", "source") else None
    return Atom(text, cost, lambda p: test(_Chunks(p, size)), axes, named)
