"""Backward pass of additive attention on NumPy, for arrays of any memory layout.

The pass over earlier states keeps only the state before each block, as a checkpoint.
The backward pass recomputes a block from its checkpoint and writes the gradients of its
queries, keys and values at once.
"""

from math import prod
from typing import Any, NamedTuple

import numpy as np

from linkern.kernels.numpy.bwd_schedule import run_backward
from linkern.kernels.numpy.bwd_workspace import BackwardWorkspace
from linkern.kernels.numpy.features import InPlace
from linkern.kernels.numpy.forward import (
    non_causal_layout,
    pack_state,
    unpack_state,
)
from linkern.kernels.numpy.heads import group_size, head_groups
from linkern.kernels.numpy.schedule import Layout, blocks
from linkern.kernels.numpy.threads import (
    single_threaded_blas,
    small_buffers,
    threads_for,
)
from linkern.kernels.numpy.types import Real, Shape
from linkern.kernels.numpy.workspace import WorkspacePool

__all__ = ["Gradients", "pullback"]

# Bytes of a block, and chunks of one. With fewer chunks, threads wait for each other at
# every call; with more, workspaces take more memory than is saved by fewer checkpoints.
_BLOCK_BYTES = 4 << 20
_MAX_CHUNKS = 40
# Bytes of the keys, or of the values, of a block without causal order.
_NON_CAUSAL_BYTES = 1 << 19


class Gradients(NamedTuple):
    """Gradients by the names of the inputs, in their shapes and dtypes.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., S, K), (..., S, V)
        Gradients of queries, keys and values.
    log_decay : array (..., T, 1) or None
        None if there were no log-decays.
    memory, normalizer : array (..., K, V), (..., K) or None
        Gradients of the state before the first token.
    """

    query: Real
    key: Real
    value: Real
    log_decay: Real | None
    memory: Real
    normalizer: Real | None


def pullback(
    query: Real,
    key: Real,
    value: Real,
    log_decay: Real | None,
    memory: Real,
    normalizer: Real | None,
    output_cotangent: Real | None,
    memory_cotangent: Real | None,
    normalizer_cotangent: Real | None,
    *,
    feature_map: InPlace | None = None,
    scale: float | None = None,
    size: int = 64,
    causal: bool = True,
) -> Gradients:
    """Return the gradients of the inputs of `linkern.kernels.numpy.forward.attend`.

    Parameters
    ----------
    query, key, value, log_decay, memory, normalizer
        Inputs of `attend`.
    output_cotangent : array (..., T, V) or None
        Cotangent of the output; None for zero, also for the next two.
    memory_cotangent, normalizer_cotangent : array (..., K, V), (..., K) or None
        Cotangents of the state after the last key.
    feature_map, scale, size, causal
        Options of `attend`.

    Returns
    -------
    Gradients
        New arrays.
    """
    *batch, features, values = memory.shape
    normalize = normalizer is not None
    arrays = {"query": query, "key": key, "value": value}
    if log_decay is not None:
        arrays["log_decay"] = log_decay
    # Results are allocated before anything is computed.
    gradients = {f"d_{name}": np.empty(x.shape, x.dtype) for name, x in arrays.items()}
    if output_cotangent is not None:
        arrays["output"] = output_cotangent
    state = pack_state(
        _or_zeros(memory_cotangent, memory),
        None if normalizer is None else _or_zeros(normalizer_cotangent, normalizer),
    )
    before = pack_state(memory.swapaxes(-1, -2), normalizer)
    pool = _pool(
        features,
        values,
        memory.dtype,
        feature_map=feature_map,
        normalize=normalize,
        decays=log_decay is not None,
        causal=causal,
        scale=scale,
    )
    heads, longest = prod(batch), max(query.shape[-2], key.shape[-2])
    # The forward and the backward pass together take about twice the forward alone.
    threads = threads_for(2 * heads * longest * state.shape[-1])
    if causal:
        layout = _causal_layout(size, features, values, memory.itemsize)
    else:
        layout = non_causal_layout(_NON_CAUSAL_BYTES, features, values, memory.dtype)
    # Short sequences leave room for more heads in a block.
    room = layout.chunks // max(1, sum(x.chunks for x in blocks(longest, layout)))
    count = group_size(heads, threads, room)
    arrays |= {"before": before, "state": state}
    groups = head_groups({**arrays, **gradients}, tuple(batch), count)
    with single_threaded_blas(), small_buffers():
        run_backward(pool, groups, layout, threads, causal=causal)
    return Gradients(
        gradients["d_query"],
        gradients["d_key"],
        gradients["d_value"],
        gradients.get("d_log_decay"),
        *unpack_state(state, features, values, normalize=normalize),
    )


def _pool(features: int, values: int, dtype: Any, **options: Any) -> WorkspacePool:
    """Return the pool of workspaces with some `options` of `BackwardWorkspace`."""

    def make(heads: int, chunks: int, size: int, reuse: Any) -> BackwardWorkspace:
        shape = Shape(heads, chunks, size, features, values)
        return BackwardWorkspace(shape, dtype, **options, reuse=reuse)

    kind = (BackwardWorkspace, features, values, dtype, *options.values())
    return WorkspacePool(kind, make)


def _causal_layout(size: int, features: int, values: int, itemsize: int) -> Layout:
    """Return a layout whose blocks fit into the cache of a core."""
    cell = size * (5 * features + 3 * size + 4 * values) + 4 * features * values
    chunks = _BLOCK_BYTES // max(cell * itemsize, 1)
    return Layout(max(1, min(_MAX_CHUNKS, chunks)), size)


def _or_zeros(x: Real | None, like: Real) -> Real:
    """Return a cotangent in the dtype of `like`; zeros if it is None."""
    return np.zeros(like.shape, like.dtype) if x is None else x.astype(like.dtype)
