"""Forward pass of additive attention on NumPy, for arrays of any memory layout."""

from functools import partial
from math import prod
from typing import Any

import numpy as np

from linkern.kernels.numpy import chunk_linear
from linkern.kernels.numpy.chunk_linear import LinearWorkspace
from linkern.kernels.numpy.features import InPlace
from linkern.kernels.numpy.heads import group_size, head_groups
from linkern.kernels.numpy.schedule import Layout, Phase, blocks, run
from linkern.kernels.numpy.threads import (
    single_threaded_blas,
    small_buffers,
    thread_count,
    threads_for,
)
from linkern.kernels.numpy.types import Arrays, Real, Shape
from linkern.kernels.numpy.workspace import WorkspacePool

__all__ = [
    "attend",
    "causal_layout",
    "non_causal_layout",
    "pack_state",
    "run_phase",
    "unpack_state",
]

# Bytes of a block (least and most), bytes of the blocks of all threads, and chunks of a
# block. A block should stay in a cache near the core, and yet take so long that threads
# seldom wait for each other to release the interpreter between two calls.
_MIN_BYTES, _MAX_BYTES, _TOTAL_BYTES = 1 << 20, 4 << 20, 8 << 20
_MAX_CHUNKS = 64
# Bytes of the keys, or of the values, of a block without causal order.
_NON_CAUSAL_BYTES = 1 << 20


def attend(
    query: Real,
    key: Real,
    value: Real,
    log_decay: Real | None,
    memory: Real,
    normalizer: Real | None,
    *,
    feature_map: InPlace | None = None,
    scale: float | None = None,
    size: int = 64,
    causal: bool = True,
) -> tuple[Real, Real, Real | None]:
    """Return the output and the state after the last key.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., S, K), (..., S, V)
        With the same leading axes; any strides, any real floating dtype.
    log_decay : array (..., T, 1) or None
        One for each token.
    memory, normalizer : array (..., K, V), (..., K) or None
        State before the first token, in the dtype of the computation. Without a
        normalizer, rows are not divided by their weights.
    feature_map : InPlace, optional
        Applied to queries and keys; None if they are features already.
    scale : float, optional
        Factor on the output; ignored with a normalizer.
    size : int
        Tokens in a chunk.
    causal : bool
        True if query i sees the keys up to i alone.

    Returns
    -------
    output : array (..., T, V)
        In the dtype of `query`.
    memory, normalizer : array
        New arrays.
    """
    features, values = memory.shape[-2:]
    normalize, dtype = normalizer is not None, memory.dtype
    # Results are allocated before anything is computed.
    state = pack_state(memory, normalizer)
    output = np.empty((*query.shape[:-1], values), query.dtype)
    sources = {"key": key, "value": value}
    if log_decay is not None:
        sources["log_decay"] = log_decay
    options: dict[str, Any] = {
        "feature_map": feature_map,
        "normalize": normalize,
        "scale": scale,
        "decays": log_decay is not None,
        "causal": causal,
    }

    def make(heads: int, chunks: int, size: int, reuse: Any) -> LinearWorkspace:
        shape = Shape(heads, chunks, size, features, values)
        return LinearWorkspace(shape, dtype, **options, reuse=reuse)

    kind = (LinearWorkspace, features, values, dtype, *options.values())
    phase = partial(Phase, WorkspacePool(kind, make))

    targets = {"query": query, "output": output}
    state_passing = chunk_linear.state_passing
    if causal:
        layout = causal_layout(size, features, values, dtype)
        steps = chunk_linear.chunk_state, chunk_linear.chunk_output, state_passing
        run_phase(phase(*steps), {**sources, **targets}, state, layout)
    else:
        layout = non_causal_layout(_NON_CAUSAL_BYTES, features, values, dtype)
        first = phase(chunk_linear.non_causal_state, state_passing=state_passing)
        run_phase(first, sources, state, layout)
        second = phase(chunk_output=chunk_linear.read_state)
        run_phase(second, targets, state, layout)
    return (output, *unpack_state(state, features, values, normalize=normalize))


def causal_layout(size: int, features: int, values: int, dtype: Any) -> Layout:
    """Return a layout whose blocks of chunks of `size` tokens fit into a cache."""
    cell = size * (3 * features + size + 2 * values) + features * values
    room = max(_MIN_BYTES, min(_MAX_BYTES, _TOTAL_BYTES // thread_count()))
    chunks = room // max(cell * dtype.itemsize, 1)
    return Layout(max(1, min(_MAX_CHUNKS, chunks)), size)


def non_causal_layout(room: int, features: int, values: int, dtype: Any) -> Layout:
    """Return a layout whose blocks are one chunk with `room` bytes of keys or values.

    Sums run over all tokens of a block, so it must not depend on threads.
    """
    return Layout(1, max(16, room // (max(features, values, 1) * dtype.itemsize)))


def run_phase(phase: Phase, arrays: Arrays, state: Real, layout: Layout) -> None:
    """Run a phase over all heads and tokens; `state` is replaced."""
    batch = state.shape[:-1]
    length, heads = next(iter(arrays.values())).shape[-2], prod(batch)
    threads = threads_for(heads * length * state.shape[-1])
    order = blocks(length, layout)
    # Short sequences leave room for more heads in a block.
    room = layout.chunks // max(1, sum(block.chunks for block in order))
    count = group_size(heads, threads, room)
    groups = head_groups({**arrays, "state": state}, batch, count)
    with single_threaded_blas(), small_buffers():
        run(phase, groups, order, threads)


def pack_state(memory: Real, normalizer: Real | None) -> Real:
    """Return a state as one new row per head: the memory, then the normalizer."""
    *batch, features, values = memory.shape
    rows = [memory.reshape(*batch, features * values)]
    if normalizer is not None:
        rows.append(normalizer)
    return np.concatenate(rows, axis=-1)


def unpack_state(
    state: Real, features: int, values: int, *, normalize: bool
) -> tuple[Real, Real | None]:
    """Undo `pack_state`."""
    width = features * values
    memory = state[..., :width].reshape(*state.shape[:-1], features, values)
    return memory, state[..., width:].copy() if normalize else None
