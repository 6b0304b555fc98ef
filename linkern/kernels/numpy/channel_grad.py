r"""Gradients of intra-chunk scores under a decay per key channel: the transposed tree.

`ChannelDecay.score` goes from the smallest blocks of tokens to the largest: it scores
later rows against earlier keys, then multiplies the rows by the decay of the earlier
block and the keys by that of the later one. Here cotangents go from the largest blocks
to the smallest: they are multiplied by the same decays, then get the products of their
size.

The gradient of the logarithm of a block's decay is the sum of what it multiplies; a
log-decay gets those of all blocks that it is in. Sums only grow: nothing is subtracted,
and what a decay of ``-inf`` multiplies is 0.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from linkern.kernels.numpy.intra_chunk import (
    ChannelDecay,
    QueryRows,
    tall_rows,
    zeros_by_token,
)
from linkern.kernels.numpy.triangular import (
    block_sizes,
    diagonal,
    halves,
    off_diagonal,
)
from linkern.kernels.numpy.types import Real, Shape

__all__ = ["ChannelGrad"]


class ChannelGrad:
    """Gradients under one decay per token and key channel.

    Parameters and attributes are those of `ScalarGrad`.
    """

    def __init__(
        self, decay: ChannelDecay, queries: QueryRows, shape: Shape, dtype: Any
    ) -> None:
        heads, chunks, size, features, _ = shape
        lead, kinds, length = (heads, chunks), *queries.rows.shape[2:4]
        self._decay, self._queries, self._kinds = decay, queries, kinds

        def zeros(*axes: int) -> Real:
            return zeros_by_token(*lead, *axes, dtype=dtype)

        self.rows = zeros(kinds, size, features)
        self._grad_rows, self._row_scratch = (
            zeros(kinds, length, features) for _ in range(2)
        )
        self._grad_key, self._key_scratch = (zeros(length, features) for _ in range(2))
        self._padding = self._grad_rows[..., size:, :], self._grad_key[..., size:, :]
        self.grad_rows = self._grad_rows[..., :size, :]
        self.grad_key = self._grad_key[..., :size, :]
        # All kinds of rows of a token are adjacent.
        wide = np.zeros((*lead, length, kinds, length), dtype)
        self.grad_scores = wide.swapaxes(2, 3)[..., :size, :size]
        self._grad_diagonal = diagonal(self.grad_scores)
        wide = wide.reshape(*lead, length * kinds, length, copy=False)
        tall, scratch = tall_rows(self._grad_rows), tall_rows(self._row_scratch)
        self._levels = [
            (
                level,
                off_diagonal(wide, m, kinds),
                (halves(tall, m * kinds)[1], halves(scratch, m * kinds)[1]),
                (halves(self._grad_key, m)[0], halves(self._key_scratch, m)[0]),
            )
            for level, m in zip(decay.levels, block_sizes(length), strict=True)
        ]
        # Gradients of the logarithms of the decays of all blocks, as `block_decays`.
        tree, start = zeros(2 * length - 1, features), 0
        self._blocks = []
        for block in decay.block_decays:
            stop = start + block.shape[-2]
            self._blocks.append(tree[..., start:stop, :])
            start = stop
        self._ones = np.ones((1, kinds * length), dtype)

    def pull(
        self,
        scores: Sequence[Real],
        carried: Real | None,
        outputs: Sequence[Real | None],
        d_key: Real,
        *,
        finite: bool,
    ) -> None:
        """Write the cotangents of rows and keys: see `ScalarGrad.pull`."""
        del scores, finite  # no product is of a triangular matrix
        assert carried is not None
        for padding in self._padding:
            padding[...] = 0
        np.copyto(self._blocks[-1], carried[:, :, None])
        for i in reversed(range(len(self._levels))):
            self._pull_level(i)
        for finer, coarser in reversed(list(pairwise(self._blocks))):
            for part in (finer[..., 0::2, :], finer[..., 1::2, :]):
                np.add(part, coarser, out=part)
        for kind in range(self._kinds):
            self._pull_diagonal(kind)
        for kind, output in enumerate(outputs):
            if output is not None:
                np.copyto(output, self.grad_rows[:, :, kind], casting="unsafe")
        np.copyto(d_key, self.grad_key, casting="unsafe")

    def _pull_level(self, i: int) -> None:
        """Multiply cotangents by the decays of the blocks, and add their products."""
        assert self._queries.kept_rows is not None
        level, grad_scores, (rows, row_scratch), (keys, key_scratch) = self._levels[i]
        kept = self._queries.kept_rows[i]
        first, second = halves(self._blocks[i], 1)
        np.multiply(rows, level.earlier_decay, out=rows)
        self._sum(np.multiply(rows, kept, out=row_scratch), first)
        np.multiply(keys, level.later_decay, out=keys)
        self._sum(np.multiply(keys, level.kept_keys, out=key_scratch), second)
        np.matmul(grad_scores, level.kept_keys, out=row_scratch)
        np.add(rows, row_scratch, out=rows)
        np.matmul(grad_scores.swapaxes(-1, -2), kept, out=key_scratch)
        np.add(keys, key_scratch, out=keys)

    def _sum(self, rows: Real, out: Real) -> None:
        """Sum over the rows of each block."""
        np.matmul(self._ones[:, : rows.shape[-2]], rows, out=out)

    def _pull_diagonal(self, kind: int) -> None:
        """Apply each token's own decay, and the score of a token against itself."""
        size = self.rows.shape[-2]
        rows, grad = self.rows[:, :, kind], self.grad_rows[:, :, kind]
        scratch = self._row_scratch[:, :, kind, :size]
        if not self._queries.early[kind]:
            own = slice(0, size)
            np.multiply(grad, self._decay.block_decays[0][..., own, :], out=grad)
            np.multiply(grad, rows, out=scratch)
            leaves = self._blocks[0][..., own, :]
            np.add(leaves, scratch, out=leaves)
        if not self._queries.strict[kind]:
            own_score = self._grad_diagonal[:, :, kind, :, None]
            key = self._decay.original_key[..., :size, :]
            np.add(grad, np.multiply(own_score, key, out=scratch), out=grad)
            np.multiply(own_score, rows, out=scratch)
            np.add(self.grad_key, scratch, out=self.grad_key)

    def write_log_decay(self, output: Real) -> None:
        """Write the gradients of log-decays ``(heads, chunks, C, K)``, after `pull`."""
        leaves = self._blocks[0][..., : self.rows.shape[-2], :]
        np.copyto(output, leaves, casting="unsafe")
