r"""What decays do to the pairs of tokens of a chunk, in place: the twin of `_decay`.

`Flat` has no decay or one for each token, `ByChannel` one for each key channel; both
say the same things of the rows that they are given. As there, no difference is formed
and nothing positive goes into an exponential. By channel, an exponential for every
level would take most of the time. Here only sums of whole blocks are exponentiated, two
numbers for each entry in all, and rows carry their factors along: from one size of
blocks to the next, later rows lose what is lost in the earlier block, and earlier keys
what is lost in the later one.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linkern.kernels.numpy.decay import TokenDecay
from linkern.kernels.numpy.triangular import below, diagonal, halves, sizes

__all__ = ["ByChannel", "Flat", "Readers", "side_by_side"]

Real = NDArray[Any]

# Rows of a block up to which its products are computed one by one: a product of
# matrices of that size takes longer.
_FEW = 2


def side_by_side(heads: int, chunks: int, *axes: int, dtype: Any) -> Real:
    """Return zeros ``(heads, chunks, ..., R, K)`` for rows that forget by channel.

    In memory, the rows of a token lie side by side, of all heads and sorts: what all of
    them lose is one long row.
    """
    *sorts, rows, dim = axes
    found = np.zeros((chunks, rows, *sorts, heads, dim), dtype)
    return found.transpose((3, 0, 2, 1, 4) if sorts else (2, 0, 1, 3))


class Readers:
    """Rows that read what tokens have written: those of erases, of queries, or both.

    Parameters
    ----------
    rows : array (heads, chunks, S, R, K)
        One of each sort for each token, and zeros.
    pairs : array (heads, chunks, S, R', R')
        Where their pairs with earlier tokens go: lower triangular, zeros until then.
    early : sequence of bool
        Of each sort, whether it reads before the decay of its own token.
    strict : sequence of bool
        Of each sort, whether a token does not meet itself.
    by_halves : bool
        Whether pairs are needed level by level, as `ByChannel` does.
    """

    def __init__(
        self,
        rows: Real,
        pairs: Real,
        *,
        early: Sequence[bool],
        strict: Sequence[bool],
        by_halves: bool,
    ) -> None:
        self.rows, self.pairs, self.early, self.strict = rows, pairs, early, strict
        self.own = diagonal(pairs)
        if not by_halves:
            return
        # Views of each level, the smallest blocks first: later rows; the same, all
        # sorts of a token one after the other; and where their pairs go.
        heads, chunks, sorts, length, dim = rows.shape
        tall = rows.swapaxes(2, 3).reshape(
            heads, chunks, length * sorts, dim, copy=False
        )
        wide = pairs.swapaxes(2, 3).reshape(
            heads, chunks, length * sorts, length, copy=False
        )
        self.later = [halves(rows, m)[1] for m in sizes(length)]
        self.tall = [halves(tall, m * sorts)[1] for m in sizes(length)]
        self.below = [below(wide, m, sorts) for m in sizes(length)]


class Flat:
    """No decay, or one for each token.

    Parameters
    ----------
    keys : array (heads, chunks, C, K)
        Buffer of the keys.
    decays : bool
        Whether tokens forget.
    """

    def __init__(self, keys: Real, *, decays: bool) -> None:
        heads, chunks, size, features = keys.shape
        self._keys, self._size = keys, size
        # Transposed once, so that all products of it are plain ones.
        self._across = np.empty((heads, chunks, features, size), keys.dtype)
        self._decay = TokenDecay(heads, chunks, size, keys.dtype) if decays else None
        self._bits = np.dtype(f"i{keys.dtype.itemsize}")
        self._masks = {
            strict: -np.tri(size, k=-int(strict), dtype=self._bits)
            for strict in (False, True)
        }
        #: Keys as much as is left of them at the end, ``(..., K, C)``.
        self.remaining = np.empty_like(self._across) if decays else self._across
        #: What is left of the memory at the end; None for all of it.
        self.whole = None if self._decay is None else self._decay.entering[..., -1:, :]

    def load(self, log_decay: Real | None) -> None:
        """Take in decays, when the keys are there."""
        np.copyto(self._across, self._keys.swapaxes(-1, -2))
        if self._decay is not None and log_decay is not None:
            self._decay.load(log_decay[..., 0])
            np.multiply(self._across, self._decay.leaving, out=self.remaining)

    def scores(self, readers: Readers | None) -> None:
        """Write all ``rows_i^T Diag(Gamma_ij) keys_j``; rows then enter the chunk."""
        if readers is None:
            return
        np.matmul(readers.rows, self._across[:, :, None], out=self._pairs(readers))
        self._see(readers)
        self._enter(readers)

    def mixed(self, reader: Readers, found: Real) -> None:
        """Write ``Gamma_i0 * rows_i + sum_j pairs_ij Gamma_ij * keys_j``."""
        self._see(reader)
        self._enter(reader)
        np.matmul(self._pairs(reader)[:, :, 0], self._keys, out=found)
        np.add(found, reader.rows[:, :, 0], out=found)

    def _pairs(self, readers: Readers) -> Real:
        return readers.pairs[..., : self._size, : self._size]

    def _see(self, readers: Readers) -> None:
        """Take from pairs what is lost between tokens, and those that are not seen."""
        pairs = self._pairs(readers)
        if self._decay is not None:
            _weigh(pairs, self._decay.between, readers.early)
        # All bits of the pairs that are seen: what is not vanishes even if infinite.
        bits = pairs.view(self._bits)
        for sort, strict in enumerate(readers.strict):
            seen = bits[:, :, sort]
            np.bitwise_and(seen, self._masks[strict], out=seen)

    def _enter(self, readers: Readers) -> None:
        if self._decay is not None:
            _weigh(readers.rows, self._decay.entering, readers.early)


def _weigh(rows: Real, factors: Real, early: Sequence[bool]) -> None:
    """Multiply rows of each sort by what is left when they read."""
    for sort, before in enumerate(early):
        found, left = rows[:, :, sort], factors
        if before:
            # Before its own decay, a row has lost what the one before had after it.
            found, left = found[..., 1:, :], left[..., :-1, :]
        np.multiply(found, left, out=found)


class _Level(NamedTuple):
    """Views of one size of blocks."""

    first: Real  # what is left after all of the earlier block
    second: Real  # and of the later block
    earlier: Real  # earlier keys, as much as is left of them where their block ends
    kept: Real  # where they are kept, if they will be mixed
    reached: Real  # what later rows get of them


class ByChannel:
    """One decay for each token and key channel.

    Parameters
    ----------
    keys : array (heads, chunks, R, K)
        Buffer of the keys, ending in zeros, ``R`` a power of two.
    size : int
        Tokens in a chunk.
    mixes : bool
        Whether keys will be mixed.
    """

    def __init__(self, keys: Real, size: int, *, mixes: bool) -> None:
        heads, chunks, rows, features = keys.shape

        def rows_of(length: int) -> Real:
            return side_by_side(heads, chunks, length, features, dtype=keys.dtype)

        self._keys, self._size = keys, size
        # Sums of the blocks of 1, 2, 4, ... tokens, one after the other.
        self._tree = rows_of(2 * rows - 1)
        self._left, start = [], 0
        for block in (*sizes(rows), rows):
            self._left.append(self._tree[..., start : start + rows // block, :])
            start += rows // block
        self._levels = []
        for block, left in zip(sizes(rows), self._left, strict=False):
            earlier, _ = halves(keys, block)
            kept, reached = halves(rows_of(rows if mixes else 0), block)
            self._levels.append(_Level(*halves(left, 1), earlier, kept, reached))
        self._mixes, self._written = mixes, rows_of(rows if mixes else 0)
        #: Keys as much as is left of them at the end, ``(..., K, C)``.
        self.remaining = keys[..., :size, :].swapaxes(-1, -2)
        #: What is left of each row of the memory at the end.
        self.whole = self._left[-1].swapaxes(-1, -2)

    def load(self, log_decay: Real | None) -> None:
        """Take in decays."""
        assert log_decay is not None
        sums = self._left
        np.copyto(sums[0][..., : self._size, :], log_decay, casting="unsafe")
        sums[0][..., self._size :, :] = 0  # what is missing decays nothing
        for finer, coarser in pairwise(sums):
            np.add(finer[..., 0::2, :], finer[..., 1::2, :], out=coarser)
        np.exp(self._tree, out=self._tree)

    def scores(self, readers: Readers | None) -> None:
        """Write all ``rows_i^T Diag(Gamma_ij) keys_j``; rows then enter the chunk.

        And keys become what is left of them at its end.
        """
        if readers is not None:
            self._begin(readers)
        if self._mixes:
            np.copyto(self._written, self._keys)
        for i, level in enumerate(self._levels):
            if readers is not None:
                _products(readers.tall[i], level.earlier, readers.below[i])
                later = readers.later[i]
                np.multiply(later, level.first[:, :, None], out=later)
            if self._mixes:
                np.copyto(level.kept, level.earlier)
            np.multiply(level.earlier, level.second, out=level.earlier)

    def _begin(self, readers: Readers) -> None:
        """Let each token meet itself, then lose what its own decay takes."""
        for sort in range(len(readers.early)):
            rows = readers.rows[:, :, sort]
            if not readers.strict[sort]:
                np.vecdot(rows, self._keys, out=readers.own[:, :, sort])
            if not readers.early[sort]:
                np.multiply(rows, self._left[0], out=rows)

    def mixed(self, reader: Readers, found: Real) -> None:
        """Write ``Gamma_i0 * rows_i + sum_j pairs_ij Gamma_ij * keys_j``.

        From the largest blocks to the smallest, rows lose what is lost before their
        block, and get what earlier ones have left there.
        """
        rows, [early], [strict] = reader.rows[:, :, 0], reader.early, reader.strict
        for i, level in reversed(list(enumerate(self._levels))):
            later = reader.later[i][:, :, 0]
            np.multiply(later, level.first, out=later)
            np.matmul(reader.below[i], level.kept, out=level.reached)
            np.add(later, level.reached, out=later)
        if not early:
            np.multiply(rows, self._left[0], out=rows)
        if not strict:
            own = reader.own[:, :, 0, :, None]
            np.add(rows, np.multiply(own, self._written, out=self._written), out=rows)
        np.copyto(found, rows[..., : self._size, :])


def _products(rows: Real, columns: Real, out: Real) -> None:
    """Write ``rows @ columns^T``."""
    if rows.shape[-2] <= _FEW:
        np.vecdot(rows[..., :, None, :], columns[..., None, :, :], out=out)
    else:
        np.matmul(rows, columns.swapaxes(-1, -2), out=out)
