"""Driver of the chunkwise form on NumPy for any terms, in arrays of any layout."""

from math import prod
from typing import Any

import numpy as np

from linkern.core.recurrence import Terms
from linkern.core.triangular import power_of_two
from linkern.kernels.numpy import chunk_delta
from linkern.kernels.numpy.chunk_delta import DeltaWorkspace, Traits, traits_of
from linkern.kernels.numpy.forward import pack_state, unpack_state
from linkern.kernels.numpy.heads import group_size, head_groups
from linkern.kernels.numpy.schedule import Layout, Phase, blocks, run
from linkern.kernels.numpy.threads import (
    single_threaded_blas,
    small_buffers,
    threads_for,
)
from linkern.kernels.numpy.types import Arrays, Real, Shape
from linkern.kernels.numpy.workspace import WorkspacePool

__all__ = ["broadcast", "chunks"]

# Bytes of a block: more than the cache of a core. A block takes so many calls that they
# cost more than fetching its data from the cache that all cores share.
_BLOCK_BYTES = 1 << 22
_MAX_CHUNKS = 32
# Heads of a block, at most: more are not needed, and threads share the heads better.
_MAX_HEADS = 4


def chunks(
    memory: Any,
    terms: Terms,
    size: int,
    *,
    checkpoints: Real | None = None,
    per_block: int = _MAX_CHUNKS,
) -> tuple[Any, Any]:
    """Return the output and the final memory, in chunks of `size` tokens.

    The output has the dtype of the query; the dtype of the computation is that of the
    memory. With `checkpoints` ``(..., blocks, K * V)``, a block has `per_block` chunks,
    and the state before each is written there.
    """
    memory, terms = broadcast(memory, terms)
    features, values = memory.shape[-2:]
    traits, dtype, length = traits_of(terms), memory.dtype, terms.key.shape[-2]
    state = pack_state(memory, None)
    width = features if terms.transpose_state else values
    output = np.empty((*terms.query.shape[:-1], width), terms.query.dtype)
    size = max(1, min(size, length))

    def make(heads: int, chunks: int, size: int, _: object) -> DeltaWorkspace:
        shape = Shape(heads, chunks, size, features, values)
        return DeltaWorkspace(shape, dtype, traits)

    arrays: dict[str, Any] = {
        "key": terms.key,
        "value": terms.value,
        "query": terms.query,
        "output": output,
    }
    if terms.log_decay is not None:
        arrays["log_decay"] = terms.log_decay
    if terms.erase is not None:
        arrays["erase"] = terms.erase
    if terms.follow is not None:
        arrays["follow"] = terms.follow
    if length:
        pool = WorkspacePool((DeltaWorkspace, features, values, dtype, traits), make)
        phase = Phase(
            pool,
            chunk_delta.chunk_state,
            chunk_delta.chunk_output,
            chunk_delta.state_passing,
        )
        room = _BLOCK_BYTES // _chunk_bytes(size, features, values, dtype, traits)
        if checkpoints is not None:
            arrays["checkpoints"] = checkpoints
            room = per_block * _MAX_HEADS
        layout = Layout(per_block, size)
        _run_phase(phase, arrays, state, layout, min(_MAX_CHUNKS, room))
    return output, unpack_state(state, features, values, normalize=False)[0]


def broadcast(memory: Any, terms: Terms) -> tuple[Any, Terms]:
    """Give all arrays the same leading axes."""
    arrays = (memory, *terms.arrays())
    batch = np.broadcast_shapes(*(x.shape[:-2] for x in arrays))

    def spread(x: Any) -> Any:
        return np.broadcast_to(x, (*batch, *x.shape[-2:]))

    return spread(memory), terms.mapped(spread)


def _run_phase(
    phase: Phase, arrays: Arrays, state: Real, layout: Layout, room: int
) -> None:
    """Run a phase over all heads and tokens, with at most `room` chunks in a block.

    A block takes more heads before it takes more chunks: the state passing of several
    heads is one call.
    """
    batch, length = state.shape[:-1], arrays["key"].shape[-2]
    heads = prod(batch)
    threads = threads_for(heads * length * state.shape[-1])
    count = group_size(heads, threads, min(room, _MAX_HEADS))
    groups = head_groups({**arrays, "state": state}, batch, count)
    if "checkpoints" not in arrays:
        layout = layout._replace(chunks=max(1, room // count))
    order = blocks(length, layout)
    with single_threaded_blas(), small_buffers():
        run(phase, groups, order, threads)


def _chunk_bytes(
    size: int, features: int, values: int, dtype: Any, traits: Traits
) -> int:
    """Return the approximate bytes of the workspace of one chunk of one head."""
    rows = power_of_two(size)
    keys = rows * features
    cell = 2 * keys + rows * rows + 3 * rows * values + 2 * features * values
    if traits.erases:
        cell += keys + 2 * rows * rows + rows * values
    if traits.follows:
        cell += 3 * rows * rows
    if traits.channel_decay:
        cell += 3 * keys
    if traits.channel_decay and traits.transpose_state:
        cell += 8 * keys
    return max(1, cell * int(dtype.itemsize))
