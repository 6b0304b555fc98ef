r"""Any terms on NumPy: channels that forget, tokens that erase; the twin of `_chunk`.

A block is a few chunks of a few heads. `write` does what `core.chunkwise` does before
its walk, `carry` is the walk from chunk to chunk, `read` is what comes after it:

    (I + N) U = V - A' S,      O = Q' S + (q_i^T Gamma_ij k_j)_ij U,      S' + K'^T U

with the legend given there, and erases negated, so that all is added. Nothing is
allocated: inputs are copied into buffers that end in zeros where halves need a power of
two of rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linkern.core.recurrence import Terms
from linkern.core.triangular import power_of_two
from linkern.kernels.numpy.chunk_linear import Shape
from linkern.kernels.numpy.intra_chunk import (
    ByChannel,
    Flat,
    Readers,
    side_by_side,
)
from linkern.kernels.numpy.triangular import Inverse

__all__ = ["Block", "Kind", "carry", "kind_of", "read", "write"]

Real = NDArray[Any]
Tokens = Mapping[str, Real]


class Kind(NamedTuple):
    """What terms have, but for their numbers.

    Parameters
    ----------
    decays, by_channel, erases : bool
        Whether tokens forget, whether each channel does on its own, whether they erase.
    early_erase, early_read, transpose_state : bool
        As in `Terms`.
    """

    decays: bool
    by_channel: bool
    erases: bool
    early_erase: bool
    early_read: bool
    transpose_state: bool


def kind_of(of: Terms) -> Kind:
    """Return the kind of some terms."""
    return Kind(
        of.log_decay is not None,
        of.log_decay is not None and of.log_decay.shape[-1] > 1,
        of.erase is not None,
        of.early_erase,
        of.early_read,
        of.transpose_state,
    )


class _Step(NamedTuple):
    """What the walk needs of one chunk; None for what its terms do not have."""

    before: Real
    after: Real
    values: Real
    written: Real
    remaining: Real
    whole: Real | None
    erasing: Real | None
    solving: Real | None


class Block:
    """Buffers for a few chunks of a few heads, which are the first two axes of each.

    Parameters
    ----------
    shape : Shape
        Sizes.
    dtype : dtype
        Of the computation.
    kind : Kind
        Of the terms.
    """

    def __init__(self, shape: Shape, dtype: Any, kind: Kind) -> None:
        heads, chunks, size, features, values = shape
        self.shape, self.dtype, self.kind = shape, np.dtype(dtype), kind
        # States before and after each chunk are the same rows, one apart.
        states = np.empty((heads, chunks + 1, features * values), dtype)
        self.first, self.last = states[:, 0], states[:, chunks]
        memories = states.reshape(heads, chunks + 1, features, values)
        self.before, self.after = memories[:, :-1], memories[:, 1:]
        rows = power_of_two(size) if kind.by_channel else size
        self.keys, self.values = self._rows(rows, features), self._zeros(size, values)
        self.decay: ByChannel | Flat
        if kind.by_channel:
            self.decay = ByChannel(self.keys, size, mixes=kind.transpose_state)
        else:
            self.decay = Flat(self.keys, decays=kind.decays)
        self.written = self.values
        self.inverse: Inverse | None = None
        self._prepare_readers(rows)
        self.found = self._zeros(size, features if kind.transpose_state else values)
        self.spare = self._zeros(size, values)
        self.gap = np.empty((heads, size, values), dtype)
        self.held = np.empty((heads, features, values), dtype)
        self.steps = [self._step(i) for i in range(chunks)]

    def _zeros(self, *axes: int) -> Real:
        return np.zeros((self.shape.heads, self.shape.chunks, *axes), self.dtype)

    def _rows(self, *axes: int) -> Real:
        """Return zeros for rows of keys, as their decay needs them."""
        if not self.kind.by_channel:
            return self._zeros(*axes)
        heads, chunks = self.shape.heads, self.shape.chunks
        return side_by_side(heads, chunks, *axes, dtype=self.dtype)

    def _prepare_readers(self, rows: int) -> None:
        """Erases and queries read keys together; with `transpose_state`, values."""
        kind, size = self.kind, self.shape.size
        sorts = [(kind.early_erase, True)] if kind.erases else []
        query = (kind.early_read, kind.early_read)
        if kind.transpose_state:
            self.readers = self._readers(rows, sorts) if sorts else None
            self.mixer = self._readers(rows, [query])
            self.query = self._zeros(size, self.shape.values)
        else:
            self.readers = self.mixer = self._readers(rows, [*sorts, query])
            self.query = self.mixer.rows[:, :, -1]
        self.reading = self.mixer.rows[:, :, -1, :size]
        self.pairs = self.mixer.pairs[:, :, -1, :size, :size]
        if self.readers is not None and kind.erases:
            self.erase = self.readers.rows[:, :, 0]
            self.solving = self.readers.pairs[:, :, 0]
            self.inverse = Inverse(self.solving)
            self.written = self._zeros(size, self.shape.values)

    def _readers(self, rows: int, sorts: Sequence[tuple[bool, bool]]) -> Readers:
        square = power_of_two(rows) if self.kind.erases else rows
        # Of each token, all sorts of rows follow each other.
        pairs = self._zeros(square, len(sorts), square).swapaxes(2, 3)
        if not self.kind.by_channel:
            pairs = self._zeros(len(sorts), square, square)
        return Readers(
            self._rows(len(sorts), rows, self.shape.features),
            pairs,
            early=[early for early, _ in sorts],
            strict=[strict for _, strict in sorts],
            by_halves=self.kind.by_channel,
        )

    def _step(self, i: int) -> _Step:
        size, whole, erases = self.shape.size, self.decay.whole, self.kind.erases
        return _Step(
            self.before[:, i],
            self.after[:, i],
            self.values[:, i],
            self.written[:, i],
            self.decay.remaining[:, i],
            None if whole is None else whole[:, i],
            self.erase[:, i, :size] if erases else None,
            self.solving[:, i, :size, :size] if erases else None,
        )

    def forget(self) -> None:
        """Let go of what belongs to a caller: nothing, all of it was copied."""

    def take(self, rows: Real, buffer: Real) -> None:
        """Copy rows to where they are computed with."""
        wide = buffer[..., : self.shape.size, :]
        np.copyto(wide, self.shape.cut(rows), casting="unsafe")


def write(block: Block, of: Tokens) -> None:
    """Take in a block: pairs of its tokens, and what does not need a memory."""
    block.take(of["key"], block.keys)
    block.take(of["value"], block.values)
    block.take(of["query"], block.query)
    if block.inverse is not None:
        block.take(of["erase"], block.erase)
        np.negative(block.erase, out=block.erase)
    block.decay.load(block.shape.cut(of["log_decay"]) if block.kind.decays else None)
    block.decay.scores(block.readers)
    if block.inverse is not None:
        block.inverse.solve()
    else:
        np.matmul(block.decay.remaining, block.values, out=block.after)


def carry(block: Block) -> None:
    """Walk from `block.first` to `block.last`: what is written, and each memory."""
    for step in block.steps:
        before, after, values, written, remaining, whole, erasing, solving = step
        if erasing is not None and solving is not None:
            np.matmul(erasing, before, out=block.gap)
            np.add(values, block.gap, out=block.gap)
            np.matmul(solving, block.gap, out=written)
            np.matmul(remaining, written, out=after)
        held = before
        if whole is not None:
            held = np.multiply(before, whole, out=block.held)
        np.add(held, after, out=after)


def read(block: Block, of: Tokens) -> None:
    """Write what each token finds in its chunk, and in the memory before it."""
    output = block.shape.cut(of["output"])
    found = output if output.dtype == block.dtype else block.found
    if block.kind.transpose_state:
        np.matmul(block.query, block.written.swapaxes(-1, -2), out=block.pairs)
        np.matmul(block.query, block.before.swapaxes(-1, -2), out=block.reading)
        block.decay.mixed(block.mixer, found)
    else:
        np.matmul(block.pairs, block.written, out=found)
        np.matmul(block.reading, block.before, out=block.spare)
        np.add(found, block.spare, out=found)
    if found is not output:
        np.copyto(output, found, casting="unsafe")
