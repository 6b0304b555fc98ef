"""Chunkwise forward of additive attention: no decay, or one per token.

The equation of `core.chunkwise` without an erase, in blocks of a few chunks of a few
heads, small enough that a workspace stays in the cache of a core. Features are computed
there, keys are transposed once so that all large products are plain ones, sums over
rows are products with ones, and nothing is allocated.
"""

from functools import partial
from typing import Any

import numpy as np

from linkern.kernels.numpy.causal import all_finite, lower_product
from linkern.kernels.numpy.decay import TokenDecay
from linkern.kernels.numpy.features import InPlace
from linkern.kernels.numpy.types import Arrays, Real, Shape
from linkern.kernels.numpy.workspace import Arena

__all__ = [
    "LinearWorkspace",
    "as_blas_operand",
    "chunk_output",
    "chunk_state",
    "non_causal_state",
    "read_state",
    "state_passing",
]


class LinearWorkspace:
    """Buffers of a block; the first two axes of each are heads and chunks.

    Parameters
    ----------
    shape : Shape
        Sizes.
    dtype : dtype
        Dtype of the computation.
    feature_map : InPlace or None
        None if queries and keys are features already.
    normalize : bool
        True if rows are divided by the sum of their weights.
    scale : float or None
        Factor on the output; ignored if `normalize`.
    decays : bool
        True if there is a log-decay for each token.
    causal : bool
        True if the scores of a chunk are needed.
    reuse : LinearWorkspace or None
        A workspace that is not used at the same time; its memory is used again.
    """

    def __init__(
        self,
        shape: Shape,
        dtype: Any,
        feature_map: InPlace | None,
        *,
        normalize: bool,
        scale: float | None = None,
        decays: bool = False,
        causal: bool = True,
        reuse: "LinearWorkspace | None" = None,
    ) -> None:
        heads, chunks, size, features, values = shape
        self.arena: Arena = Arena(dtype, None if reuse is None else reuse.arena)
        empty = partial(self.arena.empty, heads, chunks)
        self.shape, self.dtype, self.feature_map = shape, np.dtype(dtype), feature_map
        self.normalize, self.scale = normalize, scale
        self._make_states()
        self.features, self.scratch = empty(size, features), empty(size, features)
        self.value_buffer, self.output_buffer = empty(size, values), empty(size, values)
        self.value = self.value_buffer  # or the caller's array, if BLAS takes it
        self.denominator = empty(size, 1)
        self.zeros = np.zeros((size, features), dtype)
        self.ones = np.ones((size, 1), dtype)
        self.decay = None
        if not causal:
            return
        # Features of the keys, transposed; and decayed to the end of the chunk.
        self.key_t = self.decayed_key_t = empty(features, size)
        if decays:
            self.decay = TokenDecay(heads, chunks, size, dtype)
            self.decayed_state = self.arena.empty(heads, self.initial_state.shape[-1])
            self.decayed_key_t = empty(features, size)
        self.scores = empty(size, size)
        self.state_output, self.state_denominator = empty(size, values), empty(size, 1)
        # Scores are masked bit by bit: a masked score vanishes even if it is infinite.
        self.score_bits = self.scores.view(f"i{self.dtype.itemsize}")
        self.causal_mask = -np.tri(size, dtype=self.score_bits.dtype)

    def _make_states(self) -> None:
        # A state is a memory and its normalizer in one row, so that one sum updates
        # both. States before and after the chunks are the same rows, shifted by one.
        heads, chunks, _, features, values = self.shape
        memory = features * values
        width = memory + (features if self.normalize else 0)
        states = self.arena.empty(heads, chunks + 1, width)
        self.initial_state, self.final_state = states[:, 0], states[:, chunks]
        self.state_steps = [(states[:, i], states[:, i + 1]) for i in range(chunks)]
        memories = states[..., :memory].reshape(heads, chunks + 1, features, values)
        self.memory_before, self.memory_after = memories[:, :-1], memories[:, 1:]
        if self.normalize:
            sums = states[..., memory:].reshape(heads, chunks + 1, features, 1)
            self.normalizer_before, self.normalizer_after = sums[:, :-1], sums[:, 1:]

    def release(self) -> None:
        """Drop references to a caller's arrays."""
        self.value = self.value_buffer

    def map_features(self, rows: Real) -> Real:
        """Return the features of queries or keys, in `features` or the rows as is."""
        if self.feature_map is None:
            return as_blas_operand(rows, self.features)
        wide = as_blas_operand(rows, self.scratch)
        self.feature_map.write(wide, self.features, self.scratch, self.zeros)
        return self.features

    def output_target(self, output: Real) -> Real:
        """Return the array to compute in: `output`, or a buffer if it is narrower."""
        return output if output.dtype == self.dtype else self.output_buffer


