r"""Chunkwise backward for any terms: the transpose of `chunk_delta`.

The forward pass of a block is recomputed from the state before it. With the rows ``X``
that are scored against keys, erases (negated) and queries, their scores ``P_a, P_q``,
``T = (I - P_a)^{-1}``, the new values ``U``, and the cotangents ``D`` of the output and
``R`` of the state after the chunk,

    dU = P_q^T D + K' R              dV = T^T dU
    Y = (dV, D)                      dP = Y U^T,  dX' = Y S^T
    dS = w R + sum X'^T Y            dK' = U R^T

with ``w`` the decay over the chunk and a prime as in `core.chunkwise`;
`intra_chunk_grad` and `channel_grad` go back from ``dP``, ``dX'`` and ``dK'`` to rows,
keys and log-decays. Only ``R`` goes from chunk to chunk.

The sum ``D^T (X' S + P_q U)`` has the same value whichever of ``X_q`` and ``D`` is
called the query. So if the query reads along the values (`transpose_state`), the two
change places, and the gradient of the query is ``X' S + P_q U``.
"""

from typing import Any

import numpy as np

from linkern.kernels.numpy import chunk_delta
from linkern.kernels.numpy.causal import all_finite, upper_product
from linkern.kernels.numpy.channel_grad import ChannelGrad
from linkern.kernels.numpy.chunk_delta import DeltaWorkspace, Traits
from linkern.kernels.numpy.intra_chunk import ChannelDecay, ScalarDecay
from linkern.kernels.numpy.intra_chunk_grad import ScalarGrad
from linkern.kernels.numpy.types import Arrays, Real, Shape

__all__ = [
    "DeltaBackwardWorkspace",
    "grad_state_passing",
    "input_grad",
    "output_grad",
    "recompute",
]


class DeltaBackwardWorkspace:
    """Buffers of a block; the first two axes of each are heads and chunks.

    Parameters
    ----------
    shape : Shape
        Sizes.
    dtype : dtype
        Dtype of the computation.
    traits : Traits
        Traits of the terms.
    """

    def __init__(self, shape: Shape, dtype: Any, traits: Traits) -> None:
        heads, chunks, size, features, values = shape
        self.shape, self.dtype, self.traits = shape, np.dtype(dtype), traits
        untransposed = traits._replace(transpose_state=False)
        self.forward = DeltaWorkspace(shape, dtype, untransposed, keeps=True)
        decay, queries = self.forward.decay, self.forward.mixer
        self.intra_chunk: ChannelGrad | ScalarGrad
        if isinstance(decay, ChannelDecay):
            self.intra_chunk = ChannelGrad(decay, queries, shape, dtype)
        else:
            assert isinstance(decay, ScalarDecay)
            self.intra_chunk = ScalarGrad(decay, queries, shape, dtype)
        self.finite = True  # all of a block, as far as is known
        # Cotangents of what erases and queries read from the memory.
        self.grad_read = self._empty(1 + traits.erases, size, values)
        self.grad_output = self.grad_read[:, :, -1]
        self.grad_new_value = self._empty(size, values)
        self.grad_value = self.grad_new_value
        if traits.erases:
            self.grad_value = self.grad_read[:, :, 0]
        self.value_scratch = np.empty((heads, size, values), dtype)
        self.value_t = self._empty(values, size)
        self.memory_t = self._empty(values, features)
        self.memory_scratch = np.empty((heads, features, values), dtype)
        self.carried = self._empty(features)
        # Cotangents of the states before and after the chunks.
        states = np.empty((heads, chunks + 1, features * values), dtype)
        self.grad_final_state, self.grad_initial_state = states[:, chunks], states[:, 0]
        memories = states.reshape(heads, chunks + 1, features, values)
        self.grad_memory_before, self.grad_memory_after = (
            memories[:, :-1],
            memories[:, 1:],
        )

    def _empty(self, *axes: int) -> Real:
        return np.empty((self.shape.heads, self.shape.chunks, *axes), self.dtype)

    def release(self) -> None:
        """Keep no reference to a caller's arrays: all of them are copied."""


