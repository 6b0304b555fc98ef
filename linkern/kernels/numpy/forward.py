"""Attention on NumPy: from arrays of any layout to an output and a state."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.kernels.numpy import chunk_linear
from linkern.kernels.numpy.chunk_linear import Block, Shape
from linkern.kernels.numpy.features import InPlace
from linkern.kernels.numpy.heads import group_size, merged
from linkern.kernels.numpy.schedule import Layout, Pass, go, pieces
from linkern.kernels.numpy.threads import blas_held, thread_count, threads_worth
from linkern.kernels.numpy.workspace import Shelves

__all__ = [
    "attend",
    "flat_state",
    "layout_of",
    "layout_of_all",
    "parts_of",
    "schedule",
]

Real = NDArray[Any]

# Bytes of a block, and of those of all threads, and chunks of one. A block should stay
# in a cache near the core, and yet take so long that threads seldom wait for each other
# to give the interpreter back between two calls.
_LEAST, _MOST, _TOTAL = 1 << 20, 4 << 20, 8 << 20
_MOST_CHUNKS = 32
# Bytes of the keys, or of the values, of a block where every query sees every key.
_ROWS = 1 << 20


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
        Applied to queries and keys, which are features themselves by default.
    scale : float, optional
        Factor on the output of rows that are not divided.
    size : int
        Tokens in a chunk.
    causal : bool
        Whether a query sees the keys up to its own alone.

    Returns
    -------
    output : array (..., T, V)
        In the dtype of `query`.
    memory, normalizer : array
        New arrays.
    """
    features, values = memory.shape[-2:]
    normalize, dtype = normalizer is not None, memory.dtype
    # All that is needed is allocated before anything is computed, but for buffers.
    state = flat_state(memory, normalizer)
    output = np.empty((*query.shape[:-1], values), query.dtype)
    sources = {"key": key, "value": value}
    if log_decay is not None:
        sources["log_decay"] = log_decay

    def make(heads: int, chunks: int, size: int, other: Any) -> Block:
        return Block(
            Shape(heads, chunks, size, features, values),
            dtype,
            feature_map,
            normalize=normalize,
            decays=log_decay is not None,
            causal=causal,
            other=other,
        )

    kind = (Block, features, values, dtype, feature_map, normalize)
    shelves = Shelves((*kind, log_decay is not None, causal), make)

    def write(block: Block, of: Mapping[str, Real]) -> None:
        chunk_linear.write(block, of["key"], of["value"], of.get("log_decay"))

    def read(block: Block, of: Mapping[str, Real]) -> None:
        chunk_linear.read(block, of["query"], of["output"], scale)

    def total(block: Block, of: Mapping[str, Real]) -> None:
        chunk_linear.total(block, of["key"], of["value"])

    def everything(block: Block, of: Mapping[str, Real]) -> None:
        chunk_linear.everything(block, of["query"], of["output"], scale)

    targets = {"query": query, "output": output}
    if causal:
        layout = layout_of(size, features, values, dtype)
        one_way = Pass(shelves, write, read, chunk_linear.carry)
        schedule(one_way, {**sources, **targets}, state, layout)
    else:
        layout = layout_of_all(_ROWS, features, values, dtype)
        schedule(Pass(shelves, total, carry=chunk_linear.carry), sources, state, layout)
        schedule(Pass(shelves, follow=everything), targets, state, layout)
    return (output, *parts_of(state, features, values, normalize=normalize))


def layout_of(size: int, features: int, values: int, dtype: Any) -> Layout:
    """Return how many chunks of `size` tokens make a block."""
    cell = size * (3 * features + size + 2 * values) + features * values
    room = max(_LEAST, min(_MOST, _TOTAL // thread_count()))
    chunks = room // max(cell * dtype.itemsize, 1)
    return Layout(max(1, min(_MOST_CHUNKS, chunks)), size)


def layout_of_all(size: int, features: int, values: int, dtype: Any) -> Layout:
    """Return blocks of so many bytes of keys or values, which are one chunk each.

    Sums go over all tokens of a block, so that it must not depend on threads.
    """
    return Layout(1, max(16, size // (max(features, values, 1) * dtype.itemsize)))


def schedule(
    the: Pass,
    named: Mapping[str, Real],
    state: Real,
    layout: Layout,
) -> None:
    """Go through all heads and tokens."""
    batch = state.shape[:-1]
    length, heads = next(iter(named.values())).shape[-2], prod(batch)
    threads = threads_worth(heads * length * state.shape[-1])
    order = pieces(length, layout)
    # Short sequences leave room for more heads in a block; all threads get as many.
    room = layout.chunks // max(1, sum(piece.chunks for piece in order))
    count = group_size(heads, threads, room)
    groups = merged({**named, "state": state}, batch, count)
    with blas_held():
        go(the, groups, order, threads)


def flat_state(memory: Real, normalizer: Real | None) -> Real:
    """Return a state as one new row for each head: the memory, then the normalizer."""
    *batch, features, values = memory.shape
    rows = [memory.reshape(*batch, features * values)]
    if normalizer is not None:
        rows.append(normalizer)
    return np.concatenate(rows, axis=-1)


def parts_of(
    state: Real, features: int, values: int, *, normalize: bool
) -> tuple[Real, Real | None]:
    """Undo `flat_state`."""
    width = features * values
    memory = state[..., :width].reshape(*state.shape[:-1], features, values)
    return memory, state[..., width:].copy() if normalize else None
