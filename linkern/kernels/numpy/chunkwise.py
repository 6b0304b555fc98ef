"""The chunkwise form on NumPy for any terms: from arrays of any layout, and back."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.core.recurrence import Terms
from linkern.core.triangular import power_of_two
from linkern.kernels.numpy import chunk_delta
from linkern.kernels.numpy.chunk_delta import Block, Kind, kind_of
from linkern.kernels.numpy.chunk_linear import Shape
from linkern.kernels.numpy.forward import flat_state, parts_of
from linkern.kernels.numpy.heads import group_size, merged
from linkern.kernels.numpy.schedule import Layout, Pass, go, pieces
from linkern.kernels.numpy.threads import blas_held, threads_worth
from linkern.kernels.numpy.workspace import Shelves

__all__ = ["broadcast", "chunks"]

Real = NDArray[Any]

# Bytes of a block. More than a core's own cache: there are so many calls for a block
# that they would take longer than what is fetched from the cache of all cores.
_BYTES = 1 << 22
_MOST_CHUNKS = 16
# Heads of a block: more need not be, and threads share them better.
_MOST_HEADS = 4


def chunks(memory: Any, of: Terms, size: int) -> tuple[Any, Any]:
    """Return the read-out and the last memory, `size` tokens at once.

    The read-out has the dtype of the query, everything is computed in that of the
    memory.
    """
    memory, of = broadcast(memory, of)
    features, values = memory.shape[-2:]
    kind, dtype, length = kind_of(of), memory.dtype, of.key.shape[-2]
    state = flat_state(memory, None)
    width = features if of.transpose_state else values
    output = np.empty((*of.query.shape[:-1], width), of.query.dtype)
    size = max(1, min(size, length))

    def make(heads: int, chunks: int, size: int, _: object) -> Block:
        return Block(Shape(heads, chunks, size, features, values), dtype, kind)

    named: dict[str, Any] = {
        "key": of.key,
        "value": of.value,
        "query": of.query,
        "output": output,
    }
    if of.log_decay is not None:
        named["log_decay"] = of.log_decay
    if of.erase is not None:
        named["erase"] = of.erase
    if length:
        shelves = Shelves((Block, features, values, dtype, kind), make)
        the = Pass(shelves, chunk_delta.write, chunk_delta.read, chunk_delta.carry)
        room = _BYTES // _bytes(size, features, values, dtype, kind)
        _schedule(the, named, state, size, min(_MOST_CHUNKS, room))
    return output, parts_of(state, features, values, normalize=False)[0]


def broadcast(memory: Any, of: Terms) -> tuple[Any, Terms]:
    """Give all arrays the same leading axes."""
    given = (memory, of.query, of.key, of.value, of.log_decay, of.erase)
    batch = np.broadcast_shapes(*(x.shape[:-2] for x in given if x is not None))

    def spread(x: Any) -> Any:
        return np.broadcast_to(x, (*batch, *x.shape[-2:]))

    return spread(memory), of.mapped(spread)


def _schedule(
    the: Pass, named: Mapping[str, Real], state: Real, size: int, room: int
) -> None:
    """Go through all heads and tokens, with `room` for so many chunks in a block.

    Heads come before chunks: they can be walked through together.
    """
    batch, length = state.shape[:-1], named["key"].shape[-2]
    heads = prod(batch)
    threads = threads_worth(heads * length * state.shape[-1])
    count = group_size(heads, threads, min(room, _MOST_HEADS))
    groups = merged({**named, "state": state}, batch, count)
    order = pieces(length, Layout(max(1, room // count), size))
    with blas_held():
        go(the, groups, order, threads)


def _bytes(size: int, features: int, values: int, dtype: Any, kind: Kind) -> int:
    """Return about how many bytes a chunk of a head needs."""
    rows = power_of_two(size)
    keys = rows * features
    cell = 2 * keys + rows * rows + 3 * rows * values + 2 * features * values
    if kind.erases:
        cell += keys + 2 * rows * rows + rows * values
    if kind.by_channel:
        cell += 3 * keys
    if kind.by_channel and kind.transpose_state:
        cell += 8 * keys
    return max(1, cell * int(dtype.itemsize))