def recompute(workspace: DeltaBackwardWorkspace, tokens: Arrays, state: Real) -> None:
    """Recompute the forward pass of a block from the `state` before it, but for output.

    `tokens` has the cotangent of the output as ``output``.
    """
    ws, split = workspace, workspace.shape.split_chunks
    ws.finite = True
    read, reads = tokens["output"], tokens["query"]
    if not ws.traits.transpose_state:
        read, reads = reads, read
    chunk_delta.chunk_state(ws.forward, {**tokens, "query": read})
    ws.forward.initial_state[...] = state
    chunk_delta.state_passing(ws.forward)
    np.copyto(ws.grad_output, split(reads), casting="unsafe")
    rows = ws.intra_chunk.rows
    np.copyto(rows[:, :, -1], split(read), casting="unsafe")
    if ws.traits.erases:
        np.negative(split(tokens["erase"]), out=rows[:, :, 0], casting="unsafe")


def output_grad(workspace: DeltaBackwardWorkspace) -> None:
    """Compute what the output of each chunk alone adds to dU and to dS before it."""
    ws, forward = workspace, workspace.forward
    scores_t, rows_t = (
        x.swapaxes(-1, -2) for x in (forward.scores, forward.mixer_rows)
    )
    upper_product(
        *(scores_t, ws.grad_output),
        out=ws.grad_new_value,
        finite=ws.finite,
        strict=ws.traits.early_read,
    )
    np.matmul(rows_t, ws.grad_output, out=ws.grad_memory_before)


def grad_state_passing(workspace: DeltaBackwardWorkspace) -> None:
    """Compute dU, dV and the cotangents of the states, from the last to the first.

    What is not finite in the block is found in the state after it, or in the cotangent
    of the state before it.
    """
    ws = workspace
    _pass_grad_state(ws)
    if not (ws.forward.finite and all_finite(ws.grad_initial_state)):
        ws.finite = False
        output_grad(ws)
        _pass_grad_state(ws)


def _pass_grad_state(ws: DeltaBackwardWorkspace) -> None:
    for i in reversed(range(ws.shape.chunks)):
        step, new_value = ws.forward.steps[i], ws.grad_new_value[:, i]
        before, after = ws.grad_memory_before[:, i], ws.grad_memory_after[:, i]
        np.matmul(step.decayed_key_t.swapaxes(-1, -2), after, out=ws.value_scratch)
        np.add(new_value, ws.value_scratch, out=new_value)
        if step.erase is not None and step.inverse is not None:
            value = ws.grad_value[:, i]
            inverse_t = step.inverse.swapaxes(-1, -2)
            upper_product(inverse_t, new_value, out=value, finite=ws.finite)
            np.matmul(step.erase.swapaxes(-1, -2), value, out=ws.memory_scratch)
            np.add(before, ws.memory_scratch, out=before)
        decayed = after
        if step.chunk_decay is not None:
            decayed = np.multiply(after, step.chunk_decay, out=ws.memory_scratch)
        np.add(before, decayed, out=before)


def input_grad(workspace: DeltaBackwardWorkspace, tokens: Arrays) -> None:
    """Write the gradients of a block, ``d_`` and the name of each input."""
    ws, forward, grad = workspace, workspace.forward, workspace.intra_chunk
    memory = forward.memory_before
    np.copyto(ws.value_t, forward.new_value.swapaxes(-1, -2))
    np.matmul(ws.grad_read, ws.value_t[:, :, None], out=grad.grad_scores)
    np.copyto(ws.memory_t, memory.swapaxes(-1, -2))
    np.matmul(ws.grad_read, ws.memory_t[:, :, None], out=grad.grad_rows)
    np.copyto(ws.memory_t, ws.grad_memory_after.swapaxes(-1, -2))
    np.matmul(forward.new_value, ws.memory_t, out=grad.grad_key)
    carried = None
    if forward.decay.chunk_decay is not None:
        carried = np.vecdot(memory, ws.grad_memory_after, out=ws.carried)
        np.multiply(carried, forward.decay.chunk_decay[..., 0], out=carried)
    size, scores = ws.shape.size, [forward.scores]
    if forward.erase_scores is not None:
        scores.insert(0, forward.erase_scores[..., :size, :size])
    split = ws.shape.split_chunks
    outputs = [split(tokens[name]) for name in ("d_erase", "d_query") if name in tokens]
    transposed = ws.traits.transpose_state
    rows = [*outputs[:-1], None if transposed else outputs[-1]]
    grad.pull(scores, carried, rows, split(tokens["d_key"]), finite=ws.finite)
    if ws.traits.erases:
        np.negative(outputs[0], out=outputs[0])
    if transposed:
        chunk_delta.chunk_output(forward, {"output": tokens["d_query"]})
    np.copyto(split(tokens["d_value"]), ws.grad_value, casting="unsafe")
    if ws.traits.decays:
        grad.write_log_decay(split(tokens["d_log_decay"]))