def as_blas_operand(rows: Real, buffer: Real) -> Real:
    """Return the rows if BLAS takes them without a copy, else a copy in the buffer.

    BLAS takes rows of its own dtype that are contiguous and do not overlap.
    """
    down, right = rows.strides[-2:]
    size = buffer.itemsize
    plain = right == size and down >= rows.shape[-1] * size and down % size == 0
    if rows.dtype == buffer.dtype and plain:
        return rows
    np.copyto(buffer, rows, casting="unsafe")
    return buffer


def chunk_state(workspace: LinearWorkspace, tokens: Arrays) -> None:
    """Load keys and values, and compute what each chunk alone adds to the state."""
    ws, split = workspace, workspace.shape.split_chunks
    np.copyto(ws.key_t, ws.map_features(split(tokens["key"])).swapaxes(-1, -2))
    if ws.decay is not None:
        ws.decay.load(split(tokens["log_decay"])[..., 0])
        np.multiply(ws.key_t, ws.decay.decay_to_end, out=ws.decayed_key_t)
    ws.value = as_blas_operand(split(tokens["value"]), ws.value_buffer)
    np.matmul(ws.decayed_key_t, ws.value, out=ws.memory_after)
    if ws.normalize:
        np.matmul(ws.decayed_key_t, ws.ones, out=ws.normalizer_after)


def state_passing(workspace: LinearWorkspace) -> None:
    """Compute the state after each chunk, from `initial_state` to `final_state`."""
    if workspace.decay is None:
        for before, after in workspace.state_steps:
            np.add(before, after, out=after)
        return
    chunk_decay = workspace.decay.decay_from_start[:, :, -1]
    for i, (before, after) in enumerate(workspace.state_steps):
        np.multiply(before, chunk_decay[:, i], out=workspace.decayed_state)
        np.add(after, workspace.decayed_state, out=after)


def chunk_output(workspace: LinearWorkspace, tokens: Arrays) -> None:
    """Write the output: intra-chunk attention plus the state before the chunk."""
    ws = workspace
    output = ws.shape.split_chunks(tokens["output"])
    result = ws.output_target(output)
    query = ws.map_features(ws.shape.split_chunks(tokens["query"]))
    np.matmul(query, ws.key_t, out=ws.scores)
    if ws.decay is not None:
        np.multiply(ws.scores, ws.decay.pair_decay, out=ws.scores)
        query = np.multiply(query, ws.decay.decay_from_start, out=ws.scratch)
    np.bitwise_and(ws.score_bits, ws.causal_mask, out=ws.score_bits)
    finite = all_finite(ws.final_state)
    lower_product(ws.scores, ws.value, out=result, finite=finite)
    np.matmul(query, ws.memory_before, out=ws.state_output)
    np.add(result, ws.state_output, out=result)
    if ws.normalize:
        np.matmul(ws.scores, ws.ones, out=ws.denominator)
        np.matmul(query, ws.normalizer_before, out=ws.state_denominator)
        np.add(ws.denominator, ws.state_denominator, out=ws.denominator)
    _epilogue(ws, result, output)


def non_causal_state(workspace: LinearWorkspace, tokens: Arrays) -> None:
    """Compute what each chunk adds to the state, where every query sees every key."""
    ws, split = workspace, workspace.shape.split_chunks
    key_t = ws.map_features(split(tokens["key"])).swapaxes(-1, -2)
    value = as_blas_operand(split(tokens["value"]), ws.value_buffer)
    np.matmul(key_t, value, out=ws.memory_after)
    if ws.normalize:
        np.matmul(key_t, ws.ones, out=ws.normalizer_after)


def read_state(workspace: LinearWorkspace, tokens: Arrays) -> None:
    """Write the output of each query from `initial_state` alone."""
    ws = workspace
    output = ws.shape.split_chunks(tokens["output"])
    result = ws.output_target(output)
    query = ws.map_features(ws.shape.split_chunks(tokens["query"]))
    np.matmul(query, ws.memory_before, out=result)
    if ws.normalize:
        np.matmul(query, ws.normalizer_before, out=ws.denominator)
    _epilogue(ws, result, output)


def _epilogue(ws: LinearWorkspace, result: Real, output: Real) -> None:
    """Normalize or scale the result, and convert it to the dtype of the output."""
    if ws.normalize:
        np.divide(result, ws.denominator, out=result)
    elif ws.scale is not None:
        np.multiply(result, ws.scale, out=result)
    if result is not output:
        np.copyto(output, result, casting="unsafe")
