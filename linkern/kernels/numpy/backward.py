"""Gradients of attention on NumPy: there for the memories, and back for the rest.

On the way there only the memory before each block is kept; on the way back a block is
computed again from it, and gradients of queries, keys and values are written at once.
"""

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linkern.kernels.numpy.bwd_schedule import go_back
from linkern.kernels.numpy.bwd_workspace import Adjoint
from linkern.kernels.numpy.chunk_linear import Shape
from linkern.kernels.numpy.features import InPlace
from linkern.kernels.numpy.forward import flat_state, layout_of_all, parts_of
from linkern.kernels.numpy.heads import group_size, merged
from linkern.kernels.numpy.schedule import Layout, pieces
from linkern.kernels.numpy.threads import blas_held, threads_worth
from linkern.kernels.numpy.workspace import Shelves

__all__ = ["Gradients", "pullback"]

Real = NDArray[Any]

# Bytes of a block, and chunks of one: fewer, and threads wait for each other at every
# call; more, and a third of the memory of others is soon reached.
_CACHE = 4 << 20
_MOST_CHUNKS = 20
# Bytes of the keys, or of the values, of a block where every query sees every key.
_ROWS = 1 << 19


class Gradients(NamedTuple):
    """Gradients by the names of the inputs, in their shapes and dtypes.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., S, K), (..., S, V)
        Of queries, keys and values.
    log_decay : array (..., T, 1) or None
        None if there were none.
    memory, normalizer : array (..., K, V), (..., K) or None
        Of the state before the first token.
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
        What it was called with.
    output_cotangent : array (..., T, V) or None
        Cotangent of the output; None for zero, as the others.
    memory_cotangent, normalizer_cotangent : array (..., K, V), (..., K) or None
        Cotangents of the state after the last key.
    feature_map, scale, size, causal
        What it was called with.

    Returns
    -------
    Gradients
        New arrays.
    """
    *batch, features, values = memory.shape
    given = {"query": query, "key": key, "value": value}
    if log_decay is not None:
        given["log_decay"] = log_decay
    # All that is returned is allocated before anything is computed.
    made = {f"d_{name}": np.empty(x.shape, x.dtype) for name, x in given.items()}
    if output_cotangent is not None:
        given["output"] = output_cotangent
    state = flat_state(
        _or_zeros(memory_cotangent, memory),
        None if normalizer is None else _or_zeros(normalizer_cotangent, normalizer),
    )
    before = flat_state(memory.swapaxes(-1, -2), normalizer)
    given |= {"before": before, "state": state}

    def make(heads: int, chunks: int, size: int, other: Any) -> Adjoint:
        return Adjoint(
            Shape(heads, chunks, size, features, values),
            memory.dtype,
            feature_map,
            normalize=normalizer is not None,
            decays=log_decay is not None,
            causal=causal,
            scale=scale,
            other=other,
        )

    has = normalizer is not None, log_decay is not None, causal
    kind = (Adjoint, features, values, memory.dtype, feature_map, has, scale)
    heads, longest = prod(batch), max(query.shape[-2], key.shape[-2])
    # There and back is about twice what there alone is.
    threads = threads_worth(2 * heads * longest * state.shape[-1])
    if causal:
        layout = _layout(size, features, values, memory.itemsize)
    else:
        layout = layout_of_all(_ROWS, features, values, memory.dtype)
    # Short sequences leave room for more heads in a block.
    room = layout.chunks // max(1, sum(x.chunks for x in pieces(longest, layout)))
    count = group_size(heads, threads, room)
    groups = merged({**given, **made}, tuple(batch), count)
    with blas_held():
        go_back(Shelves(kind, make), groups, layout, threads, causal=causal)
    parts = parts_of(state, features, values, normalize=normalizer is not None)
    return Gradients(
        made["d_query"],
        made["d_key"],
        made["d_value"],
        made.get("d_log_decay"),
        *parts,
    )


def _layout(size: int, features: int, values: int, itemsize: int) -> Layout:
    """Return blocks that fit into the cache of a core."""
    cell = size * (5 * features + 3 * size + 4 * values) + 4 * features * values
    chunks = _CACHE // max(cell * itemsize, 1)
    return Layout(max(1, min(_MOST_CHUNKS, chunks)), size)


def _or_zeros(x: Real | None, like: Real) -> Real:
    """Return a cotangent, zeros if there is none."""
    return np.zeros(like.shape, like.dtype) if x is None else x.astype(like.dtype)
