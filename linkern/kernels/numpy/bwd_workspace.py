"""Workspace of the chunkwise backward: buffers of a block, and operations on rows.

All buffers are allocated once; temporaries that are not live at the same time share
memory.
"""

from typing import Any

import numpy as np

from linkern.kernels.numpy.chunk_linear import as_blas_operand
from linkern.kernels.numpy.decay import TokenDecay
from linkern.kernels.numpy.decay_grad import DecayGrad
from linkern.kernels.numpy.features import InPlace
from linkern.kernels.numpy.types import Real, Shape
from linkern.kernels.numpy.workspace import Arena

__all__ = ["BackwardWorkspace"]


class BackwardWorkspace:
    """Buffers of a block; the first two axes of each are heads and chunks.

    Parameters
    ----------
    shape : Shape
        Sizes.
    dtype : dtype
        Dtype of the computation.
    feature_map : InPlace or None
        None if queries and keys are features already.
    normalize, decays, causal : bool
        As in `LinearWorkspace`.
    scale : float or None
        Factor on the output; ignored if `normalize`.
    reuse : BackwardWorkspace or None
        A workspace that is not used at the same time; its memory is used again.
    """

    # Rows of the current block: buffers, or the caller's arrays if BLAS takes them.
    key: Real
    value: Real
    query: Real
    #: Cotangent of the output before it was normalized or scaled.
    grad_read: Real
    #: Keys decayed to the end of the chunk.
    decayed_key: Real

    def __init__(
        self,
        shape: Shape,
        dtype: Any,
        feature_map: InPlace | None,
        *,
        normalize: bool,
        decays: bool,
        causal: bool,
        scale: float | None,
        reuse: "BackwardWorkspace | None" = None,
    ) -> None:
        self.arena: Arena = Arena(dtype, None if reuse is None else reuse.arena)
        self.shape, self.dtype, self.feature_map = shape, np.dtype(dtype), feature_map
        self.normalize, self.causal, self.scale = normalize, causal, scale
        heads, chunks, size, features, values = shape
        self._make_states()
        self._make_rows()
        self.zeros = np.zeros((size, features), dtype)
        self.ones = np.ones((max(size, features * (values + 1), values), 1), dtype)
        self.decay, self.decay_grad = None, None
        if decays:
            self.decay = TokenDecay(heads, chunks, size, dtype)
            self.decay_grad = DecayGrad(heads, chunks, size, dtype)
            self.decayed_query, self.decayed_key_buffer = (
                self._empty(size, features) for _ in range(2)
            )
        if causal:
            # Transposed rows are consumed before the buffers they share are written.
            lead = (heads, chunks)
            self.key_t = self.key_scratch.reshape(*lead, features, size)
            self.value_t = self.value_scratch.reshape(*lead, values, size)
            self.scores, self.grad_scores, self.score_products = (
                self._empty(size, size) for _ in range(3)
            )
            self.causal_mask = -np.tri(size, dtype=f"i{self.dtype.itemsize}")

    def _empty(self, *axes: int) -> Real:
        return self.arena.empty(*self.shape[:2], *axes)

    def _make_states(self) -> None:
        # States before the chunks are transposed and their cotangents after the chunks
        # are not, so that products are plain ones; a normalizer is one more row.
        heads, chunks, _, features, values = self.shape
        rows = values + self.normalize
        states, grads = (
            self.arena.empty(heads, chunks + 1, rows * features) for _ in range(2)
        )
        self.initial_state, self.final_state = states[:, 0], states[:, chunks]
        self.state_steps = [(i, states[:, i], states[:, i + 1]) for i in range(chunks)]
        states_t = states.reshape(heads, chunks + 1, rows, features)
        self.state_t_before, self.state_t_after = states_t[:, :-1], states_t[:, 1:]
        self.grad_final_state, self.grad_initial_state = grads[:, chunks], grads[:, 0]
        self.grad_state_steps = [
            (i, grads[:, i + 1], grads[:, i]) for i in reversed(range(chunks))
        ]
        self.grad_state_after = _split_state(grads[:, 1:], features, values)
        self.grad_state_before = _split_state(grads[:, :-1], features, values)
        self.grad_state_t = self._empty(rows, features)
        self.state_products = self._empty(rows, features)
        self.decayed_state = self.arena.empty(heads, rows * features)

    def _make_rows(self) -> None:
        _, _, size, features, values = self.shape
        (
            self.key_buffer,
            self.query_buffer,
            self.scratch,
            self.grad_features,
            self.key_scratch,
        ) = (self._empty(size, features) for _ in range(5))
        (
            self.value_buffer,
            self.grad_read_buffer,
            self.value_scratch,
            self.grad_value_buffer,
        ) = (self._empty(size, values) for _ in range(4))
        self.denominator, self.grad_denominator, self.sums = (
            self._empty(size, 1) for _ in range(3)
        )

    def release(self) -> None:
        """Drop references to a caller's arrays."""
        self.key = self.decayed_key = self.key_buffer
        self.value, self.query = self.value_buffer, self.query_buffer
        self.grad_read = self.grad_read_buffer

    def map_features(self, rows: Real, buffer: Real) -> Real:
        """Return the features of queries or keys, in `buffer` or the rows as is."""
        if self.feature_map is None:
            return as_blas_operand(rows, buffer)
        wide = as_blas_operand(rows, self.scratch)
        self.feature_map.write(wide, buffer, self.scratch, self.zeros)
        return buffer

    def write_input_grad(self, grad: Real, features: Real, output: Real) -> None:
        """Write the gradient of queries or keys from that of their features."""
        if self.feature_map is not None:
            self.feature_map.derivative(features, self.scratch)
            grad = np.multiply(grad, self.scratch, out=self.target(output, grad))
        if grad is not output:
            np.copyto(output, grad, casting="unsafe")

    def target(self, output: Real, buffer: Real) -> Real:
        """Return the array to compute in: `output`, or a buffer if it is narrower."""
        return output if output.dtype == self.dtype else buffer

    def mask(self, scores: Real) -> None:
        """Apply the causal mask; masked scores vanish even if they are infinite."""
        bits = scores.view(self.causal_mask.dtype)
        np.bitwise_and(bits, self.causal_mask, out=bits)

    def row_sums(self, rows: Real, out: Real) -> None:
        """Sum along the last axis."""
        np.matmul(rows, self.ones[: rows.shape[-1]], out=out)


def _split_state(rows: Real, features: int, values: int) -> tuple[Real, Real]:
    """Return views of memories ``(..., K, V)``, and of normalizers as columns."""
    width = features * values
    memory = rows[..., :width].reshape(*rows.shape[:-1], features, values, copy=False)
    return memory, rows[..., width:, None]
