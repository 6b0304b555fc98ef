"""Some cells of the batch, (sequence, head): their memories, their window, one step.

Cells do not know each other, so any division of them gives the same numbers. All places
to write to are made beforehand, views included: slicing costs as much as a small
product.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cells", "width"]

Real = NDArray[Any]

# What is added to the memory at once, and the memory, stay in the caches of a core.
_BLOCK_BYTES = 1 << 18


def width(values: int, *, normalize: bool) -> int:
    """Return how many columns a memory has: the values, then the normalizer.

    Rows of a multiple of four numbers are read a tenth faster. The spare columns are
    the normalizer again: they overflow where it does, and never alone.
    """
    return values + 4 - values % 4 if normalize else values


class _Slot(NamedTuple):
    """Views of the buffers that one token of the window writes and its query reads."""

    key: Real  # (*batch, F): features of this token's key
    value: Real  # (*batch, V)
    keys: Real  # (N, F, j): features of the window up to this token
    scores: Real  # (N, 1, j): the query's scores with them
    weights: Real  # (N, 1, F + j): features of the query, then these scores
    rows: Real  # (N, F + j, C): the memory, then the values of the window


class _Block(NamedTuple):
    """Cells whose window is added to their memory at once."""

    keys: Real  # (n, F, W)
    values: Real  # (n, W, C)
    memory: Real  # (n, F, C)
    sums: Real  # (n, F, C): the memory that will be


class Cells:
    """Cells that are stepped together.

    Parameters
    ----------
    memory : array (*batch, F + W, C)
        The memory, then the values of the window; `width` says what ``C`` is. It and
        `keys` are written to. Axes before one that is cut have size 1.
    keys : array (*batch, W, F)
        Features of the window.
    values : int
        ``V``.
    normalize : bool
        Whether the columns behind the values are the normalizer.
    scale : array () or None
        Factor on the outputs.
    mapped : bool
        Whether queries and keys are features already. They are mapped by
        `linkern.elu_plus_one` otherwise.
    """

    added: int  # how many windows have been added to the memory
    nbytes: int  # of the buffers

    def __init__(
        self,
        memory: Real,
        keys: Real,
        values: int,
        *,
        normalize: bool,
        scale: Real | None,
        mapped: bool,
    ) -> None:
        *batch, window, features = keys.shape
        cells, columns, wide = math.prod(batch), memory.shape[-1], memory.dtype
        rows = memory.reshape(cells, features + window, columns, copy=False)
        flat = keys.reshape(cells, window, features, copy=False).swapaxes(1, 2)
        self._mapped, self._scale, self.added, self._progress = mapped, scale, 0, 0
        self._tokens, self._exps = np.empty((2, 2, *batch, features), wide)
        self._query, self._key = self._tokens[0], self._tokens[1]
        # Arrays, for NumPy takes them faster than numbers; and of minima with one
        # number, it makes one at a time.
        self._zeros, self._one = np.zeros_like(self._tokens), np.ones((), wide)
        weights = np.empty((cells, 1, features + window), wide)
        self._query_row = weights[:, :, :features]
        self._query_features = self._query_row.reshape(*batch, features, copy=False)
        self._read = np.empty((cells, 1, columns), wide)
        read = self._read.reshape(*batch, columns, copy=False)
        self._numerator = read[..., :values]
        self._denominator = read[..., values : values + 1] if normalize else None
        self._slots = tuple(
            _Slot(
                keys[..., i, :],
                memory[..., features + i, :values],
                flat[:, :, : i + 1],
                weights[:, :, features : features + i + 1],
                weights[:, :, : features + i + 1],
                rows[:, : features + i + 1],
            )
            for i in range(window)
        )
        size = max(1, _BLOCK_BYTES // max(1, features * columns * wide.itemsize))
        sums = np.empty((min(size, cells), features, columns), wide)
        self._blocks = tuple(
            _Block(
                flat[i : i + size],
                rows[i : i + size, features:],
                rows[i : i + size, :features],
                sums[: cells - i],
            )
            for i in range(0, cells, size)
        )
        held = (self._tokens, self._exps, self._zeros, weights, self._read, sums)
        self.nbytes = sum(x.nbytes for x in held)

    def step(
        self, before: int, i: int, query: Real, key: Real, value: Real, out: Real
    ) -> None:
        """Take in token `i` of a window and write what its query reads.

        `before` counts the full windows before it. Done twice, it is done once.
        """
        if self.added != before:
            self.add_window()
        key_row, value_row, keys, scores, weights, rows = self._slots[i]
        if self._mapped:
            self._query_features[...] = query
            key_row[...] = key
        else:
            self._elu_plus_one(query, key, key_row)
        value_row[...] = value
        np.matmul(self._query_row, keys, out=scores)
        np.matmul(weights, rows, out=self._read)
        if self._denominator is not None:
            np.divide(self._numerator, self._denominator, out=out)
        elif self._scale is not None:
            np.multiply(self._numerator, self._scale, out=out)
        else:
            out[...] = self._numerator

    def _elu_plus_one(self, query: Real, key: Real, key_row: Real) -> None:
        """Write ``max(x + 1, exp(min(x, 0)))`` of both: `linkern.elu_plus_one`."""
        tokens, exps = self._tokens, self._exps
        self._query[...] = query
        self._key[...] = key
        np.minimum(tokens, self._zeros, out=exps)
        np.exp(exps, out=exps)
        np.add(tokens, self._one, out=tokens)
        # Contiguous, then copied: faster than two maxima into strided places.
        np.maximum(tokens, exps, out=tokens)
        self._query_features[...] = self._query
        key_row[...] = self._key

    def add_window(self) -> None:
        """Add the full window to the memory.

        An interrupt may come behind any call. The sums are therefore made beside the
        memory and then copied: both can be done again, and `_progress` says which is
        next.
        """
        # Not to stop half-way where overflow is an error: it shows in the outputs.
        with np.errstate(all="ignore"):
            while self._progress < 2 * len(self._blocks):
                keys, values, memory, sums = self._blocks[self._progress // 2]
                if self._progress % 2 == 0:
                    np.matmul(keys, values, out=sums)
                    np.add(memory, sums, out=sums)
                    self._progress += 1
                memory[...] = sums
                self._progress += 1
        self.added, self._progress = self.added + 1, 0
