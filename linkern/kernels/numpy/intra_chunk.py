r"""Intra-chunk scores under decay, in place (`core.decay`).

`ScalarDecay` has no log-decay or one per token, `ChannelDecay` one per key channel;
both have the same methods. No difference of sums is formed, and no positive number is
exponentiated. Per channel, an exponential at every level would dominate the time:
instead only the sums of whole blocks are exponentiated, two numbers per entry in all,
and rows are multiplied by these factors from one block size to the next. Later rows are
multiplied by the decay of the earlier block, earlier keys by that of the later block.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from linkern.kernels.numpy.causal import lower_product
from linkern.kernels.numpy.decay import TokenDecay
from linkern.kernels.numpy.triangular import (
    block_sizes,
    diagonal,
    halves,
    off_diagonal,
)
from linkern.kernels.numpy.types import Real

__all__ = [
    "CausalMask",
    "ChannelDecay",
    "QueryRows",
    "ScalarDecay",
    "decay_rows",
    "tall_rows",
    "zeros_by_token",
]

# Rows of a block up to which scores are computed one by one: matrix products of that
# size take longer.
_FEW_ROWS = 2


def zeros_by_token(heads: int, chunks: int, *axes: int, dtype: Any) -> Real:
    """Return zeros ``(heads, chunks, ..., R, K)`` for rows with a decay per channel.

    In memory, the rows of a token are adjacent over all heads and kinds: one decay
    multiplies one long row.
    """
    *kinds, rows, dim = axes
    result = np.zeros((chunks, rows, *kinds, heads, dim), dtype)
    return result.transpose((3, 0, 2, 1, 4) if kinds else (2, 0, 1, 3))


def tall_rows(rows: Real) -> Real:
    """View rows ``(heads, chunks, S, R, K)`` with all kinds of a token adjacent."""
    heads, chunks, kinds, length, dim = rows.shape
    shape = (heads, chunks, length * kinds, dim)
    return rows.swapaxes(2, 3).reshape(shape, copy=False)


class QueryRows:
    """Rows that are scored against earlier keys: those of erases, queries, or both.

    Parameters
    ----------
    rows : array (heads, chunks, S, R, K)
        One of each kind for each token, and zeros.
    scores : array (heads, chunks, S, R', R')
        Storage of the scores with earlier tokens: lower triangular, zeros elsewhere.
    early : sequence of bool
        For each kind, True if it reads before the decay of its own token.
    strict : sequence of bool
        For each kind, True if a token is not scored against itself.
    by_halves : bool
        True if scores are computed level by level, as `ChannelDecay` does.
    keeps_rows : bool
        True if the later rows of every level are kept for gradients.
    pair_rows : array (heads, chunks, S, R, 2 K), optional
        Zeros, for rows as they read both memories of a pair.
    """

    #: Copies of `later_tall` before the decay of the earlier block.
    kept_rows: list[Real] | None = None

    def __init__(
        self,
        rows: Real,
        scores: Real,
        *,
        early: Sequence[bool],
        strict: Sequence[bool],
        by_halves: bool,
        keeps_rows: bool = False,
        pair_rows: Real | None = None,
    ) -> None:
        self.pair_rows = pair_rows
        #: Rows that read the memory, once they are scored.
        self.reading = rows if pair_rows is None else pair_rows
        self.rows, self.scores, self.early, self.strict = rows, scores, early, strict
        self.diagonal = diagonal(scores)
        if not by_halves:
            return
        # Views of each level, smallest blocks first: later rows; the same rows with all
        # kinds of a token adjacent; and their scores.
        heads, chunks, kinds, length, dim = rows.shape
        tall = tall_rows(rows)
        wide = scores.swapaxes(2, 3).reshape(
            heads, chunks, length * kinds, length, copy=False
        )
        levels = block_sizes(length)
        self.later = [halves(rows, m)[1] for m in levels]
        #: Later rows of each level, all kinds of a token adjacent.
        self.later_tall = [halves(tall, m * kinds)[1] for m in levels]
        self.level_scores = [off_diagonal(wide, m, kinds) for m in levels]
        if keeps_rows:
            self.kept_rows = [
                tall_rows(
                    zeros_by_token(
                        heads, chunks, kinds, length // 2, dim, dtype=rows.dtype
                    )
                ).reshape(x.shape, copy=False)
                for x in self.later_tall
            ]


class CausalMask:
    """Causal masks of scores: what is masked vanishes even if it is infinite.

    Parameters
    ----------
    size : int
        Tokens in a chunk.
    dtype : dtype
        Of the scores, which are masked bit by bit.
    """

    def __init__(self, size: int, dtype: Any) -> None:
        self._bits = np.dtype(f"i{np.dtype(dtype).itemsize}")
        self._masks = {
            strict: -np.tri(size, k=-int(strict), dtype=self._bits)
            for strict in (False, True)
        }

    def apply(self, scores: Real, strict: Sequence[bool]) -> None:
        """Mask scores ``(heads, chunks, S, C, C)``, of each kind strictly or not."""
        bits = scores.view(self._bits)
        for kind, is_strict in enumerate(strict):
            of_kind = bits[:, :, kind]
            np.bitwise_and(of_kind, self._masks[is_strict], out=of_kind)


class ScalarDecay:
    """Intra-chunk scores with no decay, or one per token.

    Parameters
    ----------
    key : array (heads, chunks, C, K)
        Buffer of the keys.
    decays : bool
        True if there are log-decays.
    """

    def __init__(self, key: Real, *, decays: bool) -> None:
        heads, chunks, size, features = key.shape
        self._key, self._size = key, size
        # Transposed once, so that all its products are plain ones.
        self._key_t = np.empty((heads, chunks, features, size), key.dtype)
        self._decay = TokenDecay(heads, chunks, size, key.dtype) if decays else None
        self._causal = CausalMask(size, key.dtype)
        #: Keys decayed to the end of the chunk, ``(..., K, C)``.
        self.decayed_key_t = np.empty_like(self._key_t) if decays else self._key_t
        #: Decay of the state over the chunk; None if it has none.
        self.chunk_decay: Real | None = None
        if self._decay is not None:
            self.chunk_decay = self._decay.decay_from_start[..., -1:, :]

    @property
    def key(self) -> Real:
        """Buffer of the keys."""
        return self._key

    @property
    def token_decay(self) -> TokenDecay | None:
        """Decays of the tokens of each chunk; None if there are none."""
        return self._decay

    def load(self, log_decay: Real | None) -> None:
        """Load log-decays; the keys must be in their buffer."""
        np.copyto(self._key_t, self._key.swapaxes(-1, -2))
        if self._decay is not None and log_decay is not None:
            self._decay.load(log_decay[..., 0])
            np.multiply(self._key_t, self._decay.decay_to_end, out=self.decayed_key_t)

    def score(self, queries: QueryRows | None) -> None:
        """Write ``rows_i^T Diag(Gamma_ij) keys_j``; then decay rows from the start."""
        if queries is None:
            return
        np.matmul(queries.rows, self._key_t[:, :, None], out=self._scores(queries))
        self._mask(queries)
        self._decay_rows(queries)

    def mix_keys(self, queries: QueryRows, output: Real, *, finite: bool) -> None:
        """Write ``Gamma_i0 * rows_i + sum_j scores_ij Gamma_ij * keys_j``.

        `finite` is True if all keys are known to be finite.
        """
        self._mask(queries)
        self._decay_rows(queries)
        scores = self._scores(queries)[:, :, 0]
        lower_product(scores, self._key, out=output, finite=finite)
        np.add(output, queries.rows[:, :, 0], out=output)

    def _scores(self, queries: QueryRows) -> Real:
        return queries.scores[..., : self._size, : self._size]

    def _mask(self, queries: QueryRows) -> None:
        """Multiply scores by the decay between tokens, and apply the causal mask."""
        scores = self._scores(queries)
        if self._decay is not None:
            decay_rows(scores, self._decay.pair_decay, queries.early)
        self._causal.apply(scores, queries.strict)

    def _decay_rows(self, queries: QueryRows) -> None:
        if self._decay is not None:
            decay_rows(queries.rows, self._decay.decay_from_start, queries.early)


def decay_rows(
    rows: Real, factors: Real, early: Sequence[bool], out: Real | None = None
) -> None:
    """Multiply the rows of each kind by the decay at the time they read."""
    for kind, is_early in enumerate(early):
        of_kind, decay = rows[:, :, kind], factors
        result = of_kind if out is None else out[:, :, kind]
        if is_early:
            # Before the decay of its token, a row has the decay of the token before.
            of_kind, result = of_kind[..., 1:, :], result[..., 1:, :]
            decay = decay[..., :-1, :]
        np.multiply(of_kind, decay, out=result)


class _Level(NamedTuple):
    """Views of one block size."""

    earlier_decay: Real  # decay over each earlier block
    later_decay: Real  # decay over each later block
    earlier_keys: Real  # keys of the earlier blocks, decayed to the end of their block
    kept_keys: Real  # copy of these, if keys are mixed
    mixed_keys: Real  # sum of these that a later row gets


class ChannelDecay:
    """Intra-chunk scores with one decay per token and key channel.

    Parameters
    ----------
    key : array (heads, chunks, R, K)
        Buffer of the keys, ending in zeros, ``R`` a power of two.
    size : int
        Tokens in a chunk.
    keeps_keys : bool
        True if `mix_keys` will be called.
    """

    def __init__(self, key: Real, size: int, *, keeps_keys: bool) -> None:
        heads, chunks, rows, features = key.shape

        def rows_of(length: int) -> Real:
            return zeros_by_token(heads, chunks, length, features, dtype=key.dtype)

        self._key, self._size = key, size
        # Sums over the blocks of 1, 2, 4, ... tokens, one size after the other; `load`
        # replaces them by their exponentials.
        self._tree = rows_of(2 * rows - 1)
        self.block_decays, start = [], 0
        for block in (*block_sizes(rows), rows):
            self.block_decays.append(self._tree[..., start : start + rows // block, :])
            start += rows // block
        self.levels = []
        for block, decay in zip(block_sizes(rows), self.block_decays, strict=False):
            earlier, _ = halves(key, block)
            kept, mixed = halves(rows_of(rows if keeps_keys else 0), block)
            self.levels.append(_Level(*halves(decay, 1), earlier, kept, mixed))
        self._keeps_keys = keeps_keys
        self.original_key = rows_of(rows if keeps_keys else 0)
        #: Keys decayed to the end of the chunk, ``(..., K, C)``.
        self.decayed_key_t = key[..., :size, :].swapaxes(-1, -2)
        #: Decay of each row of the state over the chunk.
        self.chunk_decay = self.block_decays[-1].swapaxes(-1, -2)

    def load(self, log_decay: Real | None) -> None:
        """Load log-decays."""
        assert log_decay is not None
        sums = self.block_decays
        np.copyto(sums[0][..., : self._size, :], log_decay, casting="unsafe")
        sums[0][..., self._size :, :] = 0  # padding does not decay
        for finer, coarser in pairwise(sums):
            np.add(finer[..., 0::2, :], finer[..., 1::2, :], out=coarser)
        np.exp(self._tree, out=self._tree)

    def score(self, queries: QueryRows | None) -> None:
        """Write ``rows_i^T Diag(Gamma_ij) keys_j``; then decay rows from the start.

        Keys are decayed to the end of the chunk.
        """
        if queries is not None:
            self._score_diagonal(queries)
        if self._keeps_keys:
            np.copyto(self.original_key, self._key)
        for i, level in enumerate(self.levels):
            if queries is not None:
                _products(
                    queries.later_tall[i], level.earlier_keys, queries.level_scores[i]
                )
                if queries.kept_rows is not None:
                    np.copyto(queries.kept_rows[i], queries.later_tall[i])
                later = queries.later[i]
                np.multiply(later, level.earlier_decay[:, :, None], out=later)
            if self._keeps_keys:
                np.copyto(level.kept_keys, level.earlier_keys)
            np.multiply(level.earlier_keys, level.later_decay, out=level.earlier_keys)

    def _score_diagonal(self, queries: QueryRows) -> None:
        """Score each token against itself, then apply its own decay to its rows."""
        for kind in range(len(queries.early)):
            rows = queries.rows[:, :, kind]
            if not queries.strict[kind]:
                np.vecdot(rows, self._key, out=queries.diagonal[:, :, kind])
            if not queries.early[kind]:
                np.multiply(rows, self.block_decays[0], out=rows)

    def mix_keys(self, queries: QueryRows, output: Real, *, finite: bool) -> None:
        """Write ``Gamma_i0 * rows_i + sum_j scores_ij Gamma_ij * keys_j``.

        From the largest blocks to the smallest, later rows are multiplied by the decay
        of the earlier block, and the weighted keys of that block are added.
        """
        del finite  # no product is of a triangular matrix
        rows, [early], [strict] = queries.rows[:, :, 0], queries.early, queries.strict
        for i, level in reversed(list(enumerate(self.levels))):
            later = queries.later[i][:, :, 0]
            np.multiply(later, level.earlier_decay, out=later)
            np.matmul(queries.level_scores[i], level.kept_keys, out=level.mixed_keys)
            np.add(later, level.mixed_keys, out=later)
        if not early:
            np.multiply(rows, self.block_decays[0], out=rows)
        if not strict:
            own_score, own_key = queries.diagonal[:, :, 0, :, None], self.original_key
            np.add(rows, np.multiply(own_score, own_key, out=own_key), out=rows)
        np.copyto(output, rows[..., : self._size, :])


def _products(rows: Real, columns: Real, out: Real) -> None:
    """Write ``rows @ columns^T``."""
    if rows.shape[-2] <= _FEW_ROWS:
        np.vecdot(rows[..., :, None, :], columns[..., None, :, :], out=out)
    else:
        np.matmul(rows, columns.swapaxes(-1, -2), out=out)
