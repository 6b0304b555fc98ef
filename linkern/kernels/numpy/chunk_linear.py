"""What is only added to the memory, on NumPy: no decay, or one for each token.

The equation of `core.chunkwise` without an erase, block by block: a block is a few
chunks of a few heads, small enough that all it needs stays in the cache of a core.
Features are made there, keys are transposed once, so that all large products are plain
ones, sums over rows are products with ones, and nothing is allocated on the way.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linkern.kernels.numpy.decay import TokenDecay
from linkern.kernels.numpy.features import InPlace
from linkern.kernels.numpy.workspace import Buffers

__all__ = [
    "Block",
    "Shape",
    "as_matrices",
    "carry",
    "everything",
    "read",
    "total",
    "write",
]

Real = NDArray[Any]


class Shape(NamedTuple):
    """Sizes of a block.

    Parameters
    ----------
    heads, chunks, size : int
        How many of what; tokens in a chunk.
    features, values : int
        ``K`` and ``V``.
    """

    heads: int
    chunks: int
    size: int
    features: int
    values: int

    def cut(self, rows: Real) -> Real:
        """Return ``(heads, tokens, dim)`` by chunks, without a copy."""
        return rows.reshape(*self[:3], rows.shape[-1], copy=False)


class Block:
    """Buffers for a few chunks of a few heads, which are the first two axes of each.

    Parameters
    ----------
    shape : Shape
        Sizes.
    dtype : dtype
        Of the computation.
    feature_map : InPlace or None
        None if features are given.
    normalize : bool
        Whether to divide by the sum of the weights.
    decays : bool
        Whether tokens forget.
    causal : bool
        Whether pairs of tokens are looked at.
    other : Block or None
        A block that is not used at the same time: its memory is, as far as it goes.
    """

    def __init__(
        self,
        shape: Shape,
        dtype: Any,
        feature_map: InPlace | None,
        *,
        normalize: bool,
        decays: bool = False,
        causal: bool = True,
        other: "Block | None" = None,
    ) -> None:
        heads, chunks, size, features, values = shape
        self.buffers: Buffers = Buffers(dtype, None if other is None else other.buffers)
        buffer = partial(self.buffers.empty, heads, chunks)
        self.shape, self.dtype, self.feature_map = shape, np.dtype(dtype), feature_map
        self.normalize = normalize
        # States before and after each chunk are the same rows, one apart: a memory,
        # then its normalizer, so that one sum takes both along.
        memory = features * values
        width = memory + (features if normalize else 0)
        states = self.buffers.empty(heads, chunks + 1, width)
        self.first, self.last = states[:, 0], states[:, chunks]
        self.steps = [(states[:, i], states[:, i + 1]) for i in range(chunks)]
        memories = states[..., :memory].reshape(heads, chunks + 1, features, values)
        self.before, self.after = memories[:, :-1], memories[:, 1:]
        if normalize:
            sums = states[..., memory:].reshape(heads, chunks + 1, features, 1)
            self.sums_before, self.sums_after = sums[:, :-1], sums[:, 1:]
        self.rows, self.spare = buffer(size, features), buffer(size, features)
        self.wide_values, self.found = buffer(size, values), buffer(size, values)
        self.values = self.wide_values  # or where they lie, if they can be used there
        self.weights = buffer(size, 1)
        self.zeros = np.zeros((size, features), dtype)
        self.ones = np.ones((size, 1), dtype)
        self.decay = None
        if not causal:
            return
        # Features of the keys, transposed; and as much of them as is left at the end.
        self.keys = self.left = buffer(features, size)
        if decays:
            self.decay = TokenDecay(heads, chunks, size, dtype)
            self.faded = self.buffers.empty(heads, width)
            self.left = buffer(features, size)
        self.pairs = buffer(size, size)
        self.read, self.read_weights = buffer(size, values), buffer(size, 1)
        # All bits of the pairs that are seen: what is not vanishes even if infinite.
        self.pair_bits = self.pairs.view(f"i{self.dtype.itemsize}")
        self.mask = -np.tri(size, dtype=self.pair_bits.dtype)

    def forget(self) -> None:
        """Let go of what belongs to a caller."""
        self.values = self.wide_values

    def featured(self, rows: Real) -> Real:
        """Return the features of queries or keys, in `rows` or where they are."""
        if self.feature_map is None:
            return as_matrices(rows, self.rows)
        wide = as_matrices(rows, self.spare)
        self.feature_map.write(wide, self.rows, self.spare, self.zeros)
        return self.rows

    def place(self, output: Real) -> Real:
        """Return where to compute the output: there, or in a buffer if it is narrow."""
        return output if output.dtype == self.dtype else self.found


def as_matrices(rows: Real, buffer: Real) -> Real:
    """Return rows as they are, if BLAS takes them, or else a copy in the buffer.

    It takes rows of its dtype, each contiguous, that do not overlap.
    """
    down, right = rows.strides[-2:]
    size = buffer.itemsize
    plain = right == size and down >= rows.shape[-1] * size and down % size == 0
    if rows.dtype == buffer.dtype and plain:
        return rows
    np.copyto(buffer, rows, casting="unsafe")
    return buffer


def write(block: Block, key: Real, value: Real, log_decay: Real | None) -> None:
    """Take in keys and values: what each chunk alone adds to the memory."""
    np.copyto(block.keys, block.featured(block.shape.cut(key)).swapaxes(-1, -2))
    if block.decay is not None and log_decay is not None:
        block.decay.load(block.shape.cut(log_decay)[..., 0])
        np.multiply(block.keys, block.decay.leaving, out=block.left)
    block.values = as_matrices(block.shape.cut(value), block.wide_values)
    np.matmul(block.left, block.values, out=block.after)
    if block.normalize:
        np.matmul(block.left, block.ones, out=block.sums_after)


def carry(block: Block) -> None:
    """Sum the states up from `block.first` to `block.last`."""
    if block.decay is None:
        for before, after in block.steps:
            np.add(before, after, out=after)
        return
    whole = block.decay.entering[:, :, -1]
    for i, (before, after) in enumerate(block.steps):
        np.multiply(before, whole[:, i], out=block.faded)
        np.add(after, block.faded, out=after)


def read(block: Block, query: Real, output: Real, scale: float | None) -> None:
    """Write what each query finds: in its chunk, and in the memory before it."""
    output = block.shape.cut(output)
    found = block.place(output)
    rows = block.featured(block.shape.cut(query))
    np.matmul(rows, block.keys, out=block.pairs)
    if block.decay is not None:
        np.multiply(block.pairs, block.decay.between, out=block.pairs)
        rows = np.multiply(rows, block.decay.entering, out=block.spare)
    np.bitwise_and(block.pair_bits, block.mask, out=block.pair_bits)
    np.matmul(block.pairs, block.values, out=found)
    np.matmul(rows, block.before, out=block.read)
    np.add(found, block.read, out=found)
    if block.normalize:
        np.matmul(block.pairs, block.ones, out=block.weights)
        np.matmul(rows, block.sums_before, out=block.read_weights)
        np.add(block.weights, block.read_weights, out=block.weights)
    _finish(block, found, output, scale)


def total(block: Block, key: Real, value: Real) -> None:
    """Take in keys and values of which every query sees all: what they add."""
    rows = block.featured(block.shape.cut(key)).swapaxes(-1, -2)
    values = as_matrices(block.shape.cut(value), block.wide_values)
    np.matmul(rows, values, out=block.after)
    if block.normalize:
        np.matmul(rows, block.ones, out=block.sums_after)


def everything(block: Block, query: Real, output: Real, scale: float | None) -> None:
    """Write what each query finds in `block.first`."""
    output = block.shape.cut(output)
    found = block.place(output)
    rows = block.featured(block.shape.cut(query))
    np.matmul(rows, block.before, out=found)
    if block.normalize:
        np.matmul(rows, block.sums_before, out=block.weights)
    _finish(block, found, output, scale)


def _finish(block: Block, found: Real, output: Real, scale: float | None) -> None:
    if block.normalize:
        np.divide(found, block.weights, out=found)
    elif scale is not None:
        np.multiply(found, scale, out=found)
    if found is not output:
        np.copyto(output, found, casting="unsafe")
