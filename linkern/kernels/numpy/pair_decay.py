r"""Intra-chunk scores of a pair of memories, in place (`core.momentum`).

With the decays ``Gamma`` and ``Gamma'`` of the two memories and the shares ``m``,

    C_ij = sum_{j<=r<=i} Gamma_ir m_r Gamma'_rj,      E_i = sum_{r<=i} Gamma_ir m_r e'_r

are the decays between tokens, and what a token reads of the second memory before the
chunk. To all else the pair is one memory of twice as many rows: a row that reads, or a
key that is written, has its channels twice, each time under other decays. Only the
state passing adds what the first memory gains of the second.
"""

import numpy as np

from linkern.core.causal import chained_product, lower_product
from linkern.kernels.numpy.causal import all_finite
from linkern.kernels.numpy.decay import TokenDecay
from linkern.kernels.numpy.intra_chunk import CausalMask, QueryRows, decay_rows
from linkern.kernels.numpy.types import Real

__all__ = ["PairDecay"]


class PairDecay:
    """Intra-chunk scores under two log-decays per token, with the methods of one.

    Parameters
    ----------
    key : array (heads, chunks, C, K)
        Buffer of the keys.
    """

    def __init__(self, key: Real) -> None:
        heads, chunks, size, features = key.shape
        self._key, self._heads, self._size = key, heads, size
        # Transposed once, so that all its products are plain ones.
        self._key_t = np.empty((heads, chunks, features, size), key.dtype)
        # The decays of the second memory are those of further heads.
        self._decay = TokenDecay(2 * heads, chunks, size, key.dtype, masked=True)
        self._log_decay = np.zeros((2, heads, chunks, size), key.dtype)
        self._causal = CausalMask(size, key.dtype)
        #: Buffer of the shares ``m``.
        self.follow = np.empty((heads, chunks, size, 1), key.dtype)
        self._entering = np.empty_like(self.follow)
        #: ``C``: lower triangular.
        self.pair_decay = np.empty((heads, chunks, size, size), key.dtype)
        #: ``E``, and its last row, what the first memory gains over the chunk.
        self.entered = np.empty_like(self.follow)
        self.gained = self.entered[..., -1:, :]
        #: Keys as they are left in both memories at the end of the chunk.
        self.decayed_key_t = np.empty((heads, chunks, 2 * features, size), key.dtype)
        #: Decays of both memories over the chunk.
        self.chunk_decay = np.empty((heads, chunks, 2, 1), key.dtype)

    def load(self, log_decay: Real | None) -> None:
        """Load log-decays; the keys and the shares must be in their buffers."""
        heads, features = self._heads, self._key.shape[-1]
        if log_decay is not None:
            np.copyto(self._log_decay, np.moveaxis(log_decay, -1, 0), casting="unsafe")
        np.copyto(self._key_t, self._key.swapaxes(-1, -2))
        self._decay.load(self._log_decay.reshape(2 * heads, *self._log_decay.shape[2:]))
        self._chain()
        of_first, of_second = self.decayed_key_t, self.decayed_key_t[:, :, features:]
        of_first = of_first[:, :, :features]
        np.multiply(self._key_t, self.pair_decay[:, :, -1:], out=of_first)
        np.multiply(self._key_t, self._decay.decay_to_end[heads:], out=of_second)
        over_chunk = self._decay.decay_from_start[:, :, -1]
        self.chunk_decay[:, :, 0] = over_chunk[:heads]
        self.chunk_decay[:, :, 1] = over_chunk[heads:]

    def _chain(self) -> None:
        """Compute ``C`` and ``E``; the decays of the second memory get its shares."""
        pairs = self._decay.pair_decay
        first, second = pairs[: self._heads], pairs[self._heads :]
        np.multiply(second, self.follow, out=second)
        from_start = self._decay.decay_from_start[self._heads :]
        np.multiply(from_start, self.follow, out=self._entering)
        np.matmul(first, second, out=self.pair_decay)
        np.matmul(first, self._entering, out=self.entered)
        # What is not finite reaches the last token.
        if not (all_finite(self.pair_decay[:, :, -1]) and all_finite(self.gained)):
            self.pair_decay[...] = chained_product(first, second)
            self.entered[...] = lower_product(first, self._entering)

    def score(self, queries: QueryRows | None) -> None:
        """Write ``C_ij rows_i^T keys_j``; then rows as they read both memories."""
        assert queries is not None
        assert queries.pair_rows is not None
        features, size = self._key.shape[-1], self._size
        scores = queries.scores[..., :size, :size]
        np.matmul(queries.rows, self._key_t[:, :, None], out=scores)
        decay_rows(scores, self.pair_decay, queries.early)
        self._causal.apply(scores, queries.strict)
        of_first = queries.pair_rows[..., :features]
        of_second = queries.pair_rows[..., features:]
        # An early row of the first token is not decayed, and of the second memory it
        # reads nothing: its zeros stay.
        np.copyto(of_first[..., 0, :], queries.rows[..., 0, :])
        from_start = self._decay.decay_from_start[: self._heads]
        decay_rows(queries.rows, from_start, queries.early, out=of_first)
        decay_rows(queries.rows, self.entered, queries.early, out=of_second)
