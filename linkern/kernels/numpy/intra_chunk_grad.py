r"""Gradients of intra-chunk scores under decay, in place: `intra_chunk` transposed.

With ``D`` the cotangent of the scores ``x_i^T Gamma_ij k_j`` of some rows ``x``, and a
prime as in `core.chunkwise`,

    dx_i = e_i dx'_i + sum_j D_ij Gamma_ij k_j
    dk_j = l_j dk'_j + sum_i D_ij Gamma_ij x_i

The gradient of a log-decay is a sum of ``D_ij x_i^T Gamma_ij k_j``, over the pairs that
it lies between. The states before and after the chunk count as tokens there.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from linkern.kernels.numpy.causal import lower_product, upper_product
from linkern.kernels.numpy.decay import TokenDecay
from linkern.kernels.numpy.decay_grad import DecayGrad
from linkern.kernels.numpy.intra_chunk import QueryRows, ScalarDecay, decay_rows
from linkern.kernels.numpy.types import Real, Shape

__all__ = ["ScalarGrad"]


class ScalarGrad:
    """Gradients under no decay, or one per token.

    Parameters
    ----------
    decay : ScalarDecay
        The decays of the chunks.
    queries : QueryRows
        The rows that are scored.
    shape : Shape
        Sizes of the workspace.
    dtype : dtype
        Dtype of the computation.

    Attributes
    ----------
    rows, key : array (heads, chunks, S, C, K), (heads, chunks, C, K)
        Rows before any decay, to be loaded, and keys.
    grad_rows, grad_key : array
        Cotangents of the decayed rows and keys; `pull` takes and replaces them.
    grad_scores : array (heads, chunks, S, C, C)
        Cotangents of the scores, also of those that are masked; replaced.
    """

    def __init__(
        self, decay: ScalarDecay, queries: QueryRows, shape: Shape, dtype: Any
    ) -> None:
        heads, chunks, size, features, _ = shape
        lead, kinds = (heads, chunks), len(queries.early)
        self._decay, self._early, self._strict = decay, queries.early, queries.strict
        self.has_decay = decay.token_decay is not None
        self.key = decay.key
        self.rows = np.empty((*lead, kinds, size, features), dtype)
        self.grad_rows = np.empty_like(self.rows)
        self.grad_key = np.empty_like(self.key)
        self.grad_scores = np.empty((*lead, kinds, size, size), dtype)
        bits = np.dtype(f"i{self.grad_scores.itemsize}")
        self.masks = [-np.tri(size, k=-int(x), dtype=bits) for x in queries.strict]
        self.row_scratch = np.empty_like(self.rows)
        self.scratch = np.empty_like(self.key)
        if self.has_decay:
            # Scratch by the number of axes: for each token, and for each pair.
            self._products = {
                3: np.empty((*lead, size), dtype),
                4: np.empty((*lead, size, size), dtype),
            }
            self._log_decay = DecayGrad(heads, chunks, size, dtype)

    def pull(
        self,
        scores: Sequence[Real],
        carried: Real | None,
        outputs: Sequence[Real | None],
        d_key: Real,
        *,
        finite: bool,
    ) -> None:
        """Write the cotangents of rows and keys before any decay.

        Parameters
        ----------
        scores : sequence of array (heads, chunks, C, C)
            The scores of each kind of rows.
        carried : array (heads, chunks, K) or None
            Products of each row of the state before the chunk, decayed, with the
            cotangent of the state after it; None without decays.
        outputs : sequence of array (heads, chunks, C, K) or None
            Cotangents of each kind of rows; None for one that is not needed.
        d_key : array (heads, chunks, C, K)
            Cotangent of the keys.
        finite : bool
            True if all rows and keys are known to be finite.
        """
        for kind, mask in enumerate(self.masks):
            # Bit by bit: what is masked vanishes even if it is infinite.
            masked = self.grad_scores[:, :, kind].view(mask.dtype)
            np.bitwise_and(masked, mask, out=masked)
        decay = self._decay.token_decay
        if decay is not None and carried is not None:
            self._pull_decays(decay, scores, carried)
        self._pull_rows(outputs, finite=finite)
        self._pull_keys(d_key, finite=finite)

    def _pull_rows(self, outputs: Sequence[Real | None], *, finite: bool) -> None:
        for kind, output in enumerate(outputs):
            if output is None:
                continue
            products, strict = self.row_scratch[:, :, kind], self._strict[kind]
            scores = self.grad_scores[:, :, kind]
            lower_product(scores, self.key, out=products, finite=finite, strict=strict)
            np.add(self.grad_rows[:, :, kind], products, out=output, casting="unsafe")

    def _pull_keys(self, d_key: Real, *, finite: bool) -> None:
        rows: Real = self.rows
        if not finite:
            rows = np.where(np.isfinite(rows), rows, 0)
        tall = (*rows.shape[:2], len(self._strict) * rows.shape[3], -1)
        np.matmul(
            self.grad_scores.reshape(tall, copy=False).swapaxes(-1, -2),
            rows.reshape(tall, copy=False),
            out=self.scratch,
        )
        for kind, strict in enumerate(() if finite else self._strict):
            scores_t = self.grad_scores[:, :, kind].swapaxes(-1, -2)
            own, spoiled = self.rows[:, :, kind], np.empty_like(self.scratch)
            upper_product(scores_t, own, out=spoiled, finite=False, strict=strict)
            np.copyto(self.scratch, spoiled, where=~np.isfinite(spoiled))
        np.add(self.grad_key, self.scratch, out=d_key, casting="unsafe")

    def _pull_decays(
        self, decay: TokenDecay, scores: Sequence[Real], carried: Real
    ) -> None:
        """Multiply all cotangents by their decays, and sum those of log-decays."""
        sums = self._log_decay
        for kind, x in enumerate(scores):
            products = self.grad_scores[:, :, kind], x
            self._add(kind, products, sums.score_products, np.multiply)
        decay_rows(self.grad_scores, decay.pair_decay, self._early)
        decay_rows(self.grad_rows, decay.decay_from_start, self._early)
        reads = sums.state_reads[..., 0]
        for kind in range(len(scores)):
            products = self.rows[:, :, kind], self.grad_rows[:, :, kind]
            self._add(kind, products, reads, np.vecdot)
        to_end = decay.decay_to_end.swapaxes(-1, -2)
        np.multiply(self.grad_key, to_end, out=self.grad_key)
        np.vecdot(self.key, self.grad_key, out=sums.state_writes)
        np.sum(carried, axis=-1, out=sums.state_carried)

    def _add(
        self, kind: int, pair: tuple[Real, Real], target: Real, product: Any
    ) -> None:
        """Add the products of one kind of rows to those of the kinds before."""
        if self._early[kind]:
            # A row that reads before the decay of its token reads after that of the
            # token before.
            if kind == 0:
                target[:, :, -1] = 0
            target, pair = target[:, :, :-1], (pair[0][:, :, 1:], pair[1][:, :, 1:])
        if kind == 0:
            product(*pair, out=target)
        else:
            scratch = self._products[target.ndim][:, :, : target.shape[2]]
            np.add(target, product(*pair, out=scratch), out=target)

    def write_log_decay(self, output: Real) -> None:
        """Write the gradients of log-decays ``(heads, chunks, C, 1)``, after `pull`."""
        self._log_decay.write(output)
